"""What runs cost, as columns of tables: measured in the run, averaged over the runs of a row."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from benchmark.results import Result
from leaderboard.sheets import Cell, Column

HARMLESS = {
    "weights",
    "statistics",
    "decoder",
    "generator",
    "gradient",
    "control",
    "risks",
    "steps",
}
"""Kinds of messages that tell no more than weights do: parts of a network, what updates it, and
plain counts and losses. Everything else (styles, amplitudes, prototypes, classifiers of single
clients, images) tells of a client's data."""
FEW = 16
"""Bytes: one or two numbers a client and round (a risk, a count of steps) cost nothing."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """One measured quantity and how it is shown."""

    field: str
    name: str
    decimals: int


COSTS = (
    Cost("parameters", "parameters (M)", 2),
    Cost("up_mb", "up (MB/round)", 2),
    Cost("down_mb", "down (MB/round)", 2),
    Cost("other_mb", "besides weights (MB/round)", 3),
    Cost("ms_per_step", "train (ms/step)", 1),
    Cost("ms_per_image", "test (ms/image)", 2),
    Cost("peak_mb", "peak memory (MB)", 0),
)


def shared_kinds(result: Result) -> set[str]:
    """What left clients besides weights, as counted in the run: all that went up, what of others'
    data came down (COPA's heads go up with the weights), and the images where they are pooled."""
    ways = [kind.partition("/") for kind in result.costs.get("bytes_per_round", {})]
    kinds = {kind for way, _, kind in ways if way == "up" or kind not in HARMLESS}
    pooled = {"images"} if result.spec.partition.startswith("pooled") else set()
    return (kinds | pooled) - {"weights"}


def reveals(result: Result) -> bool:
    """Whether what leaves clients tells more of their data than weights do."""
    return bool(shared_kinds(result) - HARMLESS)


def communicates(result: Result) -> bool:
    """Whether messages besides weights, both ways, are more than a number or two per client and
    round. Weights of a larger network are no message of their own: they show as parameters."""
    traffic = result.costs.get("bytes_per_round", {})
    others = sum(size for kind, size in traffic.items() if not kind.endswith("/weights"))
    return others > FEW * max(1, _clients(result.records))


def costs_of(result: Result) -> dict[str, Any]:
    """A run's costs in the units of tables; NaN where it was not measured."""
    costs = result.costs
    traffic = costs.get("bytes_per_round", {})
    rounds = max(1, result.spec.training.rounds)
    clients = max(1, _clients(result.records))
    seconds = costs.get("train_seconds", math.nan)
    return {
        "id": result.spec.id,
        "parameters": costs.get("parameters", math.nan) / 1e6,
        "up_mb": _megabytes(traffic, "up/"),
        "down_mb": _megabytes(traffic, "down/"),
        "other_mb": _megabytes(traffic, "") - _megabytes(traffic, "", "weights"),
        "up_mb_per_client": _megabytes(traffic, "up/") / clients,
        "ms_per_step": costs.get("ms_per_step", math.nan),
        "ms_per_image": costs.get("ms_per_evaluated_image", math.nan),
        "peak_mb": costs.get("peak_memory_mb", math.nan),
        "train_seconds": seconds,
        "train_seconds_per_client": seconds / rounds / clients,
    }


def _clients(records: Mapping[str, Sequence]) -> int:
    """Clients that took part in an evaluated round."""
    first = records["round"][0] if records["round"] else None
    columns = zip(records["round"], records["part"], records["client"], strict=True)
    return len({client for round, part, client in columns if part == "val" and round == first})


def _megabytes(traffic: Mapping[str, float], direction: str, kind: str = "") -> float:
    if not traffic:
        return math.nan
    return sum(v for k, v in traffic.items() if k.startswith(direction) and k.endswith(kind)) / 1e6


def cost_frame(results: Iterable[Result]) -> pd.DataFrame:
    """One row per run."""
    return pd.DataFrame([costs_of(result) for result in results])


def cost_columns() -> tuple[Column, ...]:
    return tuple(Column(cost.name, ranked=False, derived=True) for cost in COSTS)


def cost_cells(frame: pd.DataFrame) -> tuple[Cell, ...]:
    """The mean over the runs of a row; not ranked, for times depend on the machine."""
    return tuple(
        Cell(float(frame[cost.field].mean()), runs=len(frame), decimals=cost.decimals)
        if len(frame)
        else Cell()
        for cost in COSTS
    )


def traffic_notes(results: Iterable[Result]) -> list[str]:
    """What crosses the client boundary besides weights, by method, direction and kind."""
    sums: dict[str, dict[str, list[float]]] = {}
    for result in results:
        for kind, amount in result.costs.get("bytes_per_round", {}).items():
            if not kind.endswith("/weights"):
                label = result.about["label"]
                sums.setdefault(label, {}).setdefault(kind, []).append(amount / 1e6)
    return [
        f"{label} sends besides weights, MB/round: "
        + ", ".join(f"{kind} {sum(v) / len(v):.3g}" for kind, v in sorted(kinds.items()))
        for label, kinds in sorted(sums.items())
    ]
