"""Tidy CSV: one line per cell, numbers unrounded, a column for everything a cell knows."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from leaderboard.sheets import Sheet, ranks

HEADER = (
    "table",
    "block",
    "group",
    "label",
    "side",
    "shares",
    "column_group",
    "column",
    "mean",
    "std",
    "low",
    "high",
    "seeds",
    "planned",
    "failed",
    "rank",
    "text",
    "mark",
)


def tidy(sheets: Sequence[Sheet]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEADER)
    for sheet in sheets:
        writer.writerows(_lines(sheet))
    return text.getvalue()


def _lines(sheet: Sheet) -> list[tuple]:
    placed = ranks(sheet)
    return [
        (
            _safe(sheet.title),
            _safe(block.title),
            _safe(row.group),
            _safe(row.label),
            row.side,
            "yes" if row.shares else "no",
            _safe(column.group),
            _safe(column.name),
            _number(cell.mean),
            _number(cell.std),
            _number(cell.low),
            _number(cell.high),
            cell.seeds,
            cell.planned or "",
            cell.failed,
            rank or "",
            _safe(cell.text),
            cell.mark,
        )
        for b, block in enumerate(sheet.blocks)
        for r, row in enumerate(block.rows)
        for column, cell, rank in zip(sheet.columns, row.cells, placed[b, r], strict=True)
    ]


def _number(value: float) -> str:
    """Ten digits are enough for anyone and free of rounding noise."""
    return "" if math.isnan(value) else f"{value:.10g}"


def _safe(text: str) -> str:
    """A text that a spreadsheet does not take for a formula."""
    return f"'{text}" if text[:1] in tuple("=+-@") else text
