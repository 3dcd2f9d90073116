"""Tables of accuracy per held-out domain, one for every setting in a store.

A cell is mean ± standard deviation over seeds, in percent. A cell that rests on fewer seeds than
it should says so, one without any run is shown as missing or failed and counted, and an average
over domains is given only over seeds that have every domain.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from benchmark.categories import CATEGORIES
from benchmark.results import Collection
from benchmark.spec import RunSpec
from datasets.base import write_atomically
from leaderboard.aggregate import Key, over_domains, over_seeds
from leaderboard.costs import cost_cells, cost_columns, cost_frame, reveals, traffic_notes
from leaderboard.formats import FORMATS, latex, markdown, render
from leaderboard.formats.latex import escape
from leaderboard.select import SELECTIONS, check_rules, choose_configurations, rounds_of, titled
from leaderboard.sheets import Block, Cell, Column, Row, Sheet

__all__ = ["FORMATS", "escape", "latex", "make_tables", "markdown", "write_tables"]

ORDER = CATEGORIES
"""Of paradigms; others follow."""
LINE = ["setting", "method", "predictor"]


def make_tables(
    found: Collection, selection: str | Sequence[str] = "training_domain", costs: bool = False
) -> list[Sheet]:
    """A table for every setting among the results, with centralised runs of the same budget as
    rows of each."""
    rules = check_rules([selection] if isinstance(selection, str) else selection)
    by_setting: dict[str, RunSpec] = {}
    for spec in [*(result.spec for result in found.results), *found.missing, *found.failed]:
        by_setting.setdefault(spec.setting, spec)
    pooled = [s for s in by_setting.values() if s.partition.startswith("pooled")]
    federated = [s for s in by_setting.values() if not s.partition.startswith("pooled")]
    reading = Reading.of(found, rules, costs)
    company = {spec.pooled_setting for spec in federated}
    sheets = []
    for spec in [*federated, *(s for s in pooled if s.pooled_setting not in company)]:
        references = [s for s in pooled if s.pooled_setting == spec.pooled_setting and s != spec]
        sheets.append(_sheet(reading, spec, [s.setting for s in (spec, *references)]))
    return sheets


@dataclasses.dataclass(frozen=True)
class Reading:
    """Everything the tables of a store are made from, worked out once."""

    found: Collection
    cells: dict[str, dict[Key, Cell]]
    """By rule, then (setting, method, predictor, target), the average without target."""
    planned: Counter
    """Seeds by (setting, method, target), those of runs that failed or are missing too."""
    failed: Counter
    shares: dict[str, bool]
    costs: pd.DataFrame | None

    @classmethod
    def of(cls, found: Collection, rules: Sequence[str], costs: bool) -> Reading:
        frame = found.frame()
        curves = None if frame.empty else rounds_of(frame)
        cells: dict[str, dict[Key, Cell]] = {}
        for rule in rules:
            cells[rule] = {}
            if curves is not None:
                chosen = choose_configurations(SELECTIONS[rule](curves), rule)
                averages = over_domains(chosen, LINE, found.domains)
                cells[rule] = over_seeds(chosen, [*LINE, "target"]) | over_seeds(averages, LINE)
        specs = {result.spec for result in found.results} | set(found.missing) | set(found.failed)
        runs = {(spec.setting, spec.method, spec.target, spec.seed) for spec in specs}
        return cls(
            found,
            cells,
            Counter(run[:3] for run in runs),
            Counter((spec.setting, spec.method, spec.target) for spec in found.failed),
            {result.spec.method: reveals(result) for result in found.results},
            _costs(found) if costs else None,
        )


def _costs(found: Collection) -> pd.DataFrame:
    frame = cost_frame(found.results)
    frame["setting"] = [result.spec.setting for result in found.results]
    frame["method"] = [result.spec.method for result in found.results]
    return frame


def _sheet(reading: Reading, spec: RunSpec, settings: Sequence[str]) -> Sheet:
    """One setting's table: rows in the order of paradigms, columns in the order of domains."""
    found = reading.found
    domains = found.domains.get(spec.dataset) or sorted(
        {key[2] for key in reading.planned if key[0] in settings}
    )
    planned = max(n for key, n in reading.planned.items() if key[0] in settings)
    rows = list(_rows(reading, settings, domains, planned))
    categories = {row.group for row in rows}
    if len(categories) == 1:
        rows = [dataclasses.replace(row, group="") for row in rows]
    columns = (*map(Column, domains), Column("average", derived=True))
    if reading.costs is not None:
        columns += cost_columns()
    training = spec.training
    steps, epochs = training.local_steps, training.local_epochs
    local = f"{steps} steps" if steps else f"{epochs} epochs"
    selection = ", ".join(titled(rule) for rule in reading.cells)
    return Sheet(
        title=f"{spec.dataset}, {spec.backbone}, {spec.partition}",
        note=(
            f"accuracy in % on the unseen domain, {training.rounds} rounds of {local}, "
            f"selection: {selection}, {planned} seed{'s' * (planned != 1)}"
        ),
        columns=columns,
        blocks=(Block("", tuple(rows)),),
        headings=("", "paradigm", "method", "selection"),
        footnotes=(*_failures(reading, settings), *_traffic(reading, settings)),
    )


def _rows(
    reading: Reading, settings: Sequence[str], domains: Sequence[str], planned: int
) -> Iterator[Row]:
    """A row per method and way of predicting, for each rule; also for methods without a result."""
    lines = {key[:3] for cells in reading.cells.values() for key in cells if key[0] in settings}
    seen = {line[:2] for line in lines}
    lines |= {(*key[:2], "") for key in reading.planned if key[0] in settings} - {
        (*pair, "") for pair in seen
    }
    about = reading.found.about
    named = []
    for setting, method, predictor in lines:
        facts = about.get(method, {"label": method, "category": "", "predictor": predictor})
        own = predictor in (facts["predictor"], "")
        label = facts["label"] if own else f"{facts['label']} ({predictor})"
        named.append((facts["category"], label, (setting, method, predictor)))
    several = len(reading.cells) > 1
    for category, label, line in sorted(named, key=_place):
        for rule, cells in reading.cells.items():
            scope = "centralised" if category == "centralised" else ""
            yield Row(
                label,
                _cells(reading, cells, line, domains, planned),
                group=category,
                side=rule if several else "",
                shares=reading.shares.get(line[1], False),
                scope=None if rule == "oracle" else scope,
            )


def _place(named: tuple[str, str, tuple]) -> tuple:
    category, label, line = named
    order = ORDER.index(category) if category in ORDER else len(ORDER)
    return order, category, label.lower(), line


def _cells(
    reading: Reading, cells: dict[Key, Cell], line: Key, domains: Sequence[str], planned: int
) -> tuple[Cell, ...]:
    row = [
        dataclasses.replace(
            cells.get((*line, domain), Cell()),
            planned=planned,
            failed=reading.failed[(*line[:2], domain)],
        )
        for domain in domains
    ]
    average = dataclasses.replace(cells.get(line, Cell()), planned=planned)
    if reading.costs is None:
        return (*row, average)
    costs = reading.costs
    own = costs[(costs["setting"] == line[0]) & (costs["method"] == line[1])]
    return (*row, average, *cost_cells(own))


def _failures(reading: Reading, settings: Sequence[str]) -> Iterator[str]:
    reasons = Counter(
        (spec.method, reason)
        for spec, reason in reading.found.failed.items()
        if spec.setting in settings
    )
    for (method, reason), count in sorted(reasons.items()):
        yield f"{method}: {count} run{'s' * (count != 1)} failed: {reason}"


def _traffic(reading: Reading, settings: Sequence[str]) -> list[str]:
    if reading.costs is None:
        return []
    return traffic_notes(r for r in reading.found.results if r.spec.setting in settings)


@dataclasses.dataclass(frozen=True)
class Written:
    """Tables as text for the terminal, and the files they were written to."""

    terminal: list[str]
    paths: list[Path]


def write_tables(found: Collection, folder: Path, selection: str) -> Written:
    """The tables of a sweep as `table.md` and `table.tex`."""
    sheets = make_tables(found, selection)
    paths = []
    for name, form in (("table.md", "markdown"), ("table.tex", "latex")):
        text = render(sheets, form)
        write_atomically(folder / name, lambda path, text=text: path.write_text(text))
        paths.append(folder / name)
    return Written([markdown(sheet) for sheet in sheets], paths)
