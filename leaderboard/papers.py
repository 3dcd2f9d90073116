"""The papers' tables in their own layout: as published, as measured here, or one above the other.

Rows stand in the order of the paper, grouped by paradigm; several datasets are groups of columns,
several backbones are blocks of rows. Numbers are printed as the paper prints them; one that was
corrected or is doubtful carries a mark and a remark. Nothing here needs torch unless our own runs
are asked for.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from leaderboard import layout
from leaderboard.paper_costs import MEASURED, METRICS, cost_notes, printed_costs
from leaderboard.printed import Line, Place, Printed, printed
from leaderboard.select import titled
from leaderboard.sheets import DIFFERENCE, NOTED, OUTSIDE, Block, Cell, Column, Row, Sheet

if TYPE_CHECKING:
    from leaderboard.ours import Measured

SHOWS = ("published", "ours", "both")
FLAGS = re.compile("CORRECTED|FILLED|IMPLIED|UNRESOLVED|DISAGREES|SUSPECT")
SELF_EVIDENT = ("mean of the two dataset averages", "mean of the three dataset averages")
FEW = 5
"""A remark on more numbers than this is one on the table."""
EMPTY = Cell(text=" ")


def paper_sheet(name: str, show: str = "published", measured: Measured | None = None) -> Sheet:
    """One exact table; `measured` is needed unless only the published numbers are shown."""
    table = printed(name)
    columns = [Column(METRICS[m].name, ranked=False) for m in table.metrics]
    columns += [
        Column(place.name, place.group, derived=place.average and _shows_domains(table, place))
        for place in table.columns
    ]
    blocks: dict[str, list[Row]] = {}
    for line in table.lines:
        blocks.setdefault(line.block, []).extend(_rows(table, line, show, measured))
    paper, _, number = name.partition("/")
    return Sheet(
        title=f"{layout.PAPERS[paper]}, Table {number}: {layout.TITLES[name]}{_common(table)}",
        note=_note(table, show, measured),
        columns=tuple(columns),
        blocks=tuple(Block(title, tuple(rows)) for title, rows in blocks.items()),
        headings=("backbone", "paradigm", "method", "" if show == "both" else "selection"),
        footnotes=tuple(_footnotes(table, show, measured)),
        brackets=True,
    )


def _shows_domains(table: Printed, average: Place) -> bool:
    return any(p.group == average.group and not p.average for p in table.columns)


def _common(table: Printed) -> str:
    """What all cells have in common and no heading says."""
    groups = {place.group for place in table.columns}
    datasets = {row.dataset for row in table.rows}
    backbones = {row.backbone for row in table.rows}
    words = [*datasets] if len(groups) == 1 and len(datasets) == 1 else []
    words = [word for word in words if word not in layout.TITLES[table.name]]
    words += backbones if len(backbones) == 1 else []
    return f" ({', '.join(words)})" if words else ""


def _rows(table: Printed, line: Line, show: str, measured: Measured | None) -> list[Row]:
    """The published row, our rows, and what they differ by."""
    scope = line.group if layout.ranks_by_paradigm(table.name) else ""
    stated = _stated(table, line)
    make = functools.partial(Row, line.label, group=line.group, shares=line.shares)
    if measured is None:
        return [make(stated, scope=scope)]
    both = show == "both"
    rows = [make(stated, side="published", scope=scope)] if both else []
    several = len(measured.rules) > 1
    for rule in measured.rules:
        ours = _ours(table, line, measured, rule)
        differences = _differences(table, stated, ours)
        ranked = None if rule == "oracle" else scope
        name = rule if several else ""
        if not both:
            rows.append(make(_marked(ours, differences), side=name, scope=ranked))
            continue
        rows.append(make(ours, side=f"ours {name}".strip(), scope=ranked))
        if rule != "oracle":
            rows.append(make(differences, side=f"{DIFFERENCE} {name}".strip(), scope=None))
    return rows


def _stated(table: Printed, line: Line) -> tuple[Cell, ...]:
    costs = [printed_costs(table.name, metric).get(line.key, Cell()) for metric in table.metrics]
    return (*costs, *(_published(line.at.get(place)) for place in table.columns))


def _published(row: Any) -> Cell:
    """A printed number with the digits it is printed with."""
    if row is None:
        return Cell()
    known = isinstance(row.accuracy_printed, str)
    digits = max(_digits(row.accuracy), _digits(row.accuracy_printed) if known else 2)
    seeds = 0 if math.isnan(row.seeds) else int(row.seeds)
    mark = NOTED if FLAGS.search(row.note) else ""
    return Cell(row.accuracy, row.std, seeds, mark=mark, decimals=digits)


def _digits(value: Any) -> int:
    """Digits behind the point."""
    return len(re.match(r"\d*\.?(\d*)", str(value))[1])


def _ours(table: Printed, line: Line, measured: Measured, rule: str) -> tuple[Cell, ...]:
    costs = [measured.cost(line.key, METRICS[metric].field) for metric in table.metrics]
    rows = [line.at.get(place) for place in table.columns]
    return (*costs, *(Cell() if row is None else measured.cell(rule, row.Index) for row in rows))


def _differences(
    table: Printed, stated: tuple[Cell, ...], ours: tuple[Cell, ...]
) -> tuple[Cell, ...]:
    """Ours minus published, marked where it is larger than the published spread; none of what
    depends on the machine."""
    portable = [METRICS[metric].portable for metric in table.metrics]
    portable += [True] * len(table.columns)
    cells = []
    for compare, before, now in zip(portable, stated, ours, strict=True):
        if not compare or math.isnan(before.mean) or math.isnan(now.mean):
            cells.append(EMPTY)
            continue
        value = now.mean - before.mean
        mark = OUTSIDE if abs(value) > before.std else ""
        cells.append(Cell(value, decimals=now.decimals, signed=True, mark=mark))
    return tuple(cells)


def _marked(ours: tuple[Cell, ...], differences: tuple[Cell, ...]) -> tuple[Cell, ...]:
    pairs = zip(ours, differences, strict=True)
    return tuple(dataclasses.replace(cell, mark=cell.mark + other.mark) for cell, other in pairs)


def _note(table: Printed, show: str, measured: Measured | None) -> str:
    if not table.rows:
        return "as the paper marks them"
    settings = ", ".join(dict.fromkeys(row.setting for row in table.rows))
    parts = [f"accuracy in %, {settings}"]
    if show != "ours":
        seeds = {row.seeds for row in table.rows if not math.isnan(row.seeds)}
        said = f"{int(max(seeds))} seeds" if seeds else "number of seeds not stated"
        kinds = {row.spread_kind for row in table.rows if isinstance(row.spread_kind, str)}
        words = {"std": "standard deviation", "ci95": "95% interval"}
        spread = f", ({' or '.join(words[kind] for kind in sorted(kinds))})" if kinds else ""
        parts.append(f"published: {said}{spread}")
    if measured is not None:
        rules = ", ".join(titled(rule) for rule in measured.rules)
        parts.append(
            f"ours: {measured.seeds} seed{'s' * (measured.seeds != 1)} planned, "
            f"{measured.stored} of {measured.planned} runs stored, selection: {rules}"
        )
    return "; ".join(parts)


def _footnotes(table: Printed, show: str, measured: Measured | None) -> Iterator[str]:
    """Remarks on single numbers, then on the whole table, then on our runs."""
    if show != "ours":
        places: dict[str, list[str]] = {}
        for line in table.lines:
            for place in table.columns:
                if place in line.at and line.at[place].note not in ("", *SELF_EVIDENT):
                    names = (line.block, line.label, place.group, place.name)
                    where = " ".join(name for name in names if name)
                    places.setdefault(line.at[place].note, []).append(where)
        for note, where in sorted(places.items(), key=lambda item: not FLAGS.search(item[0])):
            mark = f"{NOTED} " if FLAGS.search(note) else ""
            yield f"{mark}{', '.join(where)}: {note}" if len(where) <= FEW or mark else note
        yield from cost_notes(table.name)
    if measured is not None:
        yield from (MEASURED[m] for m in table.metrics if m in MEASURED)
        yield from measured.remarks
