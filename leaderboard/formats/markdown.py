"""Markdown as GitHub shows it: no colour, so a mark says what grey says elsewhere."""

from __future__ import annotations

import math
import re

from tabulate import tabulate

from leaderboard.formats.parts import blank, grouped, number, spread, stub_columns, walk
from leaderboard.sheets import Cell, Sheet


def markdown(sheet: Sheet) -> str:
    stubs = stub_columns(sheet)
    rows = [
        [plain(names[k]) for k in stubs]
        + [_text(cell, place, sheet) for cell, place in zip(row.cells, places, strict=True)]
        for names, row, places in walk(sheet)
    ]
    body = tabulate(
        rows,
        [*(plain(sheet.headings[k]) for k in stubs), *map(plain, _headings(sheet))],
        tablefmt="pipe",
        disable_numparse=True,
        colalign=(*["left"] * len(stubs), *["right"] * len(sheet.columns)),
    )
    footnotes = "\n".join(f"- {plain(note)}" for note in sheet.footnotes)
    parts = (f"**{plain(sheet.title)}**", body, plain(sheet.caption()), footnotes)
    return "\n\n".join(part for part in parts if part)


def _text(cell: Cell, place: int, sheet: Sheet) -> str:
    if math.isnan(cell.mean):
        value = plain(blank(cell))
    else:
        value = number(cell)
        if around := spread(cell, sheet.brackets):
            value += f" {around}"
        value = {1: f"**{value}**", 2: f"<ins>{value}</ins>"}.get(place, value)
    return value + plain(cell.mark) + (f" ({cell.partial})" if cell.partial else "")


def _headings(sheet: Sheet) -> list[str]:
    """Headings in one line: the group is named where there are several."""
    several = len(grouped(sheet)) > 1
    return [f"{c.group} {c.name}".strip() if several else c.name for c in sheet.columns]


def plain(text: str) -> str:
    """Text that GitHub prints as it stands, in one line."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\|*~`])", r"\\\1", text)
