"""Plots that look inside a finished run: `python -m benchmark.explain alpha|attention|features`.

The reading side draws what results hold; these plots need the model itself. A program like `sweep`
and `run`: nothing else imports it.
"""
