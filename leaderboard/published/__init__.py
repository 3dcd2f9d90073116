"""Every number that the four reproduced papers print, transcribed and checked; see README.md."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pandas as pd

from benchmark.errors import UserError, unknown

FOLDER = Path(__file__).parent
KEYS = ["paper", "table", "setting", "dataset", "backbone", "method", "variant"]
"""What tells one printed line from another; `target` tells its cells apart."""


@functools.cache
def results() -> pd.DataFrame:
    """Printed accuracies in percent, one per row; tables are named as in `fedfd_a/5`, `…/10a`."""
    frame = pd.read_csv(FOLDER / "results.csv", dtype={"variant": str, "note": str})
    frame["table"] = frame["table"].str.removeprefix("Table ")
    return frame.fillna({"variant": "", "note": ""})


@functools.cache
def costs() -> pd.DataFrame:
    """Printed costs and yes/no marks, one per row."""
    return pd.read_csv(FOLDER / "costs.csv").fillna("")


def table_names() -> list[str]:
    """All tables that print accuracies: `paper/number`."""
    pairs = results()[["paper", "table"]].drop_duplicates()
    return [f"{paper}/{table}" for paper, table in pairs.itertuples(index=False)]


def table_rows(name: str) -> pd.DataFrame:
    """The printed accuracies of one table; `stablefdg/1` is both `1a` and `1b`."""
    paper, slash, number = name.partition("/")
    if not slash:
        raise UserError(f"table {name!r}: write PAPER/NUMBER, e.g. fedfd_a/5")
    frame = results()
    own = frame[frame["paper"] == paper]
    if own.empty:
        raise unknown("paper", paper, frame["paper"].unique())
    rows = own[own["table"].str.fullmatch(rf"{re.escape(number)}[a-z]?")]
    if rows.empty:
        names = [entry for entry in table_names() if entry.startswith(f"{paper}/")]
        raise unknown("table", name, names)
    return rows
