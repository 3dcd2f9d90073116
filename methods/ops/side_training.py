"""Work beside a client's local steps: modules of their own optimiser, batches of their own."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from benchmark.method import Batch, Method
from datasets.samples import batch_order

if TYPE_CHECKING:
    from benchmark.federation import Client


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


def side_batches(
    client: Client, purpose: str, steps: int | None, epochs: int | None
) -> Iterator[Batch]:
    """Training batches besides those of the client's local work, from streams of their own; so
    many steps, or passes over its images."""
    rng, generator = client.numpy_generator(purpose), client.torch_generator(purpose)
    size = client.training.batch_size
    for positions in batch_order(client.size, size, rng, steps, epochs):
        yield client.train.training_batch(positions, generator)


def descend(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    """One step of an optimiser on a loss that nobody else descends."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
