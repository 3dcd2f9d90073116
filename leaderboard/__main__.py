"""`python -m leaderboard table`: the results of a store as markdown or LaTeX."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmark.errors import ArgumentParser, UserError, command_line
from benchmark.results import ResultStore
from datasets.base import write_atomically
from leaderboard.select import SELECTIONS
from leaderboard.tables import FORMATS, make_tables


@command_line
def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="python -m leaderboard", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    table = commands.add_parser("table", help="one table for every setting in the store")
    table.add_argument("--runs", type=Path, default=Path("runs"), help="the result store")
    table.add_argument("--format", choices=FORMATS, default="markdown")
    table.add_argument("--selection", choices=SELECTIONS, default="training_domain")
    table.add_argument("--to", type=Path, metavar="FILE", help="write here instead of printing")
    options = parser.parse_args(arguments)
    found = ResultStore(options.runs).collect()
    for path, reason in found.damaged.items():
        print(f"damaged, skipped: {path}: {reason}", file=sys.stderr)
    if found.damaged:
        print(f"{len(found.damaged)} damaged result files skipped", file=sys.stderr)
    if not found.results:
        raise UserError(f"no results in {options.runs}; run python -m benchmark.sweep first")
    render = FORMATS[options.format]
    tables = make_tables(found, options.selection)
    text = "\n\n".join(render(table) for table in tables) + "\n"
    if options.to is None:
        print(text, end="")
    else:
        write_atomically(options.to, lambda path: path.write_text(text))
        print(f"wrote {options.to}")
    return 0


if __name__ == "__main__":
    main()
