"""The papers' printed lines as rows of the board. Needs no torch: a printed name is matched to a
method through the readings of the papers, which are plain data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pandas as pd

from datasets.base import plain
from leaderboard.published import KEYS, costs, results
from leaderboard.reproduce import fedadg, fedfd_a, gperxan, stablefdg
from leaderboard.reproduce.reading import Paper
from leaderboard.site.facts import MethodFacts
from leaderboard.site.rows import PUBLISHED, Cell, Row, setting_label

PAPERS: dict[str, tuple[str, Paper]] = {
    "fedfd_a": ("FedFD-A", fedfd_a.PAPER),
    "gperxan": ("gPerXAN", gperxan.PAPER),
    "stablefdg": ("StableFDG", stablefdg.PAPER),
    "fedadg": ("FedADG", fedadg.PAPER),
}
PARTITIONS = {
    "single_domain_3": "single_domain",
    "single_domain_4": "single_domain",
    "single_domain_5": "single_domain",
    "single_domain_30": "single_domain_k:clients=10",
    "multi_domain_dirichlet_30": "dirichlet_domain:alpha=0.5",
    "multi_domain_pairs_3": "domain_pairs",
    "cross_silo_30_iid": "single_domain_k:clients=10",
    "cross_silo_30_dir0.5": "dirichlet_label:alpha=0.5",
    "cross_silo_30_dir0.1": "dirichlet_label:alpha=0.1",
    "centralized": "pooled",
    "in_domain": "in_domain",
}


def printed_rows(
    facts: Mapping[str, MethodFacts], find_domain: Callable[[str, str], str]
) -> list[Row]:
    """Every printed line once: one that a later table repeats, in whole or in part, is named with
    both tables. Means over several datasets are left to the tables."""
    frame = results()
    frame = frame[~frame["dataset"].str.contains("+", regex=False)]
    lines: dict[tuple, list[tuple[list[str], dict[str, Cell]]]] = {}
    for key, group in frame.groupby(KEYS, sort=False):
        named = dict(zip(KEYS, key, strict=True))
        table = named.pop("table")
        cells = {row.target: _cell(row) for row in group.itertuples()}
        _place(lines.setdefault(tuple(named.values()), []), table, cells)
    rows = []
    for key, versions in lines.items():
        named = dict(zip([name for name in KEYS if name != "table"], key, strict=True))
        rows += [_row(named, tables, cells, facts, find_domain) for tables, cells in versions]
    return rows


def _cell(row) -> Cell:
    spread = None if math.isnan(row.std) else float(row.std)
    return Cell(float(row.accuracy), spread, None if math.isnan(row.seeds) else int(row.seeds))


def _place(versions: list[tuple[list[str], dict[str, Cell]]], table: str, cells: dict) -> None:
    """Join a line with one that prints the same numbers, else keep it apart."""
    for tables, known in versions:
        shared = known.keys() & cells.keys()
        if shared and all(known[target].mean == cells[target].mean for target in shared):
            known.update({target: cell for target, cell in cells.items() if target not in known})
            tables.append(table)
            return
    versions.append(([table], dict(cells)))


def _row(named, tables, cells, facts, find_domain) -> Row:
    title, paper = PAPERS[named["paper"]]
    parts = parts_of_printed(paper, tables, named["method"], named["variant"])
    known = facts.get(parts[0]) if parts else None
    shares = None
    if parts and all(part in facts for part in parts):
        shares = tuple(dict.fromkeys(kind for part in parts for kind in facts[part].shares))
    dataset, partition = named["dataset"], PARTITIONS[named["setting"]]
    if dataset == "DomainNet" and named["setting"] == "single_domain_30":
        partition = "single_domain_k:clients=6"
    average = cells.pop("avg", None)
    where = ", ".join(dict.fromkeys(tables))
    return Row(
        label=named["method"],
        parts=parts,
        variant=named["variant"] or ("control" if partition == "in_domain" else ""),
        dataset=dataset,
        setting=setting_label(partition),
        protocol=title,
        backbone=named["backbone"],
        category=known.category if known else "other",
        shares=shares,
        cells={find_domain(dataset, target): cell for target, cell in cells.items()},
        average=average,
        seeds=next((cell.seeds for cell in [average, *cells.values()] if cell), None),
        source=PUBLISHED,
        origin=f"{title}, Table\N{NO-BREAK SPACE}{where}",
        group=(PUBLISHED, named["paper"], named["setting"], dataset, named["backbone"]),
    )


def parts_of_printed(paper: Paper, tables: list[str], method: str, variant: str) -> tuple[str, ...]:
    """The methods that a printed name stands for."""
    for table in [*tables, "*"]:
        if (reading := paper.variants.get((table, method, variant))) is not None:
            return tuple(reading.expression.split("+"))
    if (reading := paper.methods.get(method)) is not None:
        return tuple(reading.expression.split("+"))
    same = {plain(name): value for name, value in paper.methods.items()}
    reading = same.get(plain(method))
    return tuple(reading.expression.split("+")) if reading else ()


def printed_costs() -> dict[str, pd.DataFrame]:
    """Printed costs by the method they are about."""
    found: dict[str, list[int]] = {}
    frame = costs().reset_index(drop=True)
    for k, row in enumerate(frame.itertuples()):
        _, paper = PAPERS[row.paper]
        parts = parts_of_printed(paper, [], row.method, "")
        if parts:
            found.setdefault(parts[0], []).append(k)
    return {part: frame.iloc[places] for part, places in found.items()}
