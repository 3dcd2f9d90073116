"""From runs to live arrays: claim, pack, write down, submit; and what that would be."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from time import monotonic, sleep

from benchmark.errors import UserError
from benchmark.execute import Place
from benchmark.results import ResultStore
from benchmark.spec import RunSpec
from slurm import scheduler
from slurm.executor import Executor, LimitReached
from slurm.job import Job
from slurm.ledger import Ledger, Manifest, new_manifest
from slurm.packing import deal, pack
from slurm.profile import Profile
from slurm.scheduler import Task

BETWEEN_ARRAYS = 1.0
"""Seconds between two calls of sbatch: the controller serves others, too."""
ENDING_SECONDS = 90.0
"""How long tasks that are just ending are waited for; SLURM gives them half a minute."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What every task of a submission has in common."""

    root: Path
    place: Place
    plugins: tuple[str, ...]
    profile: Profile

    @classmethod
    def of(cls, root: Path, place: Place, plugins: Sequence[str], profile: Profile) -> Request:
        """Nodes start in another folder, so paths become absolute; the profile says whether there
        is a GPU, because this machine may have none."""
        kind = place.device.partition(":")[0]
        if kind not in ("auto", "cpu", "cuda"):
            raise UserError(f"--device {place.device!r}: write auto, cpu or cuda")
        if kind == "cuda" and not profile.gpus:
            raise UserError("--device cuda: this profile asks for no GPU; add --slurm gpus=1")
        device = "cuda" if profile.gpus and kind != "cpu" else "cpu"
        weights = place.weights and str(Path(place.weights).absolute())
        place = dataclasses.replace(
            place, data=place.data.absolute(), device=device, weights=weights
        )
        files = tuple(str(Path(path).absolute()) for path in plugins)
        return cls(Path(root).absolute(), place, files, profile)

    def executor(self, ledger: Ledger, submission: str, array: int, arrays: int) -> Executor:
        """The user's limit on tasks at the same time is shared by the arrays."""
        folder = ledger.array_folder(submission, array)
        parallelism = max(1, self.profile.array_parallelism // arrays)
        name = scheduler.job_name(submission, array)
        return Executor(folder, name, self.profile, self.place.threads, parallelism)

    def job(self, specs: Sequence[RunSpec], submission: str, numbers: dict[str, int]) -> Job:
        return Job(
            specs=list(specs),
            root=self.root,
            place=self.place,
            plugins=list(self.plugins),
            submission=submission,
            claims=[numbers[spec.id] for spec in specs],
            retries=self.profile.retries,
            patience=self.profile.patience,
        )


Arrays = list[list[list[RunSpec]]]
Cost = Callable[[Sequence[RunSpec]], list[float]]


def arrange(specs: Sequence[RunSpec], cost: Cost, profile: Profile, largest: int) -> Arrays:
    """Arrays of tasks of runs."""
    tasks = pack(cost(specs), profile.capacity)
    return deal([[specs[k] for k in task] for task in tasks], largest)


@dataclasses.dataclass(frozen=True)
class Submitted:
    """What became of the runs that were to be submitted."""

    runs: int
    tasks: int
    jobs: list[str]
    live: int
    """Runs that other jobs, or another shell at this moment, take care of."""
    refused: str | None
    """Why the cluster took only a part."""


def submit(
    specs: Sequence[RunSpec],
    request: Request,
    cost: Cost,
    check: Callable[[Sequence[RunSpec]], None] = lambda specs: None,
) -> Submitted:
    """Submit every run that no live job has, after `check` found no fault with them. All of it or,
    with one clear line, nothing; only when the cluster's limit on submitted tasks is reached, a
    part."""
    scheduler.require_slurm()
    ledger = Ledger(request.root)
    try:
        submission = ledger.open_submission()
    except OSError as error:
        raise UserError(f"cannot write to {str(ledger.folder)!r}: {error.strerror}") from error
    try:
        done = _submit(specs, request, cost, check, ledger, submission)
    except BaseException as error:
        ledger.drop_submission(submission)
        if isinstance(error, OSError):
            reason = f"{error.strerror or error}; nothing was submitted"
            raise UserError(f"cannot write to {str(ledger.folder)!r}: {reason}") from error
        raise
    if done.runs:
        ledger.close_submission(submission)
    else:
        ledger.drop_submission(submission)
    return done


def _submit(
    specs: Sequence[RunSpec],
    request: Request,
    cost: Cost,
    check: Callable[[Sequence[RunSpec]], None],
    ledger: Ledger,
    submission: str,
) -> Submitted:
    """Find what is free, ask whether it would be accepted, claim it, send it."""
    largest = scheduler.largest_array()
    free = unclaimed(specs, ledger, submission)
    if free:
        wanted = [spec for spec, _ in free]
        check(wanted)
        trial = arrange(wanted, cost, request.profile, largest)
        request.executor(ledger, submission, 0, len(trial)).check(len(trial[0]))
    claimed = {spec.id: number for spec, number in free if ledger.take(spec.id, number, submission)}
    ours = [spec for spec, _ in free if spec.id in claimed]
    if not ours:  # all are live, or another shell was faster
        return Submitted(0, 0, [], len(specs), None)
    arrays = arrange(ours, cost, request.profile, largest)
    done = _send(arrays, claimed, request, ledger, submission)
    return dataclasses.replace(done, live=len(specs) - len(ours))


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
            print(f"waiting for {len(ending)} tasks that are just ending", file=sys.stderr)
            said = True
        sleep(1)


def runs_of(task: Task, manifests: Mapping[str, Manifest]) -> list[str]:
    """Ids of the runs of a task."""
    submission, array, position = task
    return manifests[submission].arrays[array][position] if submission in manifests else []


def _send(
    arrays: Arrays, numbers: dict[str, int], request: Request, ledger: Ledger, submission: str
) -> Submitted:
    """Write down, then submit array after array."""
    manifest = _manifest(arrays, numbers, request, submission)
    ledger.write(manifest)
    jobs: list[str] = []
    refused = None
    try:
        for k, tasks in enumerate(arrays):
            if k:
                sleep(BETWEEN_ARRAYS)
            ledger.still_submitting(submission)
            executor = request.executor(ledger, submission, k, len(arrays))
            jobs.append(executor.submit_jobs([request.job(t, submission, numbers) for t in tasks]))
    except LimitReached as limit:
        if not jobs:
            raise UserError(f"sbatch refused: {limit}; nothing was submitted") from limit
        refused = str(limit)
        ledger.write(manifest.first_arrays(len(jobs)))
    except BaseException:
        if jobs:
            scheduler.cancel(jobs)
        raise
    sent = arrays[: len(jobs)]
    runs = sum(len(task) for tasks in sent for task in tasks)
    return Submitted(runs, sum(map(len, sent)), jobs, 0, refused)


def _manifest(
    arrays: Arrays, numbers: dict[str, int], request: Request, submission: str
) -> Manifest:
    place = {**dataclasses.asdict(request.place), "data": os.fspath(request.place.data)}
    return new_manifest(
        submission,
        [spec for tasks in arrays for task in tasks for spec in task],
        profile=dataclasses.asdict(request.profile),
        place=place,
        plugins=list(request.plugins),
        arrays=[[[spec.id for spec in task] for task in tasks] for tasks in arrays],
        claims=numbers,
    )


def dry_run(specs: Sequence[RunSpec], request: Request, cost: Cost) -> str:
    """What a submission would be, to the batch script; nothing is written."""
    lines = []
    try:
        largest = scheduler.largest_array()
    except scheduler.NoAnswer as error:
        largest = 1001
        lines.append(f"note: {error}; assuming arrays of at most {largest} tasks")
    arrays = arrange(specs, cost, request.profile, largest)
    seconds = cost(specs)
    tasks = sum(map(len, arrays))
    lines.append(
        f"{len(specs)} runs in {tasks} tasks in {len(arrays)} arrays, "
        f"about {sum(seconds) / 3600:.3g} node-hours"
    )
    limit = 60 * request.profile.minutes - request.profile.warning
    if long := sum(one > limit for one in seconds):
        lines.append(
            f"{long} runs are longer than the time limit of {request.profile.time}: "
            f"they go back in the queue and continue"
        )
    executor = request.executor(Ledger(request.root), "SUBMISSION", 0, len(arrays))
    return "\n".join([*lines, "", executor.script(len(arrays[0]))])


def summary(done: Submitted, store: ResultStore) -> str:
    """What was submitted, for people."""
    lines = []
    if done.runs:
        numbers = ", ".join(done.jobs[:5]) + ", …" * (len(done.jobs) > 5)
        lines.append(
            f"submitted {done.runs} runs in {done.tasks} tasks in {len(done.jobs)} arrays "
            f"(jobs {numbers})"
        )
    if done.live:
        lines.append(f"{done.live} runs are in live jobs already")
    if done.refused:
        lines.append(
            f"the cluster takes no more at present ({done.refused}); "
            f"the same command submits the rest later"
        )
    lines.append(f"watch them: python -m slurm status --watch --out {store.root}")
    return "\n".join(lines)
