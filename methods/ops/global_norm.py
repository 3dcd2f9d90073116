"""Batch normalisation that knows the federation's statistics and can mix each sample's with them.

Outside of `mixing` a layer does what it did before. Inside, it normalises with its mixed statistics
and touches no running ones. The reference side of the mix is a snapshot of the global statistics,
held beside the state, so that neither the client's own running statistics nor what is uploaded
change; a layer without a snapshot, as the server's, refers to its running statistics.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import nn

from methods.ops.centred import joint_moments
from methods.ops.normalisation import (
    Mix,
    MixedNorm2d,
    Statistics,
    TrainedMix,
    converted,
)


class GlobalNorm2d(MixedNorm2d):
    """Batch normalisation whose mix is between local statistics and a snapshot of the global."""

    snapshot: Statistics | None = None
    of_batch: bool = False
    """Take the batch's statistics for the local side instead of each sample's."""
    constant: bool = False
    """Send no gradient through the local statistics."""

    def reference(self) -> Statistics:
        return super().reference() if self.snapshot is None else self.snapshot

    def local(self, mean: torch.Tensor, variance: torch.Tensor) -> Statistics:
        if self.of_batch:
            joint = joint_moments(mean, variance, dim=0)
            mean, variance = (part.expand_as(mean) for part in joint)
        own = super().local(mean, variance)
        return Statistics(*(part.detach() for part in own)) if self.constant else own


@functools.cache
def _joined(kind: type[TrainedMix]) -> type[GlobalNorm2d]:
    return type(f"Global{kind.__name__}", (GlobalNorm2d, kind), {})


def with_global(old: nn.BatchNorm2d) -> nn.BatchNorm2d:
    """The same layer, able to mix. One that has learnt a mix keeps it outside of `mixing`."""
    if isinstance(old, TrainedMix):
        old.__class__ = _joined(type(old))  # what it has learnt has no place in a new layer
        return old
    return converted(GlobalNorm2d, old)


def global_norms(model: nn.Module) -> dict[str, GlobalNorm2d]:
    """The layers that can mix, by their paths."""
    return {path: m for path, m in model.named_modules() if isinstance(m, GlobalNorm2d)}


def statistics_keys(model: nn.Module) -> list[str]:
    """Entries of the state that a snapshot is taken of."""
    names = ("running_mean", "running_var")
    return [f"{path}.{name}" for path in global_norms(model) for name in names]


@torch.no_grad()
def take_snapshot(model: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Let every layer refer to the statistics in `state` until `drop_snapshot`."""
    for path, layer in global_norms(model).items():
        mean, variance = (state[f"{path}.running_{name}"] for name in ("mean", "var"))
        layer.snapshot = Statistics.of(mean.clone(), variance, layer.eps)


def drop_snapshot(model: nn.Module) -> None:
    for layer in global_norms(model).values():
        layer.snapshot = None


@contextlib.contextmanager
def mixing(
    model: nn.Module,
    mix_of: Callable[[str], Mix],
    of_batch: bool = False,
    constant: bool = False,
) -> Iterator[None]:
    """Every layer normalises with statistics mixed by `mix_of(path)` meanwhile."""
    layers = global_norms(model)
    for path, layer in layers.items():
        layer.mix, layer.of_batch, layer.constant = mix_of(path), of_batch, constant
    try:
        yield
    finally:
        for layer in layers.values():
            del layer.mix, layer.of_batch, layer.constant
