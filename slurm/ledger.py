"""Who does which run: the folder `.slurm` of a store. No locks, no file with two writers.

    .slurm/submissions/<submission>/manifest.json   its runs, arrays and settings; written once,
                                                    before the first sbatch
    .slurm/submissions/<submission>/submitting      there while its shell is at work
    .slurm/submissions/<submission>/<array>/        submitit's scripts, pickles and logs
    .slurm/claims/<run>.<n> -> <submission>         the n-th owner of a run
    .slurm/progress/<run>                           how far the run is; written by its task alone

A claim is a symbolic link, because making one is atomic on every file system and it is there with
its content at once. The owner of a run is its highest claim; it is taken over by making the next
one, which of several shells only one can do; none is ever removed. A submission has its marker
before its first claim and its manifest before its first job, so a claim is good while the marker
or a job is alive, and can be taken over afterwards.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmark.errors import UserError
from datasets.base import write_atomically
from slurm.manifest import Manifest

MARKER_SECONDS = 600.0
"""After this long without a sign, a shell is taken to be dead."""


@dataclasses.dataclass(frozen=True)
class Claim:
    """The n-th claim of a run."""

    number: int
    submission: str


class Ledger:
    """The `.slurm` folder of a store."""

    def __init__(self, root: Path):
        self.folder = Path(root).absolute() / ".slurm"
        self._read: dict[str, Manifest] = {}

    def submission_folder(self, submission: str) -> Path:
        return self.folder / "submissions" / submission

    def array_folder(self, submission: str, array: int) -> Path:
        return self.submission_folder(submission) / str(array)

    def open_submission(self) -> str:
        """A new name with its marker: from now on this shell may claim."""
        submission = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        who = json.dumps({"host": socket.gethostname(), "pid": os.getpid()})
        try:
            (self.folder / "claims").mkdir(parents=True, exist_ok=True)
            write_atomically(self._marker(submission), lambda path: path.write_text(who))
        except OSError:
            self.drop_submission(submission)
            raise
        return submission

    def still_submitting(self, submission: str) -> None:
        """Tell other shells that this one is alive."""
        os.utime(self._marker(submission))

    def close_submission(self, submission: str) -> None:
        with contextlib.suppress(OSError):  # then it ends with its process
            self._marker(submission).unlink()

    def drop_submission(self, submission: str) -> None:
        """Leave nothing of a submission that came to nothing; its claims count for nothing then."""
        shutil.rmtree(self.submission_folder(submission), ignore_errors=True)

    def being_submitted(self, now_as: str) -> set[str]:
        """Submissions whose shells are still at work; `now_as` is our own, whose marker is fresh:
        its time is the present by the file system's own clock."""
        now = self._marker(now_as).stat().st_mtime
        alive = set()
        for submission in self.submissions():
            with contextlib.suppress(OSError, ValueError, KeyError):
                marker = self._marker(submission)
                age = now - marker.stat().st_mtime
                who = json.loads(marker.read_text())
                if _shell_lives(who["host"], int(who["pid"]), age):
                    alive.add(submission)
        return alive

    def submissions(self) -> list[str]:
        """Names of all submissions, oldest first."""
        folder = self.folder / "submissions"
        return sorted(os.listdir(folder)) if folder.is_dir() else []

    def write(self, manifest: Manifest) -> None:
        path = self.submission_folder(manifest.submission) / "manifest.json"
        text = json.dumps(manifest.to_json())
        write_atomically(path, lambda temporary: temporary.write_text(text))

    def manifest(self, submission: str) -> Manifest | None:
        """The manifest of a submission; None if it has none (yet) or it cannot be read."""
        if submission not in self._read:
            path = self.submission_folder(submission) / "manifest.json"
            try:
                self._read[submission] = Manifest.from_json(json.loads(path.read_text()))
            except (OSError, ValueError, KeyError, TypeError):
                return None
        return self._read[submission]

    def manifests(self) -> list[Manifest]:
        """All manifests, oldest first."""
        found = (self.manifest(submission) for submission in self.submissions())
        return [manifest for manifest in found if manifest is not None]

    def owners(self) -> dict[str, Manifest]:
        """The submission that each run stands in, the last to claim it where there were several:
        claims count up, whatever the clocks of the machines say."""
        found: dict[str, Manifest] = {}
        for manifest in self.manifests():
            for run, number in manifest.claims.items():
                if run not in found or found[run].claims[run] < number:
                    found[run] = manifest
        return found

    def claims(self) -> dict[str, Claim]:
        """The present owner of every run that ever had one."""
        highest: dict[str, int] = {}
        folder = self.folder / "claims"
        for name in os.listdir(folder) if folder.is_dir() else []:
            run, _, number = name.rpartition(".")
            if number.isdigit():
                highest[run] = max(highest.get(run, 0), int(number))
        return {
            run: Claim(number, os.readlink(folder / f"{run}.{number}"))
            for run, number in highest.items()
        }

    def take(self, run: str, number: int, submission: str) -> bool:
        """Make the `number`-th claim of a run; False when another shell was faster."""
        try:
            os.symlink(submission, self._claim(run, number))
        except FileExistsError:
            return False
        return True

    def taken_over(self, run: str, number: int) -> bool:
        """Whether somebody has claimed a run after its `number`-th claim."""
        return os.path.lexists(self._claim(run, number + 1))

    def progress(self, run: str) -> dict[str, Any] | None:
        try:
            return json.loads((self.folder / "progress" / run).read_text())
        except (OSError, ValueError):
            return None

    def put_progress(self, run: str, entry: Mapping[str, Any]) -> None:
        """Note how far a run is. It is for people to look at: failing to write it stops nothing."""
        text = json.dumps(entry)
        with contextlib.suppress(OSError):
            write_atomically(self.folder / "progress" / run, lambda path: path.write_text(text))

    def drop_progress(self, run: str) -> None:
        with contextlib.suppress(OSError):
            (self.folder / "progress" / run).unlink(missing_ok=True)

    def find_run(self, prefix: str) -> tuple[Manifest, str]:
        """The run whose id begins so, with its submission."""
        owners = self.owners()
        found = [run for run in owners if run.startswith(prefix)]
        if len(found) > 1:
            raise UserError(f"run {prefix!r} may be {', '.join(found[:5])}; write more of it")
        if not found:
            raise UserError(
                f"no run {prefix!r} was submitted from {str(self.folder.parent)!r}; "
                f"python -m slurm status --runs lists them"
            )
        return owners[found[0]], found[0]

    def _claim(self, run: str, number: int) -> Path:
        return self.folder / "claims" / f"{run}.{number}"

    def _marker(self, submission: str) -> Path:
        return self.submission_folder(submission) / "submitting"


def _shell_lives(host: str, pid: int, age: float) -> bool:
    """A shell lives by its sign; one of this machine can be looked at, too."""
    if age >= MARKER_SECONDS:
        return False
    if host != socket.gethostname():
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
