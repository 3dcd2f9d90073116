"""Modules that stay with a client: they live in its memory and are lent to it for a visit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from benchmark.state import copy_of

if TYPE_CHECKING:
    from benchmark.federation import Client


def lend(client: Client, name: str, make: Callable[[], nn.Module]) -> nn.Module:
    """The client's own module for this visit, as it was left at the end of the last one, or what
    `make` gives at the first; found in `client.scratch[name]` from now on."""
    module = make().to(client.train.device)
    if name in client.memory:
        module.load_state_dict(client.memory[name])
    client.scratch[name] = module
    return module


def keep(client: Client, name: str) -> None:
    """Put the state of a lent module back into the client's memory."""
    client.memory[name] = copy_of(client.scratch[name].state_dict())


def train_along(optimizer: torch.optim.Optimizer, module: nn.Module) -> torch.optim.Optimizer:
    """Let the client's optimiser step a lent module too, with the settings of the network."""
    optimizer.add_param_group({"params": list(module.parameters())})
    return optimizer
