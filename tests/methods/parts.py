"""Settings and small parts that the tests of several methods use."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.conftest import TRAINING


def three_of_six(**training: Any) -> dict[str, Any]:
    """Fields of a protocol: six clients, three of which are sampled in a round."""
    changes = {"clients_per_round": 3, **training}
    return {"partition": "single_domain_k:clients=2", "training": TRAINING.changed(changes)}


def note_sent(client, kind: str, sent: dict[int, Any]) -> None:
    """Let a client note what it sends of a kind, by its number, besides sending it."""
    send = client.send

    def noting(sent_kind: str, payload: Any) -> Any:
        if sent_kind == kind:
            sent[client.id] = payload
        return send(sent_kind, payload)

    client.send = noting


def trained_norm(channels: int = 6) -> nn.BatchNorm2d:
    """Batch normalisation with parameters and running statistics of its own; always the same."""
    torch.manual_seed(0)
    layer = nn.BatchNorm2d(channels)
    for tensor in (layer.weight.data, layer.bias.data, layer.running_mean):
        tensor.normal_()
    layer.running_var.uniform_(0.5, 2)
    return layer
