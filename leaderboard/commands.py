"""The subcommands of `python -m leaderboard`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmark.errors import UserError
from benchmark.results import ResultStore
from datasets.base import write_atomically
from leaderboard.fields import parse_conditions, restricted, split_names
from leaderboard.formats import FORMATS, render
from leaderboard.free import Shape, free_table
from leaderboard.gather import gather
from leaderboard.papers import SHOWS, paper_sheet
from leaderboard.printed import printed, tables_called
from leaderboard.select import SELECTIONS
from leaderboard.sheets import Sheet
from leaderboard.site.commands import add_commands as add_site
from leaderboard.submissions.commands import add_commands as add_submissions
from leaderboard.tables import make_tables

RANKABLE = [rule for rule in SELECTIONS if rule != "oracle"]


def add_commands(commands: Any) -> None:
    """Add the subcommands to a parser; each sets `handler`."""
    add_table(commands)
    add_stats(commands)
    add_figures(commands)
    add_site(commands)
    add_submissions(commands)


def add_table(commands: Any) -> None:
    parser = commands.add_parser(
        "table",
        help="a paper's table, a free one, or one for every setting in the store",
        description="`table fedfd_a/5`: a paper's table. `table --rows method --columns "
        "dataset,target`: any fields of the runs. `table`: one for every setting in the store.",
    )
    parser.add_argument("name", nargs="?", metavar="PAPER/NUMBER", help="e.g. fedfd_a/5")
    parser.add_argument("--show", choices=SHOWS, help="of a paper's table; default: published")
    parser.add_argument("--rows", nargs="+", metavar="FIELD", help="e.g. method")
    parser.add_argument(
        "--columns", nargs="+", metavar="FIELD", help="e.g. dataset,target; `costs` adds costs"
    )
    parser.add_argument("--selection", nargs="+", metavar="RULE", help=", ".join(SELECTIONS))
    _common(parser)
    parser.set_defaults(handler=table)


def add_stats(commands: Any) -> None:
    parser = commands.add_parser("stats", help="intervals, ranks, tests, wins and losses")
    parser.add_argument("--selection", choices=RANKABLE, default="training_domain")
    parser.add_argument("--interval", choices=("bootstrap", "std"), default="bootstrap")
    parser.add_argument("--each-seed", action="store_true", help="rank every seed on its own")
    parser.add_argument("--alpha", type=float, default=0.05, help="level of the tests")
    parser.add_argument("--against", metavar="METHOD", help="compare all others with this one")
    _common(parser)
    parser.set_defaults(handler=stats)


def add_figures(commands: Any) -> None:
    parser = commands.add_parser("figures", help="every figure as PNG and SVG")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="the result store")
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--selection", choices=SELECTIONS, default="training_domain")
    parser.add_argument("--where", nargs="+", default=[], metavar="FIELD=VALUE")
    parser.add_argument("--only", nargs="+", metavar="FIGURE", help="some of the figures")
    parser.set_defaults(handler=figures)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="the result store")
    parser.add_argument(
        "--where", nargs="+", default=[], metavar="FIELD=VALUE", help="only these runs"
    )
    parser.add_argument("--format", choices=FORMATS, default="markdown")
    parser.add_argument("--to", type=Path, metavar="FILE", help="write here instead of printing")


def table(options: argparse.Namespace) -> int:
    if options.name is not None:
        return _deliver(paper_tables(options), options)
    if options.show is not None:
        raise UserError("--show is about a paper's table; name one, e.g. fedfd_a/5")
    found = restricted(gather(options.runs), parse_conditions(options.where))
    rules = options.selection or ["training_domain"]
    columns = split_names(options.columns or [])
    costs = "costs" in columns
    columns = [name for name in columns if name != "costs"]
    if options.rows or columns:
        shape = Shape(split_names(options.rows or ["method"]), columns, costs)
        return _deliver([free_table(found, shape, rules)], options)
    return _deliver(make_tables(found, rules, costs), options)


def paper_tables(options: argparse.Namespace) -> list[Sheet]:
    """A paper's table; our runs are planned, which needs torch, only if they are asked for."""
    if options.rows or options.columns or options.where:
        raise UserError("--rows, --columns and --where make free tables; leave the paper's out")
    names = tables_called(options.name)
    show = options.show or ("ours" if options.selection else "published")
    if show == "published":
        if options.selection:
            raise UserError("--selection is about our runs; add --show ours or --show both")
        return [paper_sheet(name) for name in names]
    from leaderboard.ours import measure

    if not any(printed(name).columns for name in names):
        raise UserError(f"{options.name} prints no accuracy; use --show published")
    store = ResultStore(options.runs)
    rules = options.selection or ()
    return [paper_sheet(name, show, measure(name, store, rules)) for name in names]


def stats(options: argparse.Namespace) -> int:
    from leaderboard.stats_sheets import stats_sheets

    if not 0 < options.alpha < 1:
        raise UserError(f"--alpha {options.alpha:g}: between 0 and 1")
    found = restricted(gather(options.runs), parse_conditions(options.where))
    sheets = stats_sheets(
        found,
        options.selection,
        options.interval,
        options.each_seed,
        options.alpha,
        options.against,
    )
    return _deliver(sheets, options)


def figures(options: argparse.Namespace) -> int:
    from leaderboard.figures import write_figures

    found = restricted(gather(options.runs), parse_conditions(options.where))
    written = write_figures(found, options.to, options.selection, options.only, options.runs)
    for path in written.paths:
        print(f"wrote {path}")
    for note in written.left_out:
        print(f"left out: {note}")
    return 0


def _deliver(sheets: Sequence[Sheet], options: argparse.Namespace) -> int:
    text = render(sheets, options.format)
    if options.to is None:
        print(text, end="")
    else:
        write_atomically(options.to, lambda path: path.write_text(text))
        print(f"wrote {options.to}")
    return 0
