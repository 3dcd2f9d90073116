"""The one shape of every table: cells in rows and columns, in blocks, with ranks. No formatting.

A cell knows how many seeds it rests on and how many it should rest on; what is missing, failed or
partial is part of it and is shown by every format.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

MISSING = "–"
SHARES = "†"
"""Marks a method of which more than weights leaves a client."""
OUTSIDE = "‡"
"""Marks a number of ours that lies outside the published spread."""
DIFFERENCE = "Δ"
"""The side of a comparison that says ours minus published."""
NOTED = "*"
"""Marks a published number with a remark below the table."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """A number over some seeds, or a text; NaN where there is none."""

    mean: float = math.nan
    std: float = math.nan
    seeds: int = 0
    planned: int = 0
    """Seeds it should rest on; 0 where nobody knows."""
    failed: int = 0
    text: str = ""
    """Stands instead of the number."""
    mark: str = ""
    decimals: int = 1
    signed: bool = False
    low: float = math.nan
    """With `high`, an interval, shown instead of the standard deviation."""
    high: float = math.nan
    runs: int = 0
    """Runs a measured cost is the mean of; such a cell has no seeds."""

    @property
    def missing(self) -> bool:
        return math.isnan(self.mean) and not self.text

    @property
    def shown(self) -> float:
        """The mean as printed, which is what "best" compares."""
        return round(self.mean, self.decimals)

    @property
    def partial(self) -> str:
        """What is not whole about the number, in words."""
        if math.isnan(self.mean) or not self.planned:
            return ""
        words = [f"{self.seeds}/{self.planned} seeds"] if self.seeds < self.planned else []
        words += [f"{self.failed} failed"] if self.failed else []
        return ", ".join(words)


@dataclasses.dataclass(frozen=True)
class Column:
    """A heading, under the heading it belongs to."""

    name: str
    group: str = ""
    ranked: bool = True
    derived: bool = False
    """An average of other columns, not counted where missing cells are counted."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A line: which method, of which paradigm, and which side of a comparison."""

    label: str
    cells: tuple[Cell, ...]
    group: str = ""
    side: str = ""
    """`published`, `ours`, `Δ`, or a selection rule where several are shown."""
    shares: bool = False
    scope: str | None = ""
    """Rows of one scope compete for best; None: not ranked."""


@dataclasses.dataclass(frozen=True)
class Block:
    """Rows that are compared with each other, under a heading such as a backbone."""

    title: str
    rows: tuple[Row, ...]


@dataclasses.dataclass(frozen=True)
class Sheet:
    """One table."""

    title: str
    note: str
    columns: tuple[Column, ...]
    blocks: tuple[Block, ...]
    headings: tuple[str, str, str, str] = ("", "paradigm", "method", "")
    """Of the columns that name a row: block, group, label, side."""
    footnotes: tuple[str, ...] = ()
    brackets: bool = False
    """Spreads as `(1.4)`, the papers' way, instead of `± 1.4`."""

    @property
    def rows(self) -> list[Row]:
        return [row for block in self.blocks for row in block.rows]

    def counted(self) -> list[Cell]:
        """All cells but those that only average others and those that only subtract."""
        places = [k for k, column in enumerate(self.columns) if not column.derived]
        return [row.cells[k] for row in self.rows if DIFFERENCE not in row.side for k in places]

    @property
    def missing(self) -> int:
        """Cells without any number."""
        return sum(cell.missing for cell in self.counted())

    def caption(self) -> str:
        """The note, with what is missing and what the marks mean."""
        parts = [self.note] if self.note else []
        if self.missing:
            parts.append(f"{self.missing} of {len(self.counted())} cells missing ({MISSING})")
        if any(row.shares for row in self.rows):
            parts.append(f"{SHARES} more than weights leaves a client")
        if any(OUTSIDE in cell.mark for row in self.rows for cell in row.cells):
            parts.append(f"{OUTSIDE} outside the published spread")
        return "; ".join(parts)


def ranks(sheet: Sheet) -> Mapping[tuple[int, int], Sequence[int]]:
    """Of each (block, row): 1 for the best of its scope in a column, 2 for the second, else 0.

    Equal as printed is equal. One number alone is not the best, of two none is the second."""
    found: dict[tuple[int, int], list[int]] = {}
    for b, block in enumerate(sheet.blocks):
        for r, row in enumerate(block.rows):
            found[b, r] = [0] * len(row.cells)
        for rows in _scopes(block):
            for c, column in enumerate(sheet.columns):
                values = {r: block.rows[r].cells[c] for r in rows}
                values = {r: cell.shown for r, cell in values.items() if not math.isnan(cell.mean)}
                if column.ranked and len(values) > 1:
                    best = sorted(set(values.values()), reverse=True)[: 2 if len(values) > 2 else 1]
                    for r, value in values.items():
                        found[b, r][c] = best.index(value) + 1 if value in best else 0
    return found


def _scopes(block: Block) -> Iterator[list[int]]:
    scopes: dict[tuple[str, str], list[int]] = {}
    for r, row in enumerate(block.rows):
        if row.scope is not None:
            scopes.setdefault((row.side, row.scope), []).append(r)
    yield from scopes.values()
