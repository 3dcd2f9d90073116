"""Clients in other processes: failures come back, plugins are there, nothing is left running."""

import functools
import os
import signal
from contextlib import closing

import pytest

from benchmark.crew import Crew
from benchmark.errors import Diverged
from benchmark.execute import Place, assemble, execute
from benchmark.federation import rounds
from benchmark.results import ResultStore
from tests.conftest import TRAINING, toy_spec


@pytest.fixture
def crew(tmp_path):
    """A federation, and a crew for it."""
    make = functools.partial(assemble, toy_spec(), Place(data=tmp_path / "data"))
    with closing(Crew(make, 2)) as crew:
        yield make(), crew


def test_visits_come_in_the_order_of_the_clients(crew):
    ours, workers = crew
    made = list(workers.visits(ours.method, ours.server, ours.clients))
    assert [one.update.client for one in made] == [client.id for client in ours.clients]
    assert all(one.steps == ours.server.training.local_steps for one in made)


def test_a_worker_that_dies_is_reported_and_not_waited_for(crew):
    ours, workers = crew
    running = rounds(ours.method, ours.server, ours.clients, 0, workers.visits)
    next(running)
    os.kill(workers._processes[0].pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="client worker died"):
        for _ in range(3):
            next(running)


def test_closing_ends_the_workers(crew):
    _, workers = crew
    workers.close()
    assert [process.is_alive() for process in workers._processes] == [False, False]


def test_a_diverging_client_fails_the_run_with_its_reason(tmp_path):
    spec = toy_spec(training=TRAINING.changed({"lr": 1e30}))
    with pytest.raises(Diverged, match="training loss of client"):
        execute(spec, ResultStore(tmp_path), Place(data=tmp_path / "data", client_workers=2))
