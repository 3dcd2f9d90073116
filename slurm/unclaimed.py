"""Which runs nobody takes care of: what a submission may claim."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from time import monotonic, sleep

from benchmark.spec import RunSpec
from slurm import scheduler
from slurm.ledger import Ledger
from slurm.manifest import Manifest
from slurm.scheduler import Task
from slurm.wording import counted

ENDING_SECONDS = 90.0
"""How long tasks that are just ending are waited for; SLURM gives them half a minute."""


def unclaimed(
    specs: Sequence[RunSpec], ledger: Ledger, submission: str
) -> list[tuple[RunSpec, int]]:
    """Runs without a living owner, each with the number of the claim to make.

    Claims and markers are read before the queue: who was still submitting then is seen by its
    marker, and who had finished by its jobs.
    """
    claims = ledger.claims()
    submitting = ledger.being_submitted(submission)
    manifests = {manifest.submission: manifest for manifest in ledger.manifests()}
    taken = set()
    for task in settled_tasks({spec.id for spec in specs}, manifests):
        if task[0] in manifests:
            taken.update((task[0], run) for run in runs_of(task, manifests))
        else:
            submitting.add(task[0])  # its manifest cannot be read: all it has claimed may be live
    free = []
    for spec in specs:
        claim = claims.get(spec.id)
        if claim is None:
            free.append((spec, 1))
        elif claim.submission not in submitting and (claim.submission, spec.id) not in taken:
            free.append((spec, claim.number + 1))
    return free


def settled_tasks(wanted: set[str], manifests: Mapping[str, Manifest]) -> Collection[Task]:
    """The live tasks. One that is just ending is waited for: after `scancel` its runs are free in a
    moment, and one that was requeued has them still."""
    deadline = monotonic() + ENDING_SECONDS
    said = False
    while True:
        live = scheduler.live_tasks(manifest.user for manifest in manifests.values())
        ending = [
            task
            for task, how in live.items()
            if how.state == "COMPLETING" and not wanted.isdisjoint(runs_of(task, manifests))
        ]
        if not ending or monotonic() > deadline:
            return live
        if not said:
            print(f"waiting for {counted(len(ending), 'ending task')}", file=sys.stderr)
            said = True
        sleep(1)


def runs_of(task: Task, manifests: Mapping[str, Manifest]) -> list[str]:
    """Ids of the runs of a task."""
    submission, array, position = task
    return manifests[submission].arrays[array][position] if submission in manifests else []
