"""From chosen rounds to cells: mean and standard deviation over seeds, in percent."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import pandas as pd

from leaderboard.sheets import Cell

Key = tuple[Hashable, ...]


def over_seeds(chosen: pd.DataFrame, by: Sequence[str], value: str = "test") -> dict[Key, Cell]:
    """A cell for every combination of `by`; each of its rows must be another seed."""
    groups = chosen.groupby(list(by), sort=False, observed=True, dropna=False)[value]
    table = 100 * groups.agg(["mean", "std"])
    table["count"] = groups.count()
    return {
        key if isinstance(key, tuple) else (key,): Cell(mean, std, int(count))
        for key, mean, std, count in table.itertuples(name=None)
        if count
    }


def over_domains(
    chosen: pd.DataFrame,
    by: Sequence[str],
    domains: Mapping[str, Sequence[str]],
    value: str = "test",
) -> pd.DataFrame:
    """The average over all domains of a dataset, seed by seed; seeds that lack one are left out."""
    wanted = chosen["dataset"].map({name: len(names) for name, names in domains.items()})
    keys = list(dict.fromkeys([*by, "dataset", "seed"]))
    groups = chosen.assign(wanted=wanted).groupby(keys, sort=False, observed=True, dropna=False)
    table = groups.agg(
        **{value: (value, "mean"), "found": ("target", "nunique"), "wanted": ("wanted", "first")}
    )
    return table[table["found"] == table["wanted"]].reset_index()
