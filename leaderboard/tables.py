"""Tables of accuracy per held-out domain: built once as data, then written as markdown or LaTeX.

A cell is mean ± standard deviation over seeds, in percent. A cell that rests on fewer seeds than
its neighbours says so, one without any run is shown as missing and counted, and an average over
domains is given only where every domain has one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from tabulate import tabulate

from benchmark.results import Collection
from benchmark.spec import RunSpec
from datasets.base import write_atomically
from leaderboard.select import select

MISSING = "–"


@dataclasses.dataclass(frozen=True)
class Cell:
    """Accuracy in percent over some seeds; NaN where there is none."""

    mean: float
    std: float
    seeds: int

    @property
    def missing(self) -> bool:
        return math.isnan(self.mean)

    @property
    def shown(self) -> float:
        """The mean as printed, which is what "best" compares."""
        return round(self.mean, 1)


@dataclasses.dataclass(frozen=True)
class Table:
    """One comparison: methods under the same setting, a column per held-out domain."""

    title: str
    note: str
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    seeds: int
    """The most seeds any cell rests on."""

    def best(self, column: int) -> float:
        """The largest printed mean of a column."""
        shown = [row[column].shown for row in self.cells if not row[column].missing]
        return max(shown, default=math.nan)

    @property
    def missing(self) -> int:
        """Cells without any run, averages not counted."""
        return sum(cell.missing for row in self.cells for cell in row[:-1])


def make_tables(found: Collection, selection: str = "training_domain") -> list[Table]:
    """A table for every setting among the results."""
    by_setting: dict[str, RunSpec] = {}
    for result in found.results:
        by_setting.setdefault(result.spec.setting, result.spec)
    federated = [s for s in by_setting.values() if not s.partition.startswith("pooled")]
    pooled = [s for s in by_setting.values() if s.partition.startswith("pooled")]
    chosen = select(found.frame(), selection)
    tables = []
    for spec in federated or pooled:
        references = {s.setting for s in pooled if s.pooled_setting == spec.pooled_setting}
        rows = chosen[chosen["setting"].isin({spec.setting} | references)]
        tables.append(_table(spec, rows, found, selection))
    orphans = [s for s in pooled if federated and not _has_company(s, federated)]
    for spec in orphans:
        tables.append(_table(spec, chosen[chosen["setting"] == spec.setting], found, selection))
    return tables


def _has_company(pooled: RunSpec, federated: Sequence[RunSpec]) -> bool:
    return any(spec.pooled_setting == pooled.pooled_setting for spec in federated)


def _table(spec: RunSpec, rows: pd.DataFrame, found: Collection, selection: str) -> Table:
    """One setting's table: rows in the order of categories, columns in the order of domains."""
    domains = found.domains[spec.dataset]
    seeds = int(rows.groupby(["method", "predictor", "target"])["seed"].nunique().max())
    lines = []
    for (method, predictor), runs in rows.groupby(["method", "predictor"], sort=False):
        about = found.about[method]
        own = predictor == about["predictor"]
        label = about["label"] if own else f"{about['label']} ({predictor})"
        lines.append((about["category"], label.lower(), label, _row(runs, domains)))
    lines.sort(key=lambda line: line[:2])
    oracle = ", ORACLE: chosen on the test domain" if selection == "oracle" else ""
    training = spec.training
    local = (
        f"{training.local_steps} steps"
        if training.local_steps
        else f"{training.local_epochs} epochs"
    )
    return Table(
        title=f"{spec.dataset}, {spec.backbone}, {spec.partition}",
        note=(
            f"accuracy in % on the unseen domain, {training.rounds} rounds of {local}, "
            f"selection: {selection}{oracle}, {seeds} seed{'s' * (seeds != 1)}"
        ),
        columns=(*domains, "average"),
        labels=tuple(label for *_, label, _ in lines),
        cells=tuple(row for *_, row in lines),
        seeds=seeds,
    )


def _row(runs: pd.DataFrame, domains: Sequence[str]) -> tuple[Cell, ...]:
    """Cells of one method: one per domain, and the average over domains seed by seed."""
    wide = (100 * runs.pivot_table(index="seed", columns="target", values="test")).reindex(
        columns=list(domains)
    )
    cells = [_cell(wide[domain].dropna()) for domain in domains]
    return (*cells, _cell(wide.dropna().mean(axis=1)))


def _cell(values: pd.Series) -> Cell:
    return Cell(float(values.mean()), float(values.std()), len(values))


def markdown(table: Table) -> str:
    """The table as GitHub shows it; best in bold."""

    def text(cell: Cell, best: float) -> str:
        if cell.missing:
            return MISSING
        value = f"{cell.mean:.1f}" + (f" ± {cell.std:.1f}" if cell.seeds > 1 else "")
        value = f"**{value}**" if cell.shown == best else value
        return value + _partial(cell, table)

    rows = [[label, *texts] for label, texts in _texts(table, text)]
    body = tabulate(
        rows,
        ("method", *table.columns),
        tablefmt="pipe",
        disable_numparse=True,
        colalign=("left", *["right"] * len(table.columns)),
    )
    return f"**{table.title}**\n\n{body}\n\n{_caption(table)}"


def latex(table: Table) -> str:
    """The table for a paper that uses booktabs; best in bold."""

    def text(cell: Cell, best: float) -> str:
        if cell.missing:
            return "--"
        value = f"{cell.mean:.1f}"
        value = rf"\textbf{{{value}}}" if cell.shown == best else value
        spread = rf" {{\scriptsize$\pm${cell.std:.1f}}}" if cell.seeds > 1 else ""
        return value + spread + _partial(cell, table)

    header = " & ".join(["Method", *map(escape, table.columns)])
    rows = [" & ".join([escape(label), *texts]) + r" \\" for label, texts in _texts(table, text)]
    lines = [
        r"\begin{table}[t]",
        r"\centering",
        rf"\caption{{{escape(table.title)}: {escape(_caption(table))}.}}",
        rf"\begin{{tabular}}{{l{'c' * len(table.columns)}}}",
        r"\toprule",
        rf"{header} \\",
        r"\midrule",
        *rows,
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines)


def _texts(table: Table, text) -> list[tuple[str, list[str]]]:
    bests = [table.best(column) for column in range(len(table.columns))]
    return [
        (label, [text(cell, best) for cell, best in zip(row, bests, strict=True)])
        for label, row in zip(table.labels, table.cells, strict=True)
    ]


def _partial(cell: Cell, table: Table) -> str:
    return f" ({cell.seeds}/{table.seeds} seeds)" if cell.seeds < table.seeds else ""


def _caption(table: Table) -> str:
    if not table.missing:
        return table.note
    total = len(table.cells) * (len(table.columns) - 1)
    return f"{table.note}; {table.missing} of {total} cells missing ({MISSING})"


def escape(text: str) -> str:
    """Text that LaTeX prints as it stands."""
    signs = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    signs |= {sign: "\\" + sign for sign in "&%$#_{}"} | {"–": "--"}
    return "".join(signs.get(sign, sign) for sign in text)


FORMATS = {"markdown": markdown, "latex": latex}


@dataclasses.dataclass(frozen=True)
class Written:
    """Tables as text for the terminal, and the files they were written to."""

    terminal: list[str]
    paths: list[Path]


def write_tables(found: Collection, folder: Path, selection: str) -> Written:
    """The tables of a sweep as `table.md` and `table.tex`."""
    tables = make_tables(found, selection)
    paths = []
    for name, render in (("table.md", markdown), ("table.tex", latex)):
        text = "\n\n".join(render(table) for table in tables) + "\n"
        write_atomically(folder / name, lambda path, text=text: path.write_text(text))
        paths.append(folder / name)
    return Written([markdown(table) for table in tables], paths)
