"""Averaging ResNet-50 states: ours against a `state_dict` loop, `torch.stack`, and the memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from benchmark.backbones.base import make_backbone
from benchmark.bench.timing import Table, against, compare
from benchmark.state import State, WeightedSum, copy_of, state_of, weighted_mean

KEPT = 10
"""Different states in memory; a hundred are these over and over, far more than any cache holds."""
BOUND = "reading every state once"


def measure(repeats: int) -> Sequence[Table]:
    torch.set_num_threads(1)
    first = state_of(make_backbone("resnet50", 7, "none"))
    kept = [copy_of(first) for _ in range(KEPT)]
    rows = []
    for count in (10, 100):
        states = [kept[k % KEPT] for k in range(count)]
        weights = [1 / count] * count
        timings = compare(ways(states, weights), repeats if count == 10 else max(1, repeats // 3))
        rows += [(str(count), *row) for row in against(timings, BOUND)]
    header = ("states", "one thread", "time", "ratio to the bound")
    return [Table("Aggregation of ResNet-50 states", header, rows)]


def ways(states: Sequence[State], weights: Sequence[float]) -> dict[str, Callable[[], object]]:
    floats = [[value for value in state.values() if value.is_floating_point()] for state in states]

    def read() -> None:
        for tensors in floats:
            for tensor in tensors:
                tensor.sum()

    def stream() -> None:
        total = WeightedSum()
        for state, weight in zip(states, weights, strict=True):
            total.add(state, weight)

    def loop() -> State:
        mean = {key: torch.zeros_like(value) for key, value in states[0].items()}
        for state, weight in zip(states, weights, strict=True):
            for key in mean:
                mean[key] += (state[key] * weight).to(mean[key].dtype)
        return mean

    def stack() -> State:
        scale = torch.tensor(weights)
        return {
            key: torch.tensordot(scale, torch.stack([state[key].float() for state in states]), 1)
            for key in states[0]
        }

    return {
        BOUND: read,
        "ours, states at hand": lambda: weighted_mean(states, weights),
        "ours, states one by one": stream,
        "`state_dict` loop": loop,
        "`torch.stack` per key": stack,
    }
