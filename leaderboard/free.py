"""Free tables, `--rows method --columns dataset,target`: any fields of the runs.

A cell averages over seeds. Over domains and over datasets it averages only where the table says so
(neither in rows nor in columns) and only over seeds that have all of them. Anything else that
differs within a cell is an error that names it, for a mean over it would mean nothing.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd

from benchmark.errors import UserError
from benchmark.results import Collection
from benchmark.spec import RunSpec, Training
from leaderboard.aggregate import Key, over_domains, over_seeds
from leaderboard.costs import cost_cells, cost_columns, cost_frame, reveals, traffic_notes
from leaderboard.fields import REPEATS, check_fields, field_frame
from leaderboard.select import (
    CELL,
    SELECTIONS,
    check_rules,
    choose_configurations,
    rounds_of,
    titled,
)
from leaderboard.sheets import Block, Cell, Column, Row, Sheet
from leaderboard.tables import ORDER

AVERAGE = "average"
SETTINGS = {field.name for kind in (RunSpec, Training) for field in dataclasses.fields(kind)}


@dataclasses.dataclass(frozen=True)
class Shape:
    """What stands where."""

    rows: list[str]
    columns: list[str]
    costs: bool = False

    @property
    def keys(self) -> list[str]:
        return [*self.rows, *self.columns]

    def check(self, frame: pd.DataFrame) -> None:
        if not self.rows:
            raise UserError("name at least one field in --rows, e.g. --rows method")
        twice = [name for name in self.rows if name in self.columns]
        if twice:
            raise UserError(f"{twice[0]} stands both in --rows and in --columns; choose one")
        check_fields(self.keys, frame)

    def fixed(self, frame: pd.DataFrame) -> list[str]:
        """Fields that must not differ within a cell: all but repeats, domains, and
        hyper-parameters, of which the best by validation are taken."""
        free = {*REPEATS, "hparams", "training", "target", "dataset", *self.keys}
        return [name for name in frame.columns if name in SETTINGS - free]


def free_table(found: Collection, shape: Shape, rules: Sequence[str]) -> Sheet:
    """One table of the results; restrict them first with `restricted`."""
    rules = check_rules(rules)
    runs = field_frame([result.spec for result in found.results], shape.keys)
    shape.check(runs.assign(predictor=""))
    chosen = _chosen(found, runs, shape, rules)
    table = chosen[rules[0]]
    _refuse_mixtures(table, shape)
    cells = {rule: _cells(rows, shape, found) for rule, rows in chosen.items()}
    planned = max((c.seeds for rows in cells.values() for c in rows.values()), default=0)
    columns = _columns(table, shape, found)
    rows = tuple(_rows(found, shape, runs, cells, _ordered(table, shape.rows, found), columns))
    rows = tuple(dataclasses.replace(row, cells=_planned(row.cells, planned)) for row in rows)
    return Sheet(
        title=f"{', '.join(shape.rows)} by {', '.join(shape.columns) or AVERAGE}",
        note=_note(table, shape, rules, planned),
        columns=tuple(_heading(column, shape, found) for column in columns)
        + (cost_columns() if shape.costs else ()),
        blocks=(Block("", rows),),
        headings=("", ", ".join(shape.rows[:-1]), shape.rows[-1], "selection"),
        footnotes=(
            *(f"{spec}: failed: {reason}" for spec, reason in found.failed.items()),
            *(traffic_notes(found.results) if shape.costs else ()),
        ),
    )


def _chosen(
    found: Collection, runs: pd.DataFrame, shape: Shape, rules: Sequence[str]
) -> dict[str, pd.DataFrame]:
    """The chosen round of every run with the run's fields, under each rule. Only a method's own
    way of predicting, unless predictors are asked for."""
    curves = rounds_of(found.frame())
    runs = runs.assign(own=[result.about["predictor"] for result in found.results])
    extra = [name for name in runs.columns if name not in curves.columns or name == "id"]
    cell = list(dict.fromkeys([*CELL, *shape.keys]))
    chosen = {}
    for rule in rules:
        table = SELECTIONS[rule](curves).merge(runs[extra], on="id")
        if "predictor" not in shape.keys:
            table = table[table["predictor"] == table["own"]]
        chosen[rule] = choose_configurations(table, rule, cell)
    return chosen


def _refuse_mixtures(chosen: pd.DataFrame, shape: Shape) -> None:
    """Raise if a cell holds runs that differ in more than seed, domain and dataset."""
    fixed = shape.fixed(chosen)
    groups = chosen.groupby([*shape.keys, "dataset"], observed=True, dropna=False)
    counts = groups[fixed].nunique(dropna=False)
    for name in fixed:
        if (counts[name] > 1).any():
            values = ", ".join(sorted({str(value) for value in chosen[name]}))
            raise UserError(
                f"cells would mix runs with different {name} ({values}); add {name} to --rows or "
                f"--columns, or choose one with --where {name}=…"
            )


def _cells(chosen: pd.DataFrame, shape: Shape, found: Collection) -> dict[Key, Cell]:
    """Cells by row and column, with averages over domains where the columns end with them."""
    cells = over_seeds(chosen, shape.keys) if "target" in shape.keys else {}
    if "target" in shape.keys and shape.columns[-1:] != ["target"]:
        return cells
    outer = [key for key in shape.keys if key != "target"]
    averages = over_domains(chosen, outer, found.domains)
    if "dataset" not in shape.keys and len(averages):
        groups = averages.groupby([*outer, "seed"], sort=False, observed=True, dropna=False)
        averages = groups.agg(test=("test", "mean"), found=("dataset", "nunique"))
        averages = averages[averages["found"] == chosen["dataset"].nunique()].reset_index()
    last = (AVERAGE,) if "target" in shape.keys else ()
    named = over_seeds(averages, outer) if len(averages) else {}
    return cells | {(*key, *last): cell for key, cell in named.items()}


def _columns(chosen: pd.DataFrame, shape: Shape, found: Collection) -> list[tuple]:
    """The values of the columns that occur, in order; after the domains their average."""
    if not shape.columns:
        return [] if shape.costs else [()]
    values = _ordered(chosen, shape.columns, found)
    if shape.columns[-1] != "target":
        return values
    columns: list[tuple] = []
    for outer, group in itertools.groupby(values, key=lambda value: value[:-1]):
        columns += [*group, (*outer, AVERAGE)]
    return columns


def _ordered(chosen: pd.DataFrame, names: Sequence[str], found: Collection) -> list[tuple]:
    """Combinations of values that occur: methods by paradigm, domains as in their dataset."""
    domains = [domain for listed in found.domains.values() for domain in listed]
    about = found.about

    def place(name: str, value: Any) -> tuple:
        if name == "method":
            category, label = about[value]["category"], about[value]["label"]
            order = ORDER.index(category) if category in ORDER else len(ORDER)
            return order, category, label.lower()
        if name == "target":
            return (domains.index(value),)
        number = isinstance(value, int | float) and value == value
        return (0, value, "") if number else (1, 0, str(value))

    pairs = chosen[list(names)].drop_duplicates().itertuples(index=False, name=None)
    return sorted(pairs, key=lambda values: list(map(place, names, values)))


def _rows(
    found: Collection,
    shape: Shape,
    runs: pd.DataFrame,
    cells: dict[str, dict[Key, Cell]],
    lines: list[tuple],
    columns: list[tuple],
) -> Iterator[Row]:
    sharing = {result.spec.method: reveals(result) for result in found.results}
    about = found.about
    own = [name for name in shape.rows if name in runs.columns]
    costs = cost_frame(found.results).merge(runs[["id", *own]], on="id") if shape.costs else None
    for values in lines:
        named = dict(zip(shape.rows, values, strict=True))
        texts = [_text(name, value, found) for name, value in named.items()]
        category = about.get(named.get("method"), {}).get("category")
        scope = "centralised" if category == "centralised" else ""
        scope += "".join(f"/{named[name]}" for name in ("dataset", "target") if name in named)
        extra = () if costs is None else cost_cells(_of(costs, named))
        for rule, table in cells.items():
            yield Row(
                texts[-1],
                (*(table.get((*values, *column), Cell()) for column in columns), *extra),
                group=", ".join(texts[:-1]),
                side=rule if len(cells) > 1 else "",
                shares=sharing.get(named.get("method"), False),
                scope=None if rule == "oracle" else scope,
            )


def _of(costs: pd.DataFrame, named: dict[str, Any]) -> pd.DataFrame:
    for name, value in named.items():
        costs = costs[costs[name] == value] if name in costs.columns else costs
    return costs


def _planned(cells: tuple[Cell, ...], planned: int) -> tuple[Cell, ...]:
    return tuple(c if c.runs else dataclasses.replace(c, planned=planned) for c in cells)


def _text(name: str, value: Any, found: Collection) -> str:
    if name == "method":
        return found.about[value]["label"]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _heading(column: tuple, shape: Shape, found: Collection) -> Column:
    if not column:
        return Column(AVERAGE)
    *outer, last = (
        _text(name, value, found) for name, value in zip(shape.columns, column, strict=True)
    )
    derived = last == AVERAGE and shape.columns[-1] == "target"
    return Column(last, ", ".join(outer), derived=derived)


def _note(chosen: pd.DataFrame, shape: Shape, rules: Sequence[str], planned: int) -> str:
    """What was averaged, and what differs between cells without being named in the table."""
    parts = [f"accuracy in % on the unseen domain, selection: {', '.join(map(titled, rules))}"]
    over = [name for name in ("target", "dataset") if name not in shape.keys]
    over = [name for name in over if chosen[name].nunique() > 1]
    if over:
        parts.append(f"averaged over {' and '.join(over)}")
    differs = [name for name in shape.fixed(chosen) if chosen[name].nunique(dropna=False) > 1]
    if differs:
        parts.append(f"cells differ in {', '.join(differs)}")
    parts.append(f"{planned} seed{'s' * (planned != 1)}")
    return ", ".join(parts)
