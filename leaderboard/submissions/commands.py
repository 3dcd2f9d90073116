"""`python -m leaderboard submit` and `verify`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmark.errors import UserError
from benchmark.registry import load_plugin
from benchmark.results import ResultStore
from leaderboard.submissions.checks import parse
from leaderboard.submissions.entry import check_entry, pack, read_entry, write_entry
from leaderboard.submissions.protocols import examine_protocol
from leaderboard.submissions.verify import examine

SHOWN = 20
"""Problems that are printed; the rest is counted."""


def add_commands(commands: Any) -> None:
    """Add `submit` and `verify` to the subcommands of a parser; each sets `handler`."""
    parser = commands.add_parser("submit", help="pack results into one entry for the leaderboard")
    parser.add_argument("runs", type=Path, help="the result store")
    parser.add_argument("--name", required=True, help="who submits, as it will be shown")
    parser.add_argument("--contact", required=True, help="an address for questions; public")
    parser.add_argument("--protocol", metavar="NAME", help="the protocol that the runs follow")
    parser.add_argument("--methods", nargs="+", metavar="NAME", help="only these; default: all")
    parser.add_argument("--datasets", nargs="+", metavar="NAME", help="only these; default: all")
    parser.add_argument("--to", type=Path, required=True, metavar="FILE", help="the entry")
    parser.set_defaults(handler=submit)
    parser = commands.add_parser("verify", help="check an entry; with --rerun, repeat some runs")
    parser.add_argument("entry", type=Path, help="the file to check")
    parser.add_argument("--rerun", type=int, metavar="K", help="repeat K sampled runs to the bit")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the datasets")
    parser.add_argument("--device", default="cpu", help="where to repeat runs")
    parser.add_argument(
        "--plugin",
        nargs="+",
        default=[],
        metavar="FILE.py",
        help="files that register the entry's own methods; they are executed, so read them first",
    )
    parser.set_defaults(handler=verify)


def submit(options: argparse.Namespace) -> int:
    found = ResultStore(options.runs).collect()
    if found.damaged:
        path = next(iter(found.damaged))
        raise UserError(f"{path} is damaged; run the sweep again, which replaces it")
    results = [
        result
        for result in found.results
        if (options.methods is None or result.spec.method in options.methods)
        and (options.datasets is None or result.spec.dataset in options.datasets)
    ]
    if not results:
        raise UserError(f"no such results in {options.runs}; run python -m benchmark.sweep first")
    text = pack(results, options.name, options.contact, options.protocol)
    entry = check_entry(parse(text))
    report = examine(entry)
    examine_protocol(entry, report)
    for problem in report.problems[:SHOWN]:
        print(f"would not pass: {problem}", file=sys.stderr)
    if report.problems:
        raise UserError(f"{len(report.problems)} problems; complete the sweep, or narrow the runs")
    write_entry(options.to, text)
    print(
        f"wrote {options.to}: {len(results)} runs, {len(text.encode()) / 1000:.0f} kB; "
        f"offer it as leaderboard/entries/NAME.json"
    )
    return 0


def verify(options: argparse.Namespace) -> int:
    for path in options.plugin:
        load_plugin(path)
    entry = read_entry(options.entry)
    report = examine(entry)
    examine_protocol(entry, report)
    if options.rerun is not None and not report.problems:
        from leaderboard.submissions.rerun import rerun

        found = list(rerun(entry, options.rerun, options.data, options.device, options.seed))
        report.add(f"{min(options.rerun, len(entry.results))} runs repeated to the bit", found)
    for line in report.checked:
        print(line)
    for line in report.remarks[:SHOWN]:
        print(f"note: {line}")
    for line in report.problems[:SHOWN]:
        print(f"problem: {line}", file=sys.stderr)
    if report.problems:
        print(f"{options.entry}: {len(report.problems)} problems", file=sys.stderr)
        return 1
    print(f"{options.entry}: {len(entry.results)} runs by {entry.name}, sound")
    return 0
