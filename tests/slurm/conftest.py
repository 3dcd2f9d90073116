"""One real SLURM per test session, and sweeps on it."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import slurm.launch
from benchmark import sweep
from benchmark.estimate import expected_seconds
from benchmark.execute import Place
from benchmark.launch import launch
from benchmark.method import compose, methods
from benchmark.registry import load_plugin
from benchmark.results import Collection, ResultStore
from benchmark.spec import RunSpec
from slurm.executor import Executor
from slurm.launch import Cost, Request, Submitted, submit
from slurm.ledger import Ledger
from slurm.profile import Profile
from slurm.status import RunStatus, status
from tests.conftest import TOY, TRAINING, toy_spec
from tests.slurm.cluster import Cluster, missing
from tests.slurm.simulated import Simulated
from tests.test_every_method import outcome

STEADY = Path(__file__).with_name("steady_plugin.py")
PLUGINS = [str(TOY), str(STEADY)]
NOTHING = Collection([], [], {}, {})
SMALL = Profile(memory="500MB", pack_minutes=0, warning=30)


@pytest.fixture(autouse=True)
def forget_steady():
    """The slow method is known to these tests alone."""
    yield
    methods._entries.pop("steady", None)
    sys.modules.pop(f"plugin_{STEADY.stem}", None)
    compose.cache_clear()


@pytest.fixture
def scheduler(tmp_path, monkeypatch) -> Simulated:
    """A simulated SLURM that the commands of this process talk to."""
    ours = Simulated(tmp_path / "commands")
    monkeypatch.setenv("PATH", ours.path)
    monkeypatch.setattr(slurm.launch, "BETWEEN_ARRAYS", 0.0)
    monkeypatch.setattr(Executor.submit_jobs, "__defaults__", ((0.0, 0.0),))
    return ours


@pytest.fixture
def root(tmp_path) -> Path:
    return tmp_path / "runs"


def request(root: Path, **changes) -> Request:
    """What to submit to the simulated SLURM with."""
    return Request.of(root, Place(), [str(TOY)], Profile(**changes))


def seeds(count: int, start: int = 0) -> list[RunSpec]:
    """Short runs, one per seed."""
    return [toy_spec(seeds=(seed,)) for seed in range(start, start + count)]


@pytest.fixture(scope="session")
def cluster():
    """A running SLURM that the commands of this process talk to."""
    if os.environ.get("FEDDOMAINBED_SLURM") != "1":
        pytest.skip("starts SLURM's daemons; set FEDDOMAINBED_SLURM=1 (make test-slurm)")
    if reason := missing():
        pytest.skip(reason)
    ours = Cluster().start()
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = ours.environment["SLURM_CONF"]
    yield ours
    ours.stop()
    if before is None:
        del os.environ["SLURM_CONF"]
    else:
        os.environ["SLURM_CONF"] = before


def steady_specs(
    seeds: Sequence[int] = (0,), rounds: int = 40, pause: float = 0.5, fate: str = "well"
) -> list[RunSpec]:
    """Runs that take their time, one per seed."""
    load_plugin(STEADY)
    training = TRAINING.changed({"rounds": rounds})
    specs = [toy_spec("steady", training=training, seeds=(seed,)) for seed in seeds]
    hparams = {"pause": pause, "fate": fate}
    return [dataclasses.replace(spec, hparams=hparams) for spec in specs]


def expected(specs: Sequence[RunSpec]) -> list[float]:
    return expected_seconds(specs, NOTHING, "cpu")


@dataclasses.dataclass
class Lab:
    """A store on the cluster and the means to watch and disturb what happens in it."""

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

    def sweep(self, *arguments) -> int:
        """The command line, in this process."""
        flags = ["--datasets", "Toy", "--plugin", *PLUGINS, "--out", self.root]
        flags += ["--data", self.root.parent / "data", *arguments]
        with pytest.raises(SystemExit) as end:
            sweep.main([str(flag) for flag in flags])
        return end.value.code

    def wait(self, ready: Callable[[], bool], what: str, patience: float = 200.0) -> None:
        deadline = time.monotonic() + patience
        while not ready():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {patience:.0f} s for {what}\n{self.report()}")
            time.sleep(0.1)

    def wait_for_results(self, specs: Sequence[RunSpec], patience: float = 200.0) -> None:
        self.wait(lambda: all(self.store.path(s).exists() for s in specs), "results", patience)

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

        def quiet() -> bool:
            jobs = self.cluster.run("squeue", "-h", "-o", "%j").split()
            return not any(job.split("-", 1)[1].rpartition("-")[0] in names for job in jobs)

        self.wait(quiet, "the end of the jobs")

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
        return sum(f"[{spec.id}] {what}" in line for line in self.log().splitlines())

    def report(self) -> str:
        with contextlib.suppress(RuntimeError):
            queue = self.cluster.run("squeue", "-r", "-o", "%i %j %T %r %S")
            logs = [path.read_text() for path in sorted(self.root.rglob("*_log.*"))]
            notes = [p.read_text() for p in (self.ledger.folder / "progress").glob("*")]
            controller = self.cluster.log("slurmctld")
            return "\n".join([queue, *logs, *notes, controller])
        return "no answer from the cluster"

    def hurry(self) -> None:
        """From now on, runs that take their time do not."""
        self.root.with_name("hurry").touch()


@pytest.fixture
def lab(cluster, tmp_path, monkeypatch) -> Lab:
    monkeypatch.setenv("STEADY_HURRY", str(tmp_path / "hurry"))
    return Lab(tmp_path / "runs", cluster)


@pytest.fixture(scope="session")
def locally(tmp_path_factory) -> Callable[[Sequence[RunSpec]], list[tuple]]:
    """What the local launcher makes of runs, each computed once per session."""
    store = ResultStore(tmp_path_factory.mktemp("local"))

    def outcomes(specs: Sequence[RunSpec]) -> list[tuple]:
        todo = [spec for spec in specs if store.get(spec) is None]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("STEADY_HURRY", os.devnull)
            list(launch(todo, store, [Place(store.root / "data")], 2, PLUGINS))
        return [outcome(store.get(spec)) for spec in specs]

    return outcomes


def outcomes(store: ResultStore, specs: Sequence[RunSpec]) -> list[tuple]:
    return [outcome(store.get(spec)) for spec in specs]
