"""Training other modules beside a client's network, with the protocol's own optimiser."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

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


def side_optimizer(
    method: Method,
    client: Client,
    module: nn.Module,
    rate: float,
    state: Mapping[str, Any] | None = None,
) -> torch.optim.Optimizer:
    """The protocol's optimiser for a module, at `rate` times the client's learning rate; with a
    state, as it was left, except for the learning rate."""
    holder = copy.copy(client)
    holder.model, holder.lr = module, rate * client.lr
    optimizer = Method.optimizer(method, holder)
    if state is not None:
        optimizer.load_state_dict(dict(state))
        for group in optimizer.param_groups:
            group["lr"] = holder.lr
    return optimizer


def descend(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    """One step of an optimiser on a loss that nobody else descends."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


@contextlib.contextmanager
def classified(model: Backbone) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    """Features and logits of every pass through the classifier meanwhile, so that a loss can use
    those of the pass that `super().loss` makes."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    handle = model.classifier.register_forward_hook(
        lambda _, inputs, output: seen.append((inputs[0], output))
    )
    try:
        yield seen
    finally:
        handle.remove()
