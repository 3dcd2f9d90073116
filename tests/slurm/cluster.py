"""A real SLURM on this machine for the tests: munge, MariaDB, slurmdbd, slurmctld and slurmd.

Everything lives in one temporary folder and listens on ports of its own, so that two test runs on
one machine never meet; every daemon runs in the foreground as a child of this process and is ended
by its process id, and by nothing else; should this process die first, the kernel ends them.
`python -m tests.slurm.cluster` starts one by hand.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.slurm.cluster_files import GRANT, SLURM_CONF, SLURMDBD_CONF

PROGRAMS = (
    "munge",
    "munged",
    "mariadb",
    "mariadbd",
    "mariadb-install-db",
    "slurmdbd",
    "slurmctld",
    "slurmd",
    "sbatch",
    "srun",
    "sacctmgr",
)
CPUS = 4
"""More than some machines have: the runs of the tests mostly sleep."""
MAX_ARRAY_SIZE = 8
"""Small, so that a few tasks need several arrays."""
PORTS = range(10_000, 32_000)
"""Below those that the kernel gives to outgoing connections."""
PATIENCE = 60.0


def missing() -> str | None:
    """Why no SLURM can be started here, or None."""
    absent = [name for name in PROGRAMS if _program(name) is None]
    if absent:
        packages = "slurm-wlm munge slurmdbd mariadb-server"
        return f"a real SLURM needs {', '.join(absent)} (Debian: {packages})"
    if os.geteuid() != 0:
        return "the SLURM daemons of the tests must be started as root"
    return None


class CannotStart(Exception):
    """This machine does not let SLURM's daemons run."""


class Cluster:
    """Controller, accounting and one node; `environment` is what its commands need."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
        self.folder.chmod(0o755)
        self.daemons: dict[str, subprocess.Popen] = {}
        controller, node, accounting, database = _free_ports(4)
        self.values = {
            "folder": self.folder,
            "controller_port": controller,
            "node_port": node,
            "accounting_port": accounting,
            "database_port": database,
            "cpus": CPUS,
            "max_array_size": MAX_ARRAY_SIZE,
        }
        self.environment = _outside_of_jobs(os.environ)
        self.environment["SLURM_CONF"] = str(self.folder / "slurm.conf")

    def start(self) -> Cluster:
        """Start everything and let it do a first job; `CannotStart` if this machine prevents it."""
        try:
            self._start()
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            self.stop()
            raise CannotStart(str(error)) from error
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self) -> None:
        for name in ("state", "spool", "database"):
            (self.folder / name).mkdir()
        self._write("slurm.conf", SLURM_CONF, 0o644)
        self._write("slurmdbd.conf", SLURMDBD_CONF, 0o600)
        self._start_munge()
        self._start_database()
        self._daemon("slurmdbd", "-D")
        self._until(lambda: self._works("sacctmgr", "-i", "add", "cluster", "test"), "slurmdbd")
        self.start_controller()
        self._daemon("slurmd", "-D", "-N", "localhost")
        self._until(lambda: "idle" in self.run("sinfo", "-h", "-o", "%T"), "slurmd")
        self.run("srun", "--mem=100", "true")

    def start_controller(self) -> None:
        self._daemon("slurmctld", "-D")
        self._until(lambda: self._works("scontrol", "ping"), "slurmctld")

    def save_state(self, job: str) -> None:
        """Wait until the controller has written down all that it knows by now: it does so every
        few seconds, and what it learnt in between dies with it."""
        mark = f"saved-{time.monotonic_ns()}"
        self.run("scontrol", "update", f"JobId={job}", f"Comment={mark}")
        path = self.folder / "state" / "job_state"
        self._until(lambda: path.exists() and mark.encode() in path.read_bytes(), "the saved state")

    def kill_controller(self) -> None:
        """As if its machine had lost power."""
        daemon = self.daemons.pop("slurmctld")
        daemon.kill()
        daemon.wait()

    def run(self, *command: str) -> str:
        """The output of one of SLURM's commands."""
        answer = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=PATIENCE
        )
        if answer.returncode:
            raise RuntimeError(f"{' '.join(command)}: {answer.stderr.strip()}")
        return answer.stdout

    def stop(self) -> None:
        """End the jobs, then every daemon in the reverse order of their start."""
        controller = self.daemons.get("slurmctld")
        if controller and controller.poll() is None:
            with contextlib.suppress(OSError, RuntimeError, subprocess.SubprocessError):
                self.run("scancel", "--user=root")
                self._until(lambda: not self.run("squeue", "-h"), "the jobs' end", 20)
        for name in reversed(list(self.daemons)):
            daemon = self.daemons.pop(name)
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for process in self._left_over():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self, name: str) -> str:
        """The last lines of a daemon's log."""
        path = self.folder / f"{name}.log"
        return "\n".join(path.read_text().splitlines()[-30:]) if path.exists() else ""

    def last_words(self, name: str) -> str:
        """The last line that a daemon printed."""
        lines = (self.folder / f"{name}.out").read_text().split("\n")
        return next((line for line in reversed(lines) if line.strip()), "without a word")

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        files = [f"--{kind}-file={self.folder}/munge.{kind}" for kind in ("key", "pid", "seed")]
        log, address = f"--log-file={self.folder}/munged.log", f"{self.folder}/munge.socket"
        self._daemon("munged", "--foreground", "--force", *files, log, f"--socket={address}")
        self._until(lambda: self._works("munge", "-n", f"--socket={address}"), "munged")

    def _start_database(self) -> None:
        data, address = self.folder / "database", self.folder / "mariadb.socket"
        install = ["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={data}"]
        self.run(*install, "--auth-root-authentication-method=socket", "--skip-test-db")
        self._daemon(
            "mariadbd",
            "--no-defaults",
            "--user=root",
            f"--datadir={data}",
            f"--socket={address}",
            f"--port={self.values['database_port']}",
            "--bind-address=127.0.0.1",
            f"--pid-file={self.folder}/mariadbd.pid",
        )
        client = ["mariadb", "--no-defaults", f"--socket={address}", "-e"]
        self._until(lambda: self._works(*client, "SELECT 1"), "mariadbd")
        self.run(*client, GRANT)

    def _write(self, name: str, template: str, mode: int) -> None:
        path = self.folder / name
        path.touch(mode)
        path.write_text(template.format_map(self.values))

    def _daemon(self, name: str, *options: str) -> None:
        with (self.folder / f"{name}.out").open("a") as output:
            self.daemons[name] = subprocess.Popen(
                [_program(name), *options],
                env=self.environment,
                cwd=self.folder,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the tests, which then stop them in order
                preexec_fn=_end_with_parent,
            )

    def _works(self, *command: str) -> bool:
        with contextlib.suppress(RuntimeError):
            self.run(*command)
            return True
        return False

    def _until(self, ready: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
        deadline = time.monotonic() + patience
        while not ready():
            for name, daemon in self.daemons.items():
                if daemon.poll() is not None:
                    raise RuntimeError(f"{name} ended by itself: {self.last_words(name)}")
            if time.monotonic() > deadline:
                words = "; ".join(f"{name}: {self.last_words(name)}" for name in self.daemons)
                raise TimeoutError(f"waited {patience:.0f} s for {what}; {words}")
            time.sleep(0.1)

    def _left_over(self) -> list[int]:
        """Processes of jobs that outlived their cancellation: they carry our configuration, and
        SLURM's own stand in our folder."""
        mark = f"SLURM_CONF={self.folder}/slurm.conf".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environment = (path / "environ").read_bytes()
                of_a_job = mark in environment and b"SLURM_JOB_ID=" in environment
                if of_a_job or os.readlink(path / "cwd") == str(self.folder):
                    found.append(int(path.name))
        return found


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _outside_of_jobs(environment: Mapping[str, str]) -> dict[str, str]:
    """What is started inside somebody's job must not take itself for a part of it."""
    return {key: value for key, value in environment.items() if not key.startswith("SLURM_")}


def _end_with_parent() -> None:
    """Even when the tests are killed, their daemons do not stay."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _free_ports(count: int) -> list[int]:
    free: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("", port))
            free.append(port)
        if len(free) == count:
            break
    return free


def main() -> None:
    if reason := missing():
        raise SystemExit(reason)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            cluster = Cluster().start()
        except CannotStart as error:
            raise SystemExit(str(error)) from error
        try:
            print(f"export SLURM_CONF={cluster.environment['SLURM_CONF']}", flush=True)
            signal.pause()
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
