"""What a task of an array does: its runs, one after the other, each from where it was left.

A task is told to go (USR2 before its time limit, TERM when it is preempted or cancelled) by a
signal. The handler only sets a flag: the run under way saves itself at its next round boundary and
the process ends with CONTINUE; the last lines of the batch script (`ENDING`) then put the task back
in the queue, if SLURM still wants it. Should the round take longer than the warning allows, the
process ends without waiting, and the run continues from the checkpoint before.

A process that dies otherwise is counted by the batch script and its task put back in the queue as
well. A run during which it died more often than `retries` is recorded as failed, so that the rest
of its pack goes on.

One thing is beyond a task: a controller that is killed in the seconds after it accepted a requeue
has forgotten it when it comes back. Such runs are `lost`; the same sweep command continues them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from submitit.helpers import DelayedSubmission

from benchmark.execute import Interrupted, Place, attempt
from benchmark.registry import load_plugin
from benchmark.results import ResultStore
from benchmark.spec import RunSpec
from slurm.ledger import Ledger

CONTINUE = 85
"""Exit code of a task that stopped in good order and has work left."""
DEATHS = "FEDDOMAINBED_DEATHS"
"""Names the file with one line for each death since the last run that ended."""
PROGRESS_SECONDS = 1.0

ENDING = """\
code=$?
[ $code -eq 0 ] && exit 0
task=${{SLURM_ARRAY_JOB_ID:+${{SLURM_ARRAY_JOB_ID}}_}}${{SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}}
for pause in 1 2 4 8 16 32 64; do
  if state=$(scontrol show job --oneliner $task | grep --only-matching 'JobState=[A-Z]*'); then
    [ "$state" = JobState=RUNNING ] || exit $code
    if [ $code -ne {go_on} ] && [ -z "$counted" ]; then
      counted=yes
      echo $code >> "${deaths}" || exit $code
      [ $(wc -l < "${deaths}") -le {limit} ] || exit $code
    fi
    scontrol requeue $task && exit $code
  fi
  sleep $pause
done
exit $code"""
"""After the runs: a task with work left goes back in the queue. One that was cancelled or requeued
meanwhile is no longer RUNNING and stays as it is; a controller that is away is waited for."""


def ending(retries: int) -> list[str]:
    """Lines of the batch script. One restart more than `retries`: it is the one that records the
    run as failed and goes on with the next."""
    text = ENDING.format(go_on=CONTINUE, deaths=DEATHS, limit=retries + 1)
    return text.splitlines()


@dataclasses.dataclass
class Job:
    """The runs of one task, for submitit to pickle here and call there."""

    specs: Sequence[RunSpec]
    root: Path
    place: Place
    plugins: Sequence[str]
    submission: str
    claims: Sequence[int]
    """The number of each run's claim."""
    retries: int
    patience: float

    def __call__(self) -> None:
        with told_to_go(self.patience) as stop:
            for path in self.plugins:
                load_plugin(path)
            place = dataclasses.replace(self.place, device=_device(self.place.device))
            for spec, number in zip(self.specs, self.claims, strict=True):
                if stop():
                    stop.leave()
                Turn(self, spec, place, stop).take(number)

    def checkpoint(self) -> DelayedSubmission:
        """For submitit, whose handler this calls until ours is in place, inside a signal handler:
        there is nothing to save then, the same runs are submitted again."""
        return DelayedSubmission(self)


class Turn:
    """One run's turn in its task."""

    def __init__(self, job: Job, spec: RunSpec, place: Place, stop: Stop):
        self.job, self.spec, self.place, self.stop = job, spec, place, stop
        self.store = ResultStore(job.root)
        self.ledger = Ledger(job.root)
        self.first: int | None = None
        self.began = self.noted = 0.0

    def take(self, number: int) -> None:
        """Do the run, unless it is not ours any more or has had its chances."""
        if self.ledger.taken_over(self.spec.id, number):
            return self.say("left to a later submission")
        last = self.ledger.progress(self.spec.id) or {}
        if last.get("submission") == self.job.submission:
            if last["state"] == "failed":
                return self.say("has failed already")
            if last["state"] == "running" and deaths() > self.job.retries:
                return self.give_up()
        self.began = time.time()
        self.note("running", 0)
        try:
            reason = attempt(self.spec, self.store, self.place, self.on_round, self.stop)
        except Interrupted:
            self.say("has saved its place")
            self.note("stopped", self.stop.reached)
            self.stop.leave()
        self.ended(reason)

    def ended(self, reason: str | None) -> None:
        self.stop.advanced = True
        forget_deaths()
        if reason is None:
            self.ledger.drop_progress(self.spec.id)
            self.say(f"is done, {time.time() - self.began:.1f} s")
        else:
            self.note("failed", 0)
            self.say(f"failed: {reason}")

    def give_up(self) -> None:
        """The process died in this run again and again: it is the run that fails, not its pack."""
        reason = f"the process died {deaths()} times during this run; out of memory?"
        self.store.put_failure(self.spec, reason, "")
        self.ended(reason)

    def on_round(self, done: int) -> None:
        now = time.time()
        if self.first is None:
            self.first, self.began = done, now
            self.say(f"continues after round {done}" if done else "begins")
        elif done > self.first:
            self.stop.advanced = True
        self.stop.reached = done
        if now - self.noted >= PROGRESS_SECONDS:
            self.note("running", done)

    def note(self, state: str, done: int) -> None:
        self.noted = time.time()
        entry = {
            "submission": self.job.submission,
            "state": state,
            "round": done,
            "rounds": self.spec.training.rounds,
            "first": self.first or 0,
            "began": self.began,
            "updated": self.noted,
            "node": socket.gethostname(),
            "pid": os.getpid(),
        }
        self.ledger.put_progress(self.spec.id, entry)

    def say(self, what: str) -> None:
        print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {self.spec} {what}", flush=True)


class Stop:
    """Whether the task was told to go; and whether it got anywhere since it began."""

    def __init__(self) -> None:
        self.told = False
        self.advanced = False
        self.reached = 0

    def __call__(self) -> bool:
        return self.told

    def leave(self) -> NoReturn:
        """A task that got nowhere counts as dead: one that cannot even finish a single round in
        its time must not come back for ever."""
        sys.exit(CONTINUE if self.advanced else 1)


@contextlib.contextmanager
def told_to_go(patience: float) -> Iterator[Stop]:
    """While this lasts, USR2 and TERM ask the run under way to stop at its next round boundary.

    After `patience` seconds the process ends anyway.
    """
    stop = Stop()

    def ask(signum, frame) -> None:
        stop.told = True
        signal.setitimer(signal.ITIMER_REAL, patience)

    def insist(signum, frame) -> None:
        stop.leave()

    handlers = {signal.SIGUSR2: ask, signal.SIGTERM: ask, signal.SIGALRM: insist}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield stop
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def deaths() -> int:
    """How often this task's process has died since a run of it ended."""
    try:
        return len(Path(os.environ[DEATHS]).read_text().splitlines())
    except (KeyError, OSError):
        return 0


def forget_deaths() -> None:
    with contextlib.suppress(KeyError, OSError):
        Path(os.environ[DEATHS]).unlink(missing_ok=True)


def _device(text: str) -> str:
    from benchmark.arguments import devices

    return devices(text)[0]
