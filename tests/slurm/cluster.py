"""A real SLURM on this machine for the tests: munge, MariaDB, slurmdbd, slurmctld and slurmd.

Everything lives in one temporary folder and listens on ports of its own, so that two test runs on
one machine never meet; every daemon runs in the foreground as a child of this process and is ended
by its process id, and by nothing else. `python -m tests.slurm.cluster` starts one by hand.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

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
MAX_ARRAY_SIZE = 3
"""Small, so that a few tasks need several arrays."""
PATIENCE = 60.0

SLURM_CONF = """
ClusterName=test
SlurmctldHost=localhost
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# A requeued job waits for its old credential to run out: two minutes, unless told otherwise.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
# The node may be given more CPUs than the machine has.
SlurmdParameters=config_overrides
MaxArraySize={max_array_size}
KillWait=10
MinJobAge=300
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={accounting_port}
# For slurmdbd the password is the socket of munge.
AccountingStoragePass={folder}/munge.socket
JobAcctGatherType=jobacct_gather/linux
NodeName=localhost CPUs={cpus} RealMemory=8000 State=UNKNOWN
PartitionName=debug Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""

SLURMDBD_CONF = """
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
DbdHost=localhost
DbdPort={accounting_port}
SlurmUser=root
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
"""

GRANT = """
CREATE DATABASE slurm_acct_db;
CREATE USER 'slurm'@'%' IDENTIFIED BY 'slurm';
GRANT ALL ON slurm_acct_db.* TO 'slurm'@'%';
"""


def missing() -> str | None:
    """Why no SLURM can be started here, or None."""
    absent = [name for name in PROGRAMS if _program(name) is None]
    if absent:
        packages = "slurm-wlm munge slurmdbd mariadb-server"
        return f"a real SLURM needs {', '.join(absent)} (Debian: {packages})"
    if os.geteuid() != 0:
        return "the SLURM daemons of the tests must be started as root"
    return None


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
        self.environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def start(self) -> Cluster:
        for name in ("state", "spool", "database"):
            (self.folder / name).mkdir()
        self._write("slurm.conf", SLURM_CONF, 0o644)
        self._write("slurmdbd.conf", SLURMDBD_CONF, 0o600)
        try:
            self._start_munge()
            self._start_database()
            self._daemon("slurmdbd", "-D")
            self._until(lambda: self._works("sacctmgr", "-i", "add", "cluster", "test"), "slurmdbd")
            self.start_controller()
            self._daemon("slurmd", "-D", "-N", "localhost")
            self._until(lambda: "idle" in self.run("sinfo", "-h", "-o", "%T"), "slurmd")
        except BaseException:
            self.stop()
            raise
        return self

    def start_controller(self) -> None:
        self._daemon("slurmctld", "-D")
        self._until(lambda: self._works("scontrol", "ping"), "slurmctld")

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
        if "slurmctld" in self.daemons:
            with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired, TimeoutError):
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
                env=_without_jobs(self.environment),
                cwd=self.folder,
                stdout=output,
                stderr=output,
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
            if time.monotonic() > deadline:
                logs = "\n".join(self.log(name) for name in self.daemons)
                raise TimeoutError(f"waited {patience:.0f} s for {what}\n{logs}")
            time.sleep(0.1)

    def _left_over(self) -> list[int]:
        """Processes of jobs that outlived their cancellation: they carry our configuration, and
        SLURM's own stand in our folder."""
        mark = f"SLURM_CONF={self.folder}/slurm.conf".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                ours = mark in (path / "environ").read_bytes().split(b"\0")
                if ours or os.readlink(path / "cwd") == str(self.folder):
                    found.append(int(path.name))
        return [process for process in found if process != os.getpid()]


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _without_jobs(environment: Mapping[str, str]) -> dict[str, str]:
    """Daemons started inside somebody's job must not take themselves for a part of it."""
    kept = {key: value for key, value in environment.items() if not key.startswith("SLURM_")}
    return {**kept, "SLURM_CONF": environment["SLURM_CONF"]}


def _end_with_parent() -> None:
    """Even when the tests are killed, their daemons do not stay."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def main() -> None:
    if reason := missing():
        raise SystemExit(reason)
    cluster = Cluster().start()
    print(f"export SLURM_CONF={cluster.environment['SLURM_CONF']}", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        signal.pause()
    except KeyboardInterrupt:
        pass
    finally:
        cluster.stop()


if __name__ == "__main__":
    main()
