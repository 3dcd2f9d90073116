"""submitit's executor with a profile's parameters, and what sbatch may complain about."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from submitit import SlurmExecutor
from submitit.core.utils import FailedJobError, FailedSubmissionError

from benchmark.errors import UserError
from slurm import scheduler
from slurm.job import DEATHS, Job, ending
from slurm.profile import Profile

PAUSES = (2.0, 4.0, 8.0, 16.0, 32.0)
"""Seconds between attempts while the controller is busy or away."""
BUSY = re.compile(
    r"contact slurm controller|timed out|temporarily|Zero Bytes|Connection refused", re.IGNORECASE
)
FULL = re.compile(r"submit limit|SubmitJob|MaxJobCount|maximum (number|job)", re.IGNORECASE)


class LimitReached(Exception):
    """The cluster takes no more tasks of this user at present."""


class Busy(UserError):
    """The controller does not answer at present."""


class Executor(SlurmExecutor):
    """Submits arrays of `Job`s."""

    def __init__(
        self,
        folder: Path,
        array: tuple[str, int],
        profile: Profile,
        threads: int,
        parallelism: int,
    ):
        """`array` is the submission and the number of the array in it."""
        super().__init__(folder, python=profile.python)
        self.array = array
        name = scheduler.job_name(*array)
        self.update_parameters(**parameters(folder, name, profile, threads, parallelism))

    @classmethod
    def affinity(cls) -> int:
        """A script can be shown where there is no SLURM."""
        return 2

    def script(self, count: int) -> str:
        """The batch script of an array of `count` tasks."""
        self.parameters["map_count"] = count if count > 1 else None
        text = self._make_submission_file_text(self._submitit_command_str, "")
        del self.parameters["map_count"]
        return text

    def check(self, count: int) -> None:
        """Let sbatch judge the script without submitting it."""
        command = ["sbatch", "--test-only"]
        answer = subprocess.run(command, input=self.script(count), capture_output=True, text=True)
        if answer.returncode:
            raise refusal(answer.stderr, self.parameters.get("partition"))

    def submit_jobs(self, jobs: Sequence[Job], pauses: Sequence[float] = PAUSES) -> str:
        """Submit one array, patiently; its number in SLURM."""
        for pause in pauses:
            try:
                return self._submit_once(jobs)
            except Busy:
                time.sleep(pause)
            # It may have been accepted although the answer got lost: without its pickles it would
            # do nothing.
            with contextlib.suppress(scheduler.NoAnswer):
                scheduler.cancel_tasks(lambda task: task[:2] == self.array)
        return self._submit_once(jobs)

    def _submit_once(self, jobs: Sequence[Job]) -> str:
        try:
            return self.submit_array(jobs)[0].job_id.partition("_")[0]
        except (FailedJobError, FailedSubmissionError) as error:
            message = str(error)
        if FULL.search(message):
            raise LimitReached(_last_line(message))
        raise refusal(message, self.parameters.get("partition"))


def parameters(
    folder: Path, name: str, profile: Profile, threads: int, parallelism: int
) -> dict[str, Any]:
    """A profile in submitit's words."""
    extra: dict[str, Any] = {"requeue": True}
    for text in profile.sbatch:
        key, sign, value = text.lstrip("-").partition("=")
        extra[key] = value if sign else True
    setup = [f"module load {module} || exit 1" for module in profile.modules]
    setup += profile.setup
    setup += [
        "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK",
        f"export {DEATHS}={shlex.quote(str(folder))}/${{SLURM_ARRAY_TASK_ID:-0}}.deaths",
    ]
    chosen = {
        "job_name": name,
        "partition": profile.partition,
        "account": profile.account,
        "qos": profile.qos,
        "constraint": profile.constraint,
        "time": profile.minutes,
        "gpus_per_node": profile.gpus or None,
        "cpus_per_task": profile.cpus or threads,
        "mem": profile.memory,
        "array_parallelism": parallelism,
        "signal_delay_s": profile.warning,
        "setup": setup,
        "teardown": ending(profile.retries),
        "additional_parameters": extra,
    }
    return {key: value for key, value in chosen.items() if value is not None}


def refusal(message: str, partition: str | None) -> UserError:
    """sbatch's complaint in one line that says what to do."""
    line = _last_line(message)
    if BUSY.search(message):
        return Busy(f"sbatch refused: {line}; is the controller up? Try again later")
    hint = "change the profile or pass --slurm KEY=VALUE"
    if re.search(r"partition", line, re.IGNORECASE):
        valid = ", ".join(scheduler.partitions()) or "unknown"
        hint = f"partition {partition!r}; this cluster has: {valid}"
    return UserError(f"sbatch refused: {line}; {hint}")


def _last_line(message: str) -> str:
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()]
    last = lines[-1] if lines else "no reason given"
    return re.sub(
        r"^(sbatch: )?(error: )?(Batch job submission failed: |allocation failure: )?", "", last
    )
