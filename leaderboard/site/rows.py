"""The rows of the board: one method on one dataset under one setting, printed or measured."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from benchmark.hparams import parse_expression
from benchmark.results import Collection, Result
from benchmark.spec import RunSpec
from leaderboard.costs import shared_kinds
from leaderboard.select import choose_configurations, rounds_of, training_domain

PUBLISHED, MEASURED, SUBMITTED = "published", "measured", "submitted"
LINE = ["dataset", "setting", "method", "predictor"]


@dataclasses.dataclass(frozen=True)
class Cell:
    """Accuracy in percent."""

    mean: float
    std: float | None = None
    seeds: int | None = None


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the board."""

    label: str
    parts: tuple[str, ...]
    """Names of the methods it is made of, the first one leading; none where a printed name could
    not be matched."""
    variant: str
    dataset: str
    setting: str
    protocol: str
    backbone: str
    category: str
    shares: tuple[str, ...] | None
    """Kinds of messages besides weights; None where nobody knows."""
    cells: Mapping[str, Cell]
    average: Cell | None
    seeds: int | None
    source: str
    origin: str
    group: tuple[str, ...]
    """Rows of one group compete for best."""
    detail: str = ""
    traffic: float | None = None
    """Megabytes per round, both directions, all clients."""
    results: tuple[Result, ...] = ()
    curves: Mapping[str, Sequence[tuple[int, float]]] = dataclasses.field(default_factory=dict)
    """Accuracy over rounds by target, the mean over seeds."""
    best: frozenset[str] = frozenset()
    """Columns in which it is the best of its group; `` for the average."""


def measured_rows(
    found: Collection,
    protocol_of: Mapping[str, str],
    source: str = MEASURED,
    origin: str = "measured",
) -> list[Row]:
    """One row per method, way of predicting and setting: each method's best configuration, rounds
    chosen on the training domains."""
    if not found.results:
        return []
    curves = rounds_of(found.frame())
    chosen = choose_configurations(training_domain(curves), "training_domain")
    by_id = {result.spec.id: result for result in found.results}
    kept = curves.merge(chosen[["id", "predictor"]], on=["id", "predictor"])
    means = 100 * kept.groupby([*LINE, "target", "round"], sort=True)["test"].mean()
    histories = dict(iter(means.reset_index().groupby(LINE, sort=False)))
    rows = []
    for line, runs in chosen.groupby(LINE, sort=False):
        results = [by_id[run] for run in runs["id"]]
        row = _measured(results, runs, histories[line], line[-1])
        protocol = protocol_of.get(results[0].spec.setting, "own")
        rows.append(dataclasses.replace(row, protocol=protocol, source=source, origin=origin))
    return rows


def _measured(
    results: Sequence[Result], runs: pd.DataFrame, history: pd.DataFrame, predictor: str
) -> Row:
    first = results[0]
    spec, about = first.spec, first.about
    own = predictor == about["predictor"]
    wide = (100 * runs.pivot_table(index="seed", columns="target", values="test")).reindex(
        columns=list(about["domains"])
    )
    whole = wide.dropna().mean(axis=1)
    traffic = [sum(result.costs["bytes_per_round"].values()) / 1e6 for result in results]
    return Row(
        label=about["label"] if own else f"{about['label']} ({predictor})",
        parts=tuple(part.strip() for part in spec.method.split("+")),
        variant="",
        dataset=spec.dataset,
        setting=setting_label(spec.partition),
        protocol="own",
        backbone=spec.backbone,
        category=about["category"],
        shares=measured_kinds(results),
        cells={d: cell for d in about["domains"] if (cell := _cell(wide[d].dropna()))},
        average=_cell(whole),
        seeds=int(runs.groupby("target")["seed"].nunique().max()),
        source=MEASURED,
        origin="measured",
        group=(MEASURED, spec.setting),
        detail=budget(spec),
        traffic=sum(traffic) / len(traffic),
        results=tuple(results),
        curves={
            target: [(int(r) + 1, float(v)) for r, v in zip(own["round"], own["test"], strict=True)]
            for target, own in history.groupby("target", sort=False)
        },
    )


def _cell(values: pd.Series) -> Cell | None:
    if values.empty:
        return None
    spread = float(values.std()) if len(values) > 1 else None
    return Cell(float(values.mean()), spread, len(values))


def measured_kinds(results: Iterable[Result]) -> tuple[str, ...]:
    """What left the clients besides weights, as counted in the runs."""
    return tuple(sorted(set().union(*map(shared_kinds, results))))


def budget(spec: RunSpec) -> str:
    """How long a run trains, in a few words."""
    training = spec.training
    local = training.local_steps or training.local_epochs
    unit = "step" if training.local_steps else "epoch"
    words = f"{training.rounds} rounds of {local} {unit}{'s' * (local != 1)}"
    if training.clients_per_round:
        words += f", {training.clients_per_round} clients each"
    return words


PARTITIONS = {
    "single_domain": "one client per domain",
    "single_domain_k": "{clients} clients per domain",
    "dirichlet_domain": "mixed domains, Dirichlet {alpha}",
    "dirichlet_label": "label skew, Dirichlet {alpha}",
    "domain_pairs": "two domains per client",
    "iid": "clients alike",
    "pooled": "centralised",
    "in_domain": "tested on training domains",
}


@functools.cache
def setting_label(partition: str) -> str:
    """Who holds what, in words; a partition of one's own as it is written."""
    name, settings = parse_expression(partition)
    try:
        return PARTITIONS[name].format(**settings)
    except KeyError:
        return partition


def mark_best(rows: Iterable[Row]) -> list[Row]:
    """Best as printed, per column, among the rows of a group; ablations and lone rows have none."""
    rows = list(rows)
    groups: dict[tuple[str, ...], list[int]] = {}
    for k, row in enumerate(rows):
        if not row.variant:
            groups.setdefault(row.group, []).append(k)
    for members in groups.values():
        if len(members) < 2:
            continue
        columns = {column for k in members for column in rows[k].cells}
        for column in [*sorted(columns), ""]:
            shown = {k: value for k in members if (value := _shown(rows[k], column)) is not None}
            if len(shown) < 2:
                continue
            for k, value in shown.items():
                if value == max(shown.values()):
                    rows[k] = dataclasses.replace(rows[k], best=rows[k].best | {column})
    return rows


def _shown(row: Row, column: str) -> float | None:
    cell = row.average if column == "" else row.cells.get(column)
    return None if cell is None else round(cell.mean, 1)
