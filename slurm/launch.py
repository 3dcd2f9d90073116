"""From runs to live arrays: claim, pack, write down, submit; and what that would be."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import Callable, Mapping, Sequence
from time import sleep

from benchmark.errors import UserError
from benchmark.results import ResultStore
from benchmark.spec import RunSpec
from slurm import scheduler
from slurm.executor import LimitReached
from slurm.ledger import Ledger
from slurm.request import Arrays, Cost, Request
from slurm.unclaimed import unclaimed
from slurm.wording import are, counted

BETWEEN_ARRAYS = 1.0
"""Seconds between two calls of sbatch: the controller serves others, too."""

Check = Callable[[Sequence[RunSpec]], None]


@dataclasses.dataclass(frozen=True)
class Submitted:
    """What became of the runs that were to be submitted."""

    runs: int
    tasks: int
    jobs: list[str]
    live: int
    """Runs that other jobs, or another shell at this moment, take care of."""
    refused: str | None = None
    """Why the cluster took only a part."""


def submit(
    specs: Sequence[RunSpec], request: Request, cost: Cost, check: Check = lambda specs: None
) -> Submitted:
    """Submit every run that no live job has, after `check` found no fault with them. All of it or,
    with one clear line, nothing; only when the cluster's limit on submitted tasks is reached, a
    part."""
    scheduler.require_slurm()
    ledger = Ledger(request.root)
    try:
        submission = ledger.open_submission()
        try:
            done = _submit(specs, request, cost, check, ledger, submission)
        except BaseException:
            ledger.drop_submission(submission)
            raise
    except OSError as error:
        reason = f"{error.strerror or error}; nothing was submitted"
        raise UserError(f"cannot write to {str(ledger.folder)!r}: {reason}") from error
    if done.runs:
        ledger.close_submission(submission)
    else:
        ledger.drop_submission(submission)
    return done


def _submit(
    specs: Sequence[RunSpec],
    request: Request,
    cost: Cost,
    check: Check,
    ledger: Ledger,
    submission: str,
) -> Submitted:
    """Find what is free, ask whether it would be accepted, claim it, send it."""
    largest = scheduler.largest_array()
    free = unclaimed(specs, ledger, submission)
    if free:
        wanted = [spec for spec, _ in free]
        check(wanted)
        trial = request.arrange(wanted, cost, largest)
        request.executor(ledger, submission, 0, len(trial)).check(len(trial[0]))
    ledger.still_submitting(submission)
    claimed = {spec.id: number for spec, number in free if ledger.take(spec.id, number, submission)}
    ours = [spec for spec, _ in free if spec.id in claimed]
    if not ours:  # all are live, or another shell was faster
        return Submitted(0, 0, [], live=len(specs))
    arrays = request.arrange(ours, cost, largest)
    jobs, refused = _send(arrays, claimed, request, ledger, submission)
    sent = [task for tasks in arrays[: len(jobs)] for task in tasks]
    return Submitted(sum(map(len, sent)), len(sent), jobs, len(specs) - len(ours), refused)


def _send(
    arrays: Arrays, numbers: Mapping[str, int], request: Request, ledger: Ledger, submission: str
) -> tuple[list[str], str | None]:
    """Write down, then submit array after array; their numbers in SLURM, and why there are not
    more."""
    manifest = request.manifest(arrays, submission, numbers)
    ledger.write(manifest)
    jobs: list[str] = []
    try:
        for k, tasks in enumerate(arrays):
            if k:
                sleep(BETWEEN_ARRAYS)
            ledger.still_submitting(submission)
            executor = request.executor(ledger, submission, k, len(arrays))
            try:
                array = [request.job(specs, submission, numbers) for specs in tasks]
                jobs.append(executor.submit_jobs(array))
            except LimitReached as limit:
                if not jobs:
                    raise UserError(f"sbatch refused: {limit}; nothing was submitted") from limit
                ledger.write(manifest.first_arrays(len(jobs)))
                return jobs, str(limit)
    except BaseException:
        # Also an array that was accepted unheard. One that SLURM cannot be asked about now does
        # nothing when it starts: its folder is gone.
        with contextlib.suppress(scheduler.NoAnswer):
            scheduler.cancel_tasks(lambda task: task[0] == submission)
        raise
    return jobs, None


def dry_run(specs: Sequence[RunSpec], request: Request, cost: Cost) -> str:
    """What a submission would be, to the batch script; nothing is written."""
    lines = []
    try:
        largest = scheduler.largest_array()
    except scheduler.NoAnswer as error:
        largest = scheduler.USUAL_ARRAY
        lines.append(f"note: {error}; assuming arrays of at most {largest} tasks")
    arrays = request.arrange(specs, cost, largest)
    seconds = cost(specs)
    shape = _shape(len(specs), sum(map(len, arrays)), len(arrays))
    lines.append(f"{shape}, about {sum(seconds) / 3600:.3g} node-hours")
    limit = 60 * request.profile.minutes - request.profile.warning
    if long := sum(one > limit for one in seconds):
        lines.append(
            f"{counted(long, 'run')} {are(long)} longer than the time limit of "
            f"{request.profile.time}: back in the queue, then on from where it was"
        )
    executor = request.executor(Ledger(request.root), "SUBMISSION", 0, len(arrays))
    return "\n".join([*lines, "", executor.script(len(arrays[0]))])


def summary(done: Submitted, store: ResultStore) -> str:
    """What was submitted, for people."""
    lines = []
    if done.runs:
        numbers = ", ".join(done.jobs[:5]) + ", …" * (len(done.jobs) > 5)
        shape = _shape(done.runs, done.tasks, len(done.jobs))
        lines.append(f"submitted {shape} (job {numbers})")
    if done.live:
        lines.append(f"{counted(done.live, 'run')} {are(done.live)} in live jobs already")
    if done.refused:
        lines.append(
            f"the cluster takes no more at present ({done.refused}); "
            f"the same command submits the rest later"
        )
    where = shlex.quote(str(store.root))
    lines.append(f"watch them: python -m slurm status --watch --out {where}")
    return "\n".join(lines)


def _shape(runs: int, tasks: int, arrays: int) -> str:
    return f"{counted(runs, 'run')} in {counted(tasks, 'task')} in {counted(arrays, 'array')}"
