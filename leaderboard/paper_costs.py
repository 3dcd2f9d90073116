"""The papers' cost tables: what they print, and which measured quantity stands beside it."""

from __future__ import annotations

import dataclasses
import functools
import re

import pandas as pd

from leaderboard.published import costs
from leaderboard.sheets import NOTED, Cell

Key = tuple[str, str]
"""A printed line: method and variant."""


@dataclasses.dataclass(frozen=True)
class Metric:
    """A printed column of costs."""

    name: str
    field: str = ""
    """The measured quantity (see `costs_of`); none for yes/no marks."""
    portable: bool = False
    """Whether it can be compared between machines."""


METRICS = {
    "parameters": Metric("parameters (M)", "parameters", portable=True),
    "training_time": Metric("training (ms)", "ms_per_step"),
    "inference_time": Metric("inference (ms)", "ms_per_image"),
    "uplink_communication_per_client_per_round": Metric(
        "uplink (MB/client)", "up_mb_per_client", portable=True
    ),
    "local_update_time_per_client": Metric("local update (s)", "train_seconds_per_client"),
    "privacy_risk": Metric("privacy risk"),
    "additional_communication_cost": Metric("additional communication"),
    "additional_computation_cost": Metric("additional computation"),
    "data_storage_mode": Metric("data storage"),
    "strong_privacy_protection": Metric("strong privacy protection"),
    "domain_generalization": Metric("domain generalization"),
    "distributed_domain_generalization": Metric("distributed domain generalization"),
}
"""In the order of the papers' columns."""
MEASURED = {
    "training_time": "training: published per iteration of 64 images, ours per step of one client",
    "inference_time": "inference: published per iteration of 64 images (reads like one image), "
    "ours per tested image, loading included",
}


def _rows(table: str) -> pd.DataFrame:
    paper, _, number = table.partition("/")
    frame = costs()
    return frame[(frame["paper"] == paper) & (frame["table"] == f"Table {number}")]


def _key(method: str) -> Key:
    """`FedFD + BIN` is the line FedFD with the variant inference=BIN."""
    base, plus, inference = method.partition(" + ")
    return (base, f"inference={inference}") if plus else (method, "")


@functools.cache
def cost_rows(table: str) -> tuple[Key, ...]:
    """The lines of which a table prints costs."""
    return tuple(dict.fromkeys(_key(method) for method in _rows(table)["method"]))


@functools.cache
def printed_costs(table: str, metric: str) -> dict[Key, Cell]:
    """A printed column of costs by line; empty where the table does not have it."""
    rows = _rows(table)
    cells = {}
    for row in rows[rows["metric"] == metric].itertuples():
        if row.unit in ("flag", "category"):
            cells[_key(row.method)] = Cell(text=row.value)
        else:
            decimals = len(row.value_printed.partition(".")[2])
            mark = NOTED if re.search("SUSPECT|DISAGREES", row.note) else ""
            cells[_key(row.method)] = Cell(float(row.value), decimals=decimals, mark=mark)
    return cells


def cost_notes(table: str) -> list[str]:
    """Where the printed costs were measured and what is odd about them, each once."""
    rows = _rows(table)
    contexts = [text for text in dict.fromkeys(rows["context"]) if "qualitative" not in text]
    whole = [c for c in contexts if not any(c != d and d.startswith(c) for d in contexts)]
    pieces = [piece for note in rows["note"] for piece in re.split("; (?=SUSPECT|DISAGREES)", note)]
    notes = [f"{NOTED} {p}" if p.startswith(("SUSPECT", "DISAGREES")) else p for p in pieces if p]
    return [f"costs: {text}" for text in dict.fromkeys([*whole, *notes])]
