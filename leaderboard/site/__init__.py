"""A static site of the leaderboard: one page with all rows, one per method, one per dataset.

No server, no outside request, no framework; it works from a file. All that comes from results and
entries is untrusted: escaped where pages are generated, set as text where a script shows it.
"""
