"""A simulated SLURM for each test that asks for one, and a real one per test session."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import slurm.launch
from benchmark.execute import Place
from benchmark.launch import launch
from benchmark.method import compose, methods
from benchmark.results import ResultStore
from benchmark.spec import RunSpec
from slurm.executor import Executor
from tests.slurm.cluster import CannotStart, Cluster, missing
from tests.slurm.lab import Lab, outcomes
from tests.slurm.simulated import Simulated
from tests.slurm.sweeps import PLUGINS, STEADY, expected, request, seeds


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


@pytest.fixture
def submitted(scheduler, root) -> list[RunSpec]:
    """Six runs in six tasks of one array."""
    specs = seeds(6)
    slurm.launch.submit(specs, request(root, pack_minutes=0), expected)
    return specs


@pytest.fixture(scope="session")
def cluster():
    """A running SLURM that the commands of this process talk to."""
    if os.environ.get("FEDDOMAINBED_SLURM") != "1":
        pytest.skip("starts SLURM's daemons; set FEDDOMAINBED_SLURM=1 (make test-slurm)")
    if reason := missing():
        pytest.skip(reason)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: stop in order
    try:
        ours = Cluster().start()
    except CannotStart as error:
        signal.signal(signal.SIGTERM, before)
        pytest.skip(f"SLURM cannot be started on this machine: {error}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", ours.environment["SLURM_CONF"])
        yield ours
    ours.stop()
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def lab(cluster, tmp_path) -> Iterator[Lab]:
    with Lab(tmp_path / "runs", cluster).environment() as ours:
        yield ours


@pytest.fixture(scope="session")
def locally(tmp_path_factory) -> Callable[[Sequence[RunSpec]], list[tuple]]:
    """What the local launcher makes of runs, each computed once per session."""
    store = ResultStore(tmp_path_factory.mktemp("local"))

    def expect(specs: Sequence[RunSpec]) -> list[tuple]:
        todo = [spec for spec in specs if store.get(spec) is None]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("STEADY_HURRY", os.devnull)
            list(launch(todo, store, [Place(store.root / "data")], 2, PLUGINS))
        return outcomes(store, specs)

    return expect
