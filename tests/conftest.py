"""A toy dataset and small federations that every test can use."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmark.execute import Place, assemble
from benchmark.federation import rounds
from benchmark.protocol import Protocol, plan
from benchmark.registry import load_plugin
from benchmark.results import ResultStore
from benchmark.spec import RunSpec, Training

torch.set_num_threads(1)
TOY = Path(__file__).parent / "toy_plugin.py"

load_plugin(TOY)

TRAINING = Training(rounds=3, local_steps=2, batch_size=8, lr=0.05, momentum=0.9)


def toy_protocol(**changes) -> Protocol:
    base = {
        "doc": "toy",
        "datasets": ("Toy",),
        "backbone": "cnn_tiny_bn",
        "training": TRAINING,
        "seeds": (0,),
    }
    return Protocol(**{**base, **changes})


def toy_spec(method: str = "fedavg", target: str = "grey", **changes) -> RunSpec:
    """One run on the toy data; `changes` are fields of the protocol."""
    return plan(toy_protocol(**changes), [method], targets=[target]).specs[0]


@pytest.fixture
def store(tmp_path) -> ResultStore:
    return ResultStore(tmp_path / "runs")


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(data=tmp_path / "data", checkpoint_seconds=0.0)


@pytest.fixture
def federation(place):
    """Make the server, clients and method of a spec."""
    return lambda spec: assemble(spec, place)


def rates_by_round(ours) -> list[list[float]]:
    """The learning rates of the first client's optimiser in its last step of each round."""
    client, seen, rates = ours.clients[0], [], []
    descend = client.descend

    def watched() -> None:
        seen.append([group["lr"] for group in client.optimizer.param_groups])
        descend()

    client.descend = watched
    for _ in rounds(ours.method, ours.server, ours.clients):
        rates.append(seen[-1])
    return rates
