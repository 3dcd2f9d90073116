"""What all formats share: how a number is written and which names stand before a row."""

from __future__ import annotations

import math
from collections.abc import Iterator

from leaderboard.sheets import MISSING, SHARES, Cell, Row, Sheet, ranks


def number(cell: Cell) -> str:
    sign = "+" if cell.signed else ""
    return f"{cell.mean:{sign}.{cell.decimals}f}"


def spread(cell: Cell, brackets: bool) -> str:
    """The spread over seeds; nothing where only one seed or none is known."""
    if not math.isnan(cell.low):
        return f"[{cell.low:.{cell.decimals}f}, {cell.high:.{cell.decimals}f}]"
    if math.isnan(cell.std):
        return ""
    value = f"{cell.std:.{cell.decimals}f}"
    return f"({value})" if brackets else f"± {value}"


def blank(cell: Cell) -> str:
    """A cell without a number."""
    return cell.text or ("failed" if cell.failed else MISSING)


def stub_columns(sheet: Sheet) -> list[int]:
    """Which of block, group, label and side are worth a column."""
    used = (
        any(block.title for block in sheet.blocks),
        any(row.group for row in sheet.rows),
        True,
        any(row.side for row in sheet.rows),
    )
    return [k for k, wanted in enumerate(used) if wanted]


def walk(sheet: Sheet) -> Iterator[tuple[tuple[str, str, str, str], Row, list[int]]]:
    """Every row with its names (block, group, label, side) and its ranks. A name that the row
    above has too is empty, a label only where the side tells the two apart."""
    placed = ranks(sheet)
    for b, block in enumerate(sheet.blocks):
        above: Row | None = None
        for r, row in enumerate(block.rows):
            label = row.label + (f" {SHARES}" if row.shares else "")
            group = row.group
            if above is not None and above.group == row.group:
                group = ""
                if above.label == row.label and row.side:
                    label = ""
            title = "" if above is not None else block.title
            yield (title, group, label, row.side), row, list(placed[b, r])
            above = row


def grouped(sheet: Sheet) -> list[tuple[str, int, int]]:
    """Neighbouring columns of one group: name, first, how many."""
    groups: list[tuple[str, int, int]] = []
    for k, column in enumerate(sheet.columns):
        if groups and groups[-1][0] == column.group:
            name, start, count = groups[-1]
            groups[-1] = (name, start, count + 1)
        else:
            groups.append((column.group, k, 1))
    return groups
