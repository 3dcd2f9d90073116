"""The papers' tables as they are printed: which number stands in which line and column."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import Any

import pandas as pd

from benchmark.errors import UserError, unknown
from leaderboard import layout
from leaderboard.paper_costs import METRICS, cost_rows, printed_costs
from leaderboard.published import KEYS, costs, results

CLOSES = 0.06
"""How far a printed average may be from the mean of its cells: rounding of all of them."""


@functools.cache
def table_names() -> tuple[str, ...]:
    """Every table of the papers that prints accuracies or costs."""
    pairs = [*zip(results()["paper"], results()["table"], strict=True)]
    frame = costs()
    frame = frame[frame["table"].str.startswith("Table ")]
    pairs += [*zip(frame["paper"], frame["table"].str.removeprefix("Table "), strict=True)]
    names = {f"{paper}/{table}" for paper, table in pairs}
    return tuple(sorted(names, key=_place))


def _place(name: str) -> tuple[int, int, str]:
    paper, _, table = name.partition("/")
    return list(layout.PAPERS).index(paper), int(table.rstrip("abc")), table


def tables_called(name: str) -> list[str]:
    """The tables a name means: `stablefdg/1` is both `1a` and `1b`."""
    paper, slash, _ = name.partition("/")
    if not slash:
        raise UserError(f"table {name!r}: write PAPER/NUMBER, e.g. fedfd_a/5")
    if paper not in layout.PAPERS:
        raise unknown("paper", paper, layout.PAPERS)
    found = [table for table in table_names() if re.fullmatch(rf"{re.escape(name)}[a-z]?", table)]
    if not found:
        raise unknown("table", name, [t for t in table_names() if t.startswith(f"{paper}/")])
    return found


@dataclasses.dataclass(frozen=True)
class Place:
    """A printed column of accuracies."""

    group: str
    name: str
    dataset: str
    target: str

    @property
    def average(self) -> bool:
        return self.target == "avg"


@dataclasses.dataclass(frozen=True)
class Line:
    """A printed line: its names, and which published row stands in which column."""

    block: str
    group: str
    label: str
    shares: bool
    key: tuple[str, str]
    """Method and variant as printed."""
    at: dict[Place, Any]


@dataclasses.dataclass(frozen=True)
class Printed:
    """A table as the paper prints it; columns of costs stand before the accuracies."""

    name: str
    metrics: list[str]
    columns: list[Place]
    lines: list[Line]

    @property
    def rows(self) -> list[Any]:
        """All published rows, in reading order."""
        return [line.at[place] for line in self.lines for place in self.columns if place in line.at]


def rows_of(name: str) -> pd.DataFrame:
    """The published accuracies of one exact table."""
    paper, _, number = name.partition("/")
    frame = results()
    return frame[(frame["paper"] == paper) & (frame["table"] == number)]


def printed(name: str) -> Printed:
    """The layout of one exact table."""
    rows = rows_of(name)
    blocks = rows["backbone"].nunique() > 1
    beside = bool((rows["variant"] == layout.OUT_OF_DOMAIN).any())
    lines: dict[tuple, Line] = {}
    places: dict[Place, None] = {}
    for row in rows.itertuples():
        line = _line(name, row, row.backbone if blocks else "", beside)
        place = _column(row, beside)
        lines.setdefault((line.block, line.group, line.key), line).at[place] = row
        places[place] = None
    known = {line.key for line in lines.values()}
    for key in cost_rows(name):
        if key not in known:
            shares = layout.shares(name.partition("/")[0], "", key[0])
            lines["", "", key] = Line("", "", layout.label(name, *key), shares, key, {})
    metrics = [metric for metric in METRICS if printed_costs(name, metric)]
    return Printed(name, metrics, _ordered(name, list(places)), list(lines.values()))


def _line(name: str, row: Any, block: str, beside: bool) -> Line:
    variant = "" if beside else row.variant
    return Line(
        block,
        layout.paradigm(name, row.setting, row.method, variant),
        layout.label(name, row.method, variant),
        layout.shares(row.paper, row.setting, row.method),
        (row.method, variant),
        {},
    )


def _column(row: Any, beside: bool) -> Place:
    """`beside`: in-domain and out-of-domain stand side by side."""
    if "+" in row.dataset:
        name = f"average of {row.dataset.count('+') + 1} datasets"
        return Place("", name, row.dataset, row.target)
    if beside:
        inside = row.setting == "in_domain"
        return Place("", "in-domain" if inside else "out-of-domain", row.dataset, row.target)
    return Place(
        row.dataset, "average" if row.target == "avg" else row.target, row.dataset, row.target
    )


def _ordered(name: str, places: Sequence[Place]) -> list[Place]:
    """Domains in the order the paper first prints them, even where a table lost some cells."""
    frame = results()
    own = frame[frame["paper"] == name.partition("/")[0]]
    pairs = dict.fromkeys(zip(own["dataset"], own["target"], strict=True))
    order = {pair: number for number, pair in enumerate(pairs)}
    groups = list(dict.fromkeys(place.group for place in places))

    def rank(place: Place) -> tuple:
        return groups.index(place.group), place.average, order[place.dataset, place.target]

    return sorted(places, key=rank)


def recomputed_averages() -> pd.DataFrame:
    """Every printed average whose line shows all domains, beside the mean of the printed cells."""
    frame = results()
    frame = frame[~frame["dataset"].str.contains("+", regex=False)]
    single = frame[frame["target"] != "avg"]
    domains = single.groupby("dataset")["target"].nunique()
    cells = single.groupby(KEYS, sort=False)["accuracy"].agg(["mean", "count"])
    stated = frame[frame["target"] == "avg"].set_index(KEYS)["accuracy"].rename("printed")
    table = cells.join(stated, how="inner").reset_index()
    table = table[table["count"] == table["dataset"].map(domains)]
    return table.assign(gap=table["printed"] - table["mean"])
