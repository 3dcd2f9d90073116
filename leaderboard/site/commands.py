"""`python -m leaderboard site`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from leaderboard.site.build import ENTRIES, build_site


def add_commands(commands: Any) -> None:
    """Add `site` to the subcommands of a parser; it sets `handler`."""
    parser = commands.add_parser("site", help="write the leaderboard as a static site")
    parser.add_argument("--runs", type=Path, help="a result store; without: published numbers only")
    parser.add_argument("--entries", type=Path, default=ENTRIES, help="folder of submissions")
    parser.add_argument("--no-published", action="store_true", help="leave out the papers' numbers")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to write")
    parser.set_defaults(handler=site)


def site(options: argparse.Namespace) -> int:
    index, size, board = build_site(
        options.runs, options.out, options.entries, not options.no_published
    )
    print(f"wrote {index}: {len(board.rows)} rows, {size / 1e6:.2f} MB in all")
    return 0
