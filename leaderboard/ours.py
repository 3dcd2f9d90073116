"""Our runs of a paper's table: every printed line read from the store. Planning needs torch."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from benchmark.protocol import protocols
from benchmark.results import Collection, ResultStore
from datasets.base import open_dataset
from leaderboard.aggregate import over_domains, over_seeds
from leaderboard.costs import cost_frame
from leaderboard.reproduce.plans import PAPERS, Line, lines_of
from leaderboard.select import SELECTIONS, check_rules, rounds_of
from leaderboard.sheets import Cell


@dataclasses.dataclass(frozen=True)
class Measured:
    """What the store holds of one table."""

    rules: list[str]
    cells: Mapping[tuple[str, int], Cell]
    """By rule and published row."""
    costs: Mapping[tuple[str, str], Mapping[str, float]]
    """By printed method and variant."""
    seeds: int
    stored: int
    planned: int
    remarks: list[str]
    """Why lines were not run, and what failed."""

    def cell(self, rule: str, row: int) -> Cell:
        return self.cells.get((rule, row), Cell())

    def cost(self, key: tuple[str, str], field: str) -> Cell:
        value = self.costs.get(key, {}).get(field)
        return Cell() if value is None else Cell(value, decimals=2)


def own_rule(lines: Sequence[Line]) -> str:
    """How the paper chooses a round."""
    key = lines[0].key
    return protocols[PAPERS[key["paper"]].settings[key["setting"]][0]].selection


def measure(
    table: str,
    store: ResultStore,
    rules: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
) -> Measured:
    """Read one exact table's runs; without rules, as its paper chooses. `changes` are fields of the
    protocol that the runs were given, such as a smaller image."""
    lines = lines_of(table, changes)
    rules = check_rules(rules or [own_rule(lines)])
    specs = list({spec.id: spec for line in lines for spec in line.specs}.values())
    found = store.collect(specs)
    cells: dict[tuple[str, int], Cell] = {}
    if found.results:
        runs, curves = _runs(lines, found), rounds_of(found.frame())
        for rule in rules:
            chosen = runs.merge(SELECTIONS[rule](curves), on=["id", "predictor"])
            chosen["value"] = chosen["test"].where(chosen["part"] == "test", chosen["val"])
            cells |= {(rule, row): cell for row, cell in _cells(lines, chosen, found)}
    else:
        cells = {(rule, row): cell for rule in rules for row, cell in _cells(lines, None, found)}
    return Measured(
        rules,
        cells,
        _costs(lines, found),
        len({spec.seed for spec in specs}),
        len(found.results),
        len(specs),
        list(_remarks(lines, found)),
    )


def _runs(lines: Sequence[Line], found: Collection) -> pd.DataFrame:
    """Which stored run, predictor and part each line reads."""
    own = {result.spec.id: result.about["predictor"] for result in found.results}
    return pd.DataFrame(
        [
            (number, spec.id, line.reading.predictor or own[spec.id], line.reading.part)
            for number, line in enumerate(lines)
            for spec in line.specs
            if spec.id in own
        ],
        columns=["line", "id", "predictor", "part"],
    )


def _cells(
    lines: Sequence[Line], chosen: pd.DataFrame | None, found: Collection
) -> Iterator[tuple[int, Cell]]:
    """A cell for every published row, with how many seeds it should rest on."""
    names = {name for line in lines for name in line.key["dataset"].split("+")}
    domains = {name: list(open_dataset(name).domains) for name in names}
    single, whole, joined = {}, {}, {}
    if chosen is not None:
        single = over_seeds(chosen, ["line", "dataset", "target"], "value")
        averages = over_domains(chosen, ["line"], domains, "value")
        whole = over_seeds(averages, ["line", "dataset"], "value")
        joined = _over_datasets(lines, averages)
    for number, line in enumerate(lines):
        planned = Counter((spec.dataset, spec.target) for spec in line.specs)
        failed = Counter((s.dataset, s.target) for s in line.specs if s in found.failed)
        seeds = len({spec.seed for spec in line.specs})
        dataset = line.key["dataset"]
        for row in line.cells.itertuples():
            if not line.specs:
                yield row.Index, Cell(text="not run")
            elif row.target != "avg":
                place = (dataset, open_dataset(dataset).find_domain(row.target))
                cell = single.get((number, *place), Cell())
                yield row.Index, _full(cell, planned[place], failed[place])
            else:
                cell = joined.get((number,)) if "+" in dataset else whole.get((number, dataset))
                yield row.Index, _full(cell or Cell(), seeds, failed.total())


def _full(cell: Cell, planned: int, failed: int) -> Cell:
    return dataclasses.replace(cell, planned=planned, failed=failed, decimals=2)


def _over_datasets(lines: Sequence[Line], averages: pd.DataFrame) -> dict[tuple, Cell]:
    """The average of dataset averages, over seeds that have all of them."""
    wanted = averages["line"].map(lambda number: lines[number].key["dataset"].count("+") + 1)
    groups = averages.assign(wanted=wanted).groupby(["line", "seed"], sort=False)
    table = groups.agg(
        value=("value", "mean"), found=("dataset", "nunique"), wanted=("wanted", "first")
    )
    table = table[table["found"] == table["wanted"]].reset_index()
    return over_seeds(table, ["line"], "value") if len(table) else {}


def _costs(lines: Sequence[Line], found: Collection) -> dict[tuple[str, str], dict[str, float]]:
    if not found.results:
        return {}
    frame = cost_frame(found.results).set_index("id")
    costs = {}
    for line in lines:
        ids = [spec.id for spec in line.specs if spec.id in frame.index]
        if ids:
            means = frame.loc[ids].mean()
            costs[line.key["method"], line.key["variant"]] = means.to_dict()
    return costs


def _remarks(lines: Sequence[Line], found: Collection) -> Iterator[str]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for line in lines:
        if not line.specs:
            reasons.setdefault((line.title, line.reason), []).append(line.key["dataset"])
    for (title, reason), names in reasons.items():
        yield f"not run: {title} on {', '.join(dict.fromkeys(names))}: {reason}"
    failed = Counter((spec.method, reason) for spec, reason in found.failed.items())
    for (method, reason), count in failed.items():
        yield f"failed: {count} run{'s' * (count != 1)} of {method}: {reason}"
    for path, reason in found.damaged.items():
        yield f"damaged: {path.name}: {reason}"
