"""A federation with one scalar weight, small enough to be worked out by hand."""

from __future__ import annotations

import torch
from torch import nn

from benchmark.federation import Client, Server
from benchmark.method import Method, make_method
from benchmark.spec import Training
from datasets.samples import Batch


class Weight(nn.Module):
    """One parameter; its name decides what FedASAM makes of it."""

    def __init__(self, start: float, name: str = "weight"):
        super().__init__()
        self.name = name
        self.register_parameter(name, nn.Parameter(torch.tensor([start])))

    @property
    def value(self) -> torch.Tensor:
        return getattr(self, self.name)


class Point:
    """A client's samples: `count` times the same number."""

    device = torch.device("cpu")

    def __init__(self, value: float, count: int):
        self.value, self.count = value, count

    def __len__(self) -> int:
        return self.count

    def training_batch(self, positions, generator) -> Batch:
        labels = torch.zeros(len(positions), dtype=torch.long)
        return Batch(torch.tensor([self.value]), labels, labels)


def quadratic(self, client, batch):
    """½(w − b)², b the client's number."""
    return 0.5 * (client.model.value - batch.images).square().sum()


def linear(self, client, batch):
    """b·w: the gradient is the client's number everywhere."""
    return (client.model.value * batch.images).sum()


def scalar_federation(
    monkeypatch, expression, values, loss=quadratic, start=0.0, sizes=None, hparams=(), **training
):
    """Method, server and clients, one client per value; the loss takes the place of FedAvg's."""
    monkeypatch.setattr(Method, "loss", loss)
    steps = {} if "local_epochs" in training else {"local_steps": training.pop("local_steps", 1)}
    setting = Training(
        **{"lr": 0.1, "batch_size": 1, "rounds": 10, "weights": "uniform", **steps, **training}
    )
    method = make_method(expression, dict(hparams))
    server = Server(Weight(start), setting, 0, len(values))
    working = Weight(start)
    clients = [
        Client(k, str(k), Point(value, size), Point(value, 0), server, working)
        for k, (value, size) in enumerate(zip(values, sizes or [1] * len(values), strict=True))
    ]
    return method, server, clients
