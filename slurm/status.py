"""How a sweep on SLURM stands: every submitted run in one of a few states.

From the names of the store's files, the manifests, the tasks' progress notes, one call of squeue
and, when runs were lost, one of sacct. Nothing large is read: a result is done by being there.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmark.results import read_failure
from slurm import scheduler
from slurm.ledger import Ledger
from slurm.manifest import Manifest
from slurm.scheduler import Live, Task

STATES = ("done", "running", "pending", "failed", "lost", "unknown")
"""`lost`: submitted, but neither finished, failed nor in a live job; `unknown`: the queue cannot be
asked."""


@dataclasses.dataclass(frozen=True)
class RunStatus:
    """One submitted run."""

    run: str
    dataset: str
    target: str
    method: str
    seed: int
    state: str
    round: int | None = None
    rounds: int | None = None
    seconds_left: float | None = None
    job: str | None = None
    reason: str | None = None


@dataclasses.dataclass(frozen=True)
class Status:
    """All submitted runs of a store, in the order of their submission."""

    runs: list[RunStatus]
    note: str | None = None
    """Why the queue could not be asked."""

    def counts(self, runs: Iterable[RunStatus] | None = None) -> dict[str, int]:
        """How many runs are in each state."""
        found = Counter(run.state for run in (self.runs if runs is None else runs))
        return {state: found[state] for state in STATES if found[state] or state != "unknown"}

    def in_state(self, *states: str) -> list[RunStatus]:
        return [run for run in self.runs if run.state in states]

    def to_json(self) -> dict[str, Any]:
        groups: dict[tuple[str, str, str], list[RunStatus]] = {}
        for run in self.runs:
            groups.setdefault((run.dataset, run.method, run.target), []).append(run)
        grid = [
            {"dataset": dataset, "method": method, "target": target, **self.counts(runs)}
            for (dataset, method, target), runs in groups.items()
        ]
        runs = [dataclasses.asdict(run) for run in self.runs]
        return {"counts": self.counts(), "grid": grid, "runs": runs, "note": self.note}


def status(ledger: Ledger) -> Status:
    """Look at everything once."""
    manifests = ledger.manifests()
    owners = ledger.owners()
    live: Mapping[Task, Live] = {}
    note = None
    try:
        live = scheduler.live_tasks(manifest.user for manifest in manifests) if manifests else {}
    except scheduler.NoAnswer as error:
        note = str(error)
    # The store is read after the queue: a run that ends in between is seen as done.
    done, failed = stored(ledger.folder.parent)
    runs = []
    for run, manifest in owners.items():
        if run in done:
            runs.append(_run(manifest, run, "done"))
        else:
            runs.append(_open_run(ledger, manifest, run, failed.get(run), live, note is None))
    return Status(_with_reasons(runs, owners), note)


def stored(root: Path) -> tuple[set[str], dict[str, Path]]:
    """Ids of finished runs and, with their notes, of failed ones, from the names of the files."""
    done, failed = set(), {}
    for dataset in _folders(root):
        for method in _folders(dataset):
            for name in os.listdir(method):
                if name.endswith(".failed.json"):
                    failed[name.removesuffix(".failed.json")] = method / name
                elif name.endswith(".json"):
                    done.add(name.removesuffix(".json"))
    return done, failed


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return [
            Path(entry.path)
            for entry in entries
            if entry.is_dir() and not entry.name.startswith(".")
        ]


def _open_run(
    ledger: Ledger,
    manifest: Manifest,
    run: str,
    failure: Path | None,
    live: Mapping[Task, Live],
    answered: bool,
) -> RunStatus:
    """A run without a result: what its task does with it, or did."""
    array, position = manifest.places[run]
    task = live.get((manifest.submission, array, position))
    entry = ledger.progress(run) or {}
    if entry.get("submission") != manifest.submission:
        entry = {}
    state = entry.get("state")
    # A live task may be there to try again what failed before.
    if state == "failed" or (failure and task is None):
        reason = failure and read_failure(failure)
        return _run(manifest, run, "failed", job=task and task.job, reason=reason)
    if not answered:
        return _run(manifest, run, "unknown")
    if task is None:
        return _run(manifest, run, "lost")
    if task.state == "RUNNING" and state == "running":
        return _run(manifest, run, "running", job=task.job, **_pace(entry))
    alone = len(manifest.arrays[array][position]) == 1
    return _run(manifest, run, "pending", job=task.job, reason=_why_pending(task, alone))


def _pace(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Round and time left, by the pace since the process began."""
    done, rounds = entry["round"], entry["rounds"]
    passed = done - entry["first"]
    left = None
    if passed > 0:
        left = (rounds - done) * (entry["updated"] - entry["began"]) / passed
    return {"round": done, "rounds": rounds, "seconds_left": left}


def _why_pending(task: Live, alone: bool) -> str | None:
    if task.state == "RUNNING":
        return "starting" if alone else "later in its pack"
    if task.state == "COMPLETING":
        return "its task is just ending"
    return None if task.reason in ("None", "") else task.reason


def _run(manifest: Manifest, run: str, state: str, **more: Any) -> RunStatus:
    spec = manifest.runs[run]
    return RunStatus(
        run=run,
        dataset=spec["dataset"],
        target=spec["target"],
        method=spec["method"],
        seed=spec["seed"],
        state=state,
        **more,
    )


def _with_reasons(runs: list[RunStatus], owners: Mapping[str, Manifest]) -> list[RunStatus]:
    """Say of lost runs how their tasks ended, where accounting knows."""
    lost = [owners[run.run] for run in runs if run.state == "lost"]
    manifests = {manifest.submission: manifest for manifest in lost}
    if not lost:
        return runs
    names = [
        scheduler.job_name(manifest.submission, k)
        for manifest in manifests.values()
        for k in range(len(manifest.arrays))
    ]
    since = min(manifest.created for manifest in manifests.values())[:10]
    ended = scheduler.ended_tasks(names, since)

    def explained(run: RunStatus) -> RunStatus:
        manifest = owners[run.run]
        how = ended.get((manifest.submission, *manifest.places[run.run]))
        if how is None:
            return run
        return dataclasses.replace(run, job=how.job, reason=f"{how.state} {how.exit_code}")

    return [explained(run) if run.state == "lost" else run for run in runs]
