"""What SLURM knows: live tasks, ended ones, its limits. One call of a command for each question."""

from __future__ import annotations

import dataclasses
import getpass
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence

from benchmark.errors import UserError

PREFIX = "fdb-"
"""How the jobs of this project are named: fdb-<submission>-<array>. A name is known before SLURM
gives a number, so a task is never nobody's, whenever its submitter is killed."""
CALL_SECONDS = 60
SCANCEL_AT_ONCE = 500
USUAL_ARRAY = 1001
"""SLURM's own limit on tasks of an array, unless a cluster says otherwise."""

Task = tuple[str, int, int]
"""Submission, array and place in the array: who a task is, whatever its number in SLURM."""


@dataclasses.dataclass(frozen=True)
class Live:
    """A task that SLURM will run, runs or is just ending."""

    job: str
    state: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Ended:
    """How accounting says that a task ended."""

    job: str
    state: str
    exit_code: str


class NoAnswer(UserError):
    """SLURM cannot be asked at present."""


def job_name(submission: str, array: int) -> str:
    return f"{PREFIX}{submission}-{array}"


def live_tasks(users: Iterable[str] = ()) -> dict[Task, Live]:
    """Every task of ours in the queue, from one call of squeue."""
    people = ",".join(sorted({getpass.getuser(), *users}))
    columns = "%j|%F|%K|%T|%r"
    text = _call("squeue", "--noheader", "--array", f"--user={people}", f"--format={columns}")
    found = {}
    for line in text.splitlines():
        name, job, index, state, reason = line.split("|", 4)
        if (task := _task(name, index)) is not None:
            number = f"{job}_{index}" if index.isdigit() else job
            found[task] = Live(number, state, reason)
    return found


def ended_tasks(names: Sequence[str], since: str) -> dict[Task, Ended]:
    """How tasks ended, from one call of sacct; where there is no accounting, nothing is known."""
    columns = "--format=JobName%80,JobID,State,ExitCode"
    flags = ["--noheader", "--parsable2", "--allocations", "--duplicates", "--allusers", columns]
    try:
        text = _call("sacct", *flags, f"--name={','.join(names)}", f"--starttime={since}")
    except NoAnswer:
        return {}
    found = {}
    for line in text.splitlines():
        name, job, state, code = line.split("|", 3)
        for index in expand(job.partition("_")[2]):
            if (task := _task(name, index)) is not None:
                found[task] = Ended(job, state.split()[0] if state else "UNKNOWN", code)
    return found


def largest_array() -> int:
    """The most tasks that one array may have on this cluster."""
    text = _call("scontrol", "show", "config")
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", text, re.MULTILINE)
    size = int(match.group(1)) if match else USUAL_ARRAY
    if size < 1:
        raise UserError("this cluster allows no job arrays (MaxArraySize=0)")
    return size


def partitions() -> list[str]:
    """Names of the cluster's partitions; none when it does not tell."""
    try:
        return sorted(set(_call("sinfo", "--noheader", "--format=%R").split()))
    except NoAnswer:
        return []


def cancel_tasks(ours: Callable[[Task], bool], users: Iterable[str] = ()) -> int:
    """Cancel the live tasks that are `ours`; how many they were."""
    jobs = [live.job for task, live in live_tasks(users).items() if ours(task)]
    for start in range(0, len(jobs), SCANCEL_AT_ONCE):
        _call("scancel", *jobs[start : start + SCANCEL_AT_ONCE])
    return len(jobs)


def require_slurm() -> None:
    for program in ("sbatch", "squeue", "scontrol"):
        if shutil.which(program) is None:
            raise NoAnswer(
                f"no {program} on this machine: submit from a login node of the cluster, "
                f"or use --launcher local"
            )


def expand(indices: str) -> Iterator[str]:
    """`[0-2,5%4]` as 0, 1, 2, 5; a plain job has the one index that is not a number."""
    for part in indices.strip("[]").partition("%")[0].split(","):
        low, dash, high = part.partition("-")
        if dash and low.isdigit() and high.isdigit():
            yield from map(str, range(int(low), int(high) + 1))
        else:
            yield low


def _task(name: str, index: str) -> Task | None:
    """Who a job is by its name; submitit makes an array of one task a plain job."""
    if not name.startswith(PREFIX):
        return None
    submission, dash, array = name.removeprefix(PREFIX).rpartition("-")
    if not dash or not array.isdigit():
        return None
    return submission, int(array), int(index) if index.isdigit() else 0


def _call(*command: str) -> str:
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=CALL_SECONDS)
    except FileNotFoundError as error:
        raise NoAnswer(f"no {command[0]} on this machine: is it a login node?") from error
    except subprocess.TimeoutExpired as error:
        raise NoAnswer(f"{command[0]} gave no answer within {CALL_SECONDS} s") from error
    if answer.returncode:
        lines = answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"]
        raise NoAnswer(f"{command[0]} gave no answer: {lines[-1]}; is the controller up?")
    return answer.stdout
