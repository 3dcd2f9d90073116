"""What the task of a run wrote: of a pack's log, the part that is about the run."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path

from benchmark.results import ResultStore, read_failure
from slurm.ledger import Ledger

OF_A_RUN = re.compile(r"\[([0-9a-f]{16})\] ")
"""In the lines with which a task tells what becomes of its runs."""


def logs(ledger: Ledger, prefix: str, count: int) -> str:
    """The last `count` lines of each file about the run whose id begins so, and why it failed."""
    manifest, run = ledger.find_run(prefix)
    array, task = manifest.places[run]
    folder = ledger.array_folder(manifest.submission, array)
    alone = len(manifest.arrays[array]) == 1
    blocks = []
    for path in sorted(folder.glob("*_0_log.*" if alone else f"*_{task}_0_log.*")):
        lines = about(run, path.read_text(errors="replace").splitlines())
        if lines:
            blocks.append("\n".join([f"==> {path}", *lines[-count:]]))
    failure = ResultStore(ledger.folder.parent).failure_path(manifest.spec(run))
    if reason := read_failure(failure):
        blocks.append(f"==> {failure}\n{reason}\n{_traceback(failure)}".rstrip())
    return "\n\n".join(blocks) or f"run {run} has not begun: no log in {folder}"


def about(run: str, lines: list[str]) -> list[str]:
    """The lines that name the run, each with what was printed until another is named or the task
    begins anew; all lines if none names it."""
    kept, ours = [], False
    for line in lines:
        if named := OF_A_RUN.search(line):
            ours = named.group(1) == run
        elif line.startswith("submitit INFO"):
            ours = False
        if ours:
            kept.append(line)
    return kept or lines


def _traceback(failure: Path) -> str:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return str(json.loads(failure.read_text())["detail"])
    return ""
