"""A status as text: one grid per dataset, then what runs and what needs attention."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from tabulate import tabulate

from benchmark.estimate import duration
from slurm.status import RunStatus, Status
from slurm.wording import counted

CLEAR = "\033[H\033[2J"
"""Wipes the screen of a terminal."""
SHOWN = 12
"""Lines of each list unless all are asked for."""
COLOURS = {
    "done": "32",
    "running": "36",
    "pending": "2",
    "failed": "31",
    "lost": "35",
    "unknown": "33",
}


def use_colour(stream=sys.stdout) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ


def render(status: Status, colour: bool, everything: bool = False) -> str:
    """The whole picture."""
    if not status.runs:
        return "no run was submitted from here; python -m benchmark.sweep --launcher slurm does it"
    blocks = [
        _grid(status, dataset, colour) for dataset in _in_order(r.dataset for r in status.runs)
    ]
    counts = status.counts()
    line = ", ".join(_count(state, count, colour) for state, count in counts.items())
    blocks.append(f"{counted(len(status.runs), 'run')}: {line}")
    if status.note:
        blocks.append(f"note: {status.note}")
    for state in ("running", "failed", "lost", *(("pending", "done") if everything else ())):
        runs = status.in_state(state)
        if runs:
            limit = len(runs) if everything else SHOWN
            lines = [_line(run, colour) for run in runs[:limit]]
            if len(runs) > limit:
                lines.append(f"… and {len(runs) - limit} more {state} (--runs shows all)")
            blocks.append("\n".join(lines))
    if counts["failed"] or counts["lost"]:
        blocks.append("again: python -m slurm retry; why: python -m slurm logs RUN")
    if counts["done"] == len(status.runs):
        blocks.append("the same sweep command shows the table")
    return "\n\n".join(blocks)


def _grid(status: Status, dataset: str, colour: bool) -> str:
    """Methods by targets."""
    cells: dict[tuple[str, str], list[RunStatus]] = {}
    for run in status.runs:
        if run.dataset == dataset:
            cells.setdefault((run.method, run.target), []).append(run)
    targets = _in_order(target for _, target in cells)
    rows = [
        [method, *(_cell(status, cells.get((method, target)), colour) for target in targets)]
        for method in _in_order(method for method, _ in cells)
    ]
    return tabulate(rows, [dataset, *targets], tablefmt="simple", disable_numparse=True)


def _cell(status: Status, runs: list[RunStatus] | None, colour: bool) -> str:
    """How many of all are done, and what there is besides those that wait."""
    if not runs:
        return ""
    counts = status.counts(runs)
    finished = counts["done"] == len(runs)
    done = _paint("done" if finished else "", f"{counts['done']}/{len(runs)}", colour)
    others = [
        _count(state, count, colour)
        for state, count in counts.items()
        if count and state not in ("done", "pending")
    ]
    return " ".join([done, *others])


def _line(run: RunStatus, colour: bool) -> str:
    parts = [
        _paint(run.state, f"{run.state:<8}", colour),
        f"{run.run}  {run.method} on {run.dataset}/{run.target} seed {run.seed}",
    ]
    if run.round is not None:
        parts.append(f"round {run.round} of {run.rounds}")
    if run.seconds_left is not None:
        parts.append(f"{duration(run.seconds_left)} left")
    if run.job:
        parts.append(f"job {run.job}")
    if run.reason:
        parts.append(run.reason)
    return "  ".join(parts)


def _count(state: str, count: int, colour: bool) -> str:
    """What there is none of is not to catch the eye."""
    return _paint(state if count else "", f"{count} {state}", colour)


def _paint(state: str, text: str, colour: bool) -> str:
    return f"\033[{COLOURS[state]}m{text}\033[0m" if colour and state in COLOURS else text


def _in_order(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))
