"""`python -m leaderboard.snapshot RUNS`: remake the committed rows and the page from a store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmark.errors import ArgumentParser, command_line
from datasets.base import write_atomically
from leaderboard.gather import gather
from leaderboard.snapshot.page import page
from leaderboard.snapshot.rows import CSV, read, snapshot

DOCS = Path("docs/minidigits.md")


@command_line
def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="python -m leaderboard.snapshot", description=__doc__)
    parser.add_argument("runs", type=Path, nargs="?", help="the store; without: only the page")
    parser.add_argument("--csv", type=Path, default=CSV, help="the rows")
    parser.add_argument("--page", type=Path, default=DOCS, help="the page")
    options = parser.parse_args(arguments)
    if options.runs is not None:
        text = snapshot(gather(options.runs)).to_csv(index=False)
        write_atomically(options.csv, lambda path: path.write_text(text))
        print(f"wrote {options.csv}")
    text = page(read(options.csv))
    write_atomically(options.page, lambda path: path.write_text(text))
    print(f"wrote {options.page}")
    return 0


if __name__ == "__main__":
    main()
