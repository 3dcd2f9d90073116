"""A store on the real SLURM of the tests, and the means to watch and disturb what happens in it."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from benchmark.execute import Place
from benchmark.results import ResultStore
from benchmark.spec import RunSpec
from slurm.launch import Submitted, submit
from slurm.ledger import Ledger
from slurm.profile import Profile
from slurm.request import Cost, Request
from slurm.scheduler import live_tasks
from slurm.status import RunStatus, status
from tests.slurm.cluster import Cluster
from tests.slurm.sweeps import PLUGINS, expected, sweep_on_slurm
from tests.test_every_method import outcome

SMALL = Profile(memory="500MB", pack_minutes=0, warning=30)
PATIENCE = 240.0
"""Seconds after which a test gives up; a busy machine is no failure."""


@dataclasses.dataclass
class Lab:
    """One store."""

    root: Path
    cluster: Cluster

    def __post_init__(self) -> None:
        self.store = ResultStore(self.root)
        self.ledger = Ledger(self.root)

    def submit(self, specs: Sequence[RunSpec], cost: Cost = expected, **changes) -> Submitted:
        """Submit with a checkpoint after every round."""
        profile = dataclasses.replace(SMALL, **changes)
        place = Place(self.root.parent / "data", checkpoint_seconds=0.0)
        return submit(specs, Request.of(self.root, place, PLUGINS, profile), cost)

    def sweep(self, *flags) -> int:
        """Submit with the command line; its exit code."""
        return sweep_on_slurm(self.root, "--data", self.root.parent / "data", *flags)

    def wait(self, ready: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not ready():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {PATIENCE:.0f} s for {what}\n{self.report()}")
            time.sleep(0.1)

    def wait_for_results(self, specs: Sequence[RunSpec]) -> None:
        """Wait until the runs are stored, and their tasks have said so."""
        self.wait(lambda: all(self.times(spec, "is done") for spec in specs), "results")
        assert all(self.store.path(spec).exists() for spec in specs)

    def wait_for_round(self, spec: RunSpec, number: int) -> dict:
        """Wait until a run is past a round; its progress note."""
        self.wait(lambda: self.round_of(spec) >= number, f"round {number} of {spec}")
        return self.ledger.progress(spec.id)

    def round_of(self, spec: RunSpec) -> int:
        entry = self.ledger.progress(spec.id) or {}
        return entry["round"] if entry.get("state") == "running" else -1

    def wait_for_quiet(self) -> None:
        """Wait until no job of this store is left."""
        names = set(self.ledger.submissions())
        self.wait(lambda: names.isdisjoint(t[0] for t in live_tasks()), "the end of the jobs")

    def log(self) -> str:
        """What all tasks of all submissions said."""
        return "\n".join(path.read_text() for path in self.root.rglob("*_log.out"))

    def specs(self) -> list[RunSpec]:
        """All submitted runs, in the order of their packs."""
        manifests = self.ledger.manifests()
        return [manifest.spec(run) for manifest in manifests for run in manifest.places]

    def find(self, spec: RunSpec) -> RunStatus:
        """How a run stands."""
        (found,) = [run for run in status(self.ledger).runs if run.run == spec.id]
        return found

    def times(self, spec: RunSpec, what: str) -> int:
        """How often the logs say something of a run."""
        return self.log().count(f"[{spec.id}] {what}")

    def done_once(self, specs: Sequence[RunSpec]) -> bool:
        """Whether no run was begun or done twice."""
        return all(self.times(s, "begins") == self.times(s, "is done") == 1 for s in specs)

    def report(self) -> str:
        with contextlib.suppress(RuntimeError, subprocess.SubprocessError):
            queue = self.cluster.run("squeue", "-r", "-o", "%i %j %T %r %S")
            logs = [path.read_text() for path in sorted(self.root.rglob("*_log.*"))]
            notes = [p.read_text() for p in (self.ledger.folder / "progress").glob("*")]
            controller = self.cluster.log("slurmctld")
            return "\n".join([queue, *logs, *notes, controller])
        return "no answer from the cluster"

    def hurry(self) -> None:
        """From now on, runs that take their time do not."""
        self.root.with_name("hurry").touch()

    @contextlib.contextmanager
    def environment(self) -> Iterator[Lab]:
        """What is submitted while this lasts can be told to hurry."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("STEADY_HURRY", str(self.root.with_name("hurry")))
            yield self


def outcomes(store: ResultStore, specs: Sequence[RunSpec]) -> list[tuple]:
    return [outcome(store.get(spec)) for spec in specs]
