"""Arithmetic on model states: dicts of tensors, told apart by module type, never by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

State = dict[str, torch.Tensor]


def state_of(model: nn.Module) -> State:
    """The live parameters and buffers of a model, not copies."""
    return model.state_dict()


def copy_of(state: Mapping[str, torch.Tensor], keys: Iterable[str] | None = None) -> State:
    """An independent copy, of all entries or of some."""
    chosen = state.keys() if keys is None else keys
    return {key: state[key].detach().clone() for key in chosen}


@torch.no_grad()
def write(target: Mapping[str, torch.Tensor], source: Mapping[str, torch.Tensor]) -> None:
    """Overwrite the entries of `target` that `source` has, in place."""
    if source:
        torch._foreach_copy_([target[key] for key in source], list(source.values()))


def parameter_names(model: nn.Module) -> set[str]:
    return {name for name, _ in model.named_parameters()}


@dataclasses.dataclass(frozen=True)
class NormKeys:
    """Which keys of a state belong to batch normalisation."""

    affine: frozenset[str]
    statistics: frozenset[str]
    counters: frozenset[str]

    @property
    def all(self) -> frozenset[str]:
        return self.affine | self.statistics | self.counters


def batchnorm_keys(model: nn.Module) -> NormKeys:
    """The batch-normalisation entries of a model, found by module type: shortcut layers that are
    not called "bn" are included, other layers that happen to be are not."""
    affine, statistics, counters = set(), set(), set()
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            prefix = f"{name}." if name else ""
            present = {prefix + key for key, value in module.state_dict().items()}
            affine |= present & {prefix + "weight", prefix + "bias"}
            statistics |= present & {prefix + "running_mean", prefix + "running_var"}
            counters |= present & {prefix + "num_batches_tracked"}
    return NormKeys(frozenset(affine), frozenset(statistics), frozenset(counters))


class WeightedSum:
    """Σ weight · state over a stream of states, one at a time, so memory does not grow with it.

    Floating-point tensors are summed in the order given; integer counters are the first state's.
    """

    def __init__(self) -> None:
        self._floats: State = {}
        self._integers: State = {}

    @torch.no_grad()
    def add(self, state: Mapping[str, torch.Tensor], weight: float) -> None:
        floats = {key: value for key, value in state.items() if value.is_floating_point()}
        if not state:
            return
        if not self._floats and not self._integers:
            self._integers = copy_of(state, state.keys() - floats.keys())
            self._floats = dict(
                zip(floats, torch._foreach_mul(list(floats.values()), weight), strict=True)
            )
        else:
            torch._foreach_add_(
                [self._floats[key] for key in floats], list(floats.values()), alpha=weight
            )

    def result(self) -> State:
        return {**self._floats, **self._integers}


@torch.no_grad()
def weighted_mean(states: Sequence[Mapping[str, torch.Tensor]], weights: Sequence[float]) -> State:
    """The weighted mean of states that are all at hand; `weights` sum to 1. Same bits as
    `WeightedSum`, faster: a sum stays in the cache while one entry of all states is added."""
    mean = copy_of(states[0])
    for key, total in mean.items():
        if total.is_floating_point():
            total.mul_(weights[0])
            for state, weight in zip(states[1:], weights[1:], strict=True):
                total.add_(state[key], alpha=weight)
    return mean
