"""What a client's local steps amount to, for methods that correct or rescale them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmark.backbones.base import Backbone
from benchmark.method import Method

if TYPE_CHECKING:
    from benchmark.federation import Client


def planned_steps(client: Client) -> int:
    """The protocol's local work of one visit, in optimiser steps."""
    training = client.training
    if training.local_steps is not None:
        return training.local_steps
    return training.local_epochs * max(1, client.size // training.batch_size)


def gradient_weight(steps: int, momentum: float, pull: float = 0.0) -> float:
    """How often each gradient of a round counts in the way a client went, summed: Σ a.

    The way after τ steps of SGD is η Σ aⱼ gⱼ. Plain steps count once, Σ a = τ. With momentum m an
    early gradient acts again in all later steps: Σ a = (τ − m(1 − m^τ)/(1 − m))/(1 − m). A proximal
    term of strength μ, `pull` = ημ, undoes a part: Σ a = (1 − (1 − ημ)^τ)/(ημ). This is the exact
    recursion behind both, which also covers the two together.
    """
    total = velocity = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1 - pull * total
        total += velocity
    return total


def shared_parameters(method: Method, model: Backbone) -> list[str]:
    """Parameters that start from the server's value on every client: not buffers, not what clients
    keep, for which the way from the server's value to the client's is no local work."""
    kept = method.keeps(model)
    return [name for name, _ in model.named_parameters() if name not in kept]
