"""The same round under Flower's simulation engine; needs `pip install -e ".[flower]"`."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import logging
import os
import statistics
import time
from collections.abc import Sequence

import numpy as np
import torch

from benchmark.backbones.base import make_backbone
from benchmark.bench.rounds import (
    CLASSES,
    SMALL,
    WORKERS,
    federation,
    harness_round,
    local_training,
    random_images,
)
from benchmark.bench.timing import Table, shown
from benchmark.crew import Crew
from benchmark.spec import Training


def measure(repeats: int) -> Sequence[Table]:
    title = "Against Flower's simulation engine"
    if importlib.util.find_spec("flwr") is None:
        return [Table(title, ("not measured",), [('pip install -e ".[flower]" brings Flower',)])]
    theirs, ours = flower_times(repeats), our_times(repeats)
    rows = []
    for name, one, other in zip(("start-up", "one round"), ours, theirs, strict=True):
        rows.append((name, shown(one), shown(other), f"{one / other:.3f}"))
    header = ("small CNN, 10 of 30 clients × 17 steps", "harness", "Flower", "ratio")
    note = (
        f"{WORKERS} client workers against {WORKERS} actors with a CPU each, one thread in each; "
        f"start-up is the time to the end of the first round less a later round."
    )
    return [Table(title, header, rows, note)]


def our_times(repeats: int) -> tuple[float, float]:
    """Seconds of start-up and of a later round."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    make = functools.partial(federation, *SMALL)
    crew = Crew(make, WORKERS)
    once = harness_round(make(), crew.visits)
    ends = []
    for _ in range(repeats + 1):
        once()
        ends.append(time.perf_counter())
    crew.close()
    return _split(began, ends)


def flower_times(repeats: int) -> tuple[float, float]:
    """The same of Flower, whose clients train as one writes it by hand."""
    os.environ["FLWR_TELEMETRY_ENABLED"] = os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from flwr.common import ndarrays_to_parameters
    from flwr.server import ServerApp, ServerAppComponents, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    backbone, _, clients, chosen, *_ = SMALL
    ends: list[float] = []

    class Timed(FedAvg):
        def aggregate_fit(self, server_round, results, failures):
            if failures:
                raise RuntimeError(f"a Flower client failed: {failures[0]}")
            answer = super().aggregate_fit(server_round, results, failures)
            ends.append(time.perf_counter())
            return answer

    def server(context) -> ServerAppComponents:
        first = [v.numpy() for v in make_backbone(backbone, CLASSES, "none").state_dict().values()]
        strategy = Timed(
            fraction_fit=chosen / clients,
            fraction_evaluate=0.0,
            initial_parameters=ndarrays_to_parameters(first),
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=repeats + 1))

    began = time.perf_counter()
    run_simulation(
        server_app=ServerApp(server_fn=server),
        client_app=client_app(),
        num_supernodes=clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": WORKERS, "logging_level": "error", "log_to_driver": False},
        },
    )
    return _split(began, ends)


def client_app():
    """A Flower client as their examples write it."""
    from flwr.client import ClientApp, NumPyClient

    backbone, size, _, chosen, steps = SMALL

    class Trainer(NumPyClient):
        def fit(self, parameters, config):
            torch.set_num_threads(1)
            model = make_backbone(backbone, CLASSES, "none")
            keys = model.state_dict().keys()
            given = zip(keys, parameters, strict=True)
            model.load_state_dict({key: torch.from_numpy(np.copy(value)) for key, value in given})
            training = Training(local_steps=steps, clients_per_round=chosen, lr=0.01, momentum=0.9)
            data = random_images(steps * training.batch_size, size)
            local_training(model, data, training)
            return [v.numpy() for v in model.state_dict().values()], len(data), {}

    return ClientApp(client_fn=lambda context: Trainer().to_client())


def _split(began: float, ends: Sequence[float]) -> tuple[float, float]:
    later = statistics.median(b - a for a, b in itertools.pairwise(ends))
    return ends[0] - began - later, later
