"""`python -m leaderboard`: tables, statistics, figures and a site, from stores and the papers."""

from __future__ import annotations

from collections.abc import Sequence

from benchmark.errors import ArgumentParser, command_line
from leaderboard.commands import add_commands


@command_line
def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="python -m leaderboard", description=__doc__)
    add_commands(parser.add_subparsers(dest="command", required=True))
    options = parser.parse_args(arguments)
    return options.handler(options)


if __name__ == "__main__":
    main()
