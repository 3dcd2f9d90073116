"""`python -m benchmark.bench`: what the suite costs on this machine, side by side with what people
write by hand, as markdown tables with ratios.

Repeats take turns, so that all contenders meet the same machine; the tables show medians and
spreads. A busy machine makes every number worse and loops of several threads many times so.
"""

from __future__ import annotations

import importlib
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmark.arguments import available_cores
from benchmark.errors import ArgumentParser, UserError, command_line, unknown
from datasets.base import write_atomically

SECTIONS = {
    "rounds": 7,
    "flower": 5,
    "pool": 1,
    "aggregation": 7,
    "input": 11,
    "overheads": 5,
    "growth": 1,
}
"""Modules of this package and how often each repeats what it measures."""


@command_line
def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="python -m benchmark.bench", description=__doc__)
    parser.add_argument(
        "--only", nargs="+", default=list(SECTIONS), metavar="SECTION", help=", ".join(SECTIONS)
    )
    parser.add_argument("--repeats", type=int, metavar="N", help="instead of each section's own")
    parser.add_argument("--root", type=Path, help="class folders for `input`; default: made here")
    parser.add_argument("--to", type=Path, metavar="FILE", help="also write the tables here")
    options = parser.parse_args(arguments)
    if options.repeats is not None and options.repeats < 1:
        raise UserError(f"--repeats {options.repeats}: at least 1")
    for name in options.only:
        if name not in SECTIONS:
            raise unknown("section", name, SECTIONS)
    parts = [machine()]
    print(parts[0], flush=True)
    for name in options.only:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        section = importlib.import_module(f"benchmark.bench.{name}")
        repeats = options.repeats or SECTIONS[name]
        extra = {"root": options.root} if name == "input" else {}
        for table in section.measure(repeats, **extra):
            parts.append(table.markdown())
            print(f"\n{parts[-1]}", flush=True)
    if options.to:
        text = "\n\n".join(parts) + "\n"
        write_atomically(options.to, lambda path: path.write_text(text))
    return 0


def machine() -> str:
    return (
        f"{available_cores()} cores ({platform.machine()}), Python {platform.python_version()}, "
        f"torch {torch.__version__}"
    )


if __name__ == "__main__":
    main()
