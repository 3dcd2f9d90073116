"""A committed snapshot of measured results: where the papers' methods stand on MiniDigits.

`minidigits.csv` has a row per run, `docs/minidigits.md` the table made from it. Both are remade by

    python -m benchmark.sweep --methods … --seeds 0 1 2 --out RUNS      (METHODS in `rows.py`)
    python -m leaderboard.snapshot RUNS

A test plans the same runs: whoever changes a default must measure again.
"""
