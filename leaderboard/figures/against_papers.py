"""Our accuracies against the published ones. Planning the papers' runs needs torch."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmark.results import ResultStore
from leaderboard.figures.theme import GREY, WIDTH, new_figure, style
from leaderboard.layout import PAPERS
from leaderboard.published import results


def gather_pairs(runs: Path, rule: str | None = None) -> pd.DataFrame:
    """Published and own accuracy of every printed cell that has at least one run; cells that
    several tables repeat count once."""
    from leaderboard.ours import measure
    from leaderboard.printed import rows_of, table_names

    pairs = []
    store = ResultStore(runs)
    for table in table_names():
        rows = rows_of(table)
        if rows.empty:
            continue
        measured = measure(table, store, [rule] if rule else ())
        for row in rows.itertuples():
            cell = measured.cell(measured.rules[0], row.Index)
            if not math.isnan(cell.mean):
                kind = "average" if row.target == "avg" else "domain"
                pairs.append(
                    (
                        row.paper,
                        row.dataset,
                        row.method,
                        kind,
                        row.accuracy,
                        row.std,
                        cell.mean,
                        cell.std,
                    )
                )
    names = ("paper", "dataset", "method", "kind", "published", "spread", "ours", "std")
    return pd.DataFrame(pairs, columns=names).drop_duplicates()


def published_against_ours(pairs: pd.DataFrame) -> Figure | None:
    """One point per printed cell; on the line they agree."""
    if pairs.empty:
        return None
    figure = new_figure(0.62 * WIDTH, 3.9)
    axes = figure.add_subplot()
    for k, (paper, own) in enumerate(pairs.groupby("paper", sort=False)):
        _points(axes, own, PAPERS[paper], *style(k))
    low = min(pairs["published"].min(), pairs["ours"].min()) - 2
    high = max(pairs["published"].max(), pairs["ours"].max()) + 2
    axes.plot([low, high], [low, high], color=GREY, lw=0.8, ls=(0, (4, 3)), zorder=1)
    axes.set(xlim=(low, high), ylim=(low, high), aspect="equal")
    axes.set_xlabel("published accuracy (%)")
    axes.set_ylabel("our accuracy (%)")
    gap = (pairs["ours"] - pairs["published"]).abs()
    known = pairs["spread"].notna()
    inside = (gap[known] <= pairs.loc[known, "spread"]).sum()
    axes.set_title(
        f"{len(pairs)} printed cells, mean |Δ| {gap.mean():.2f} points\n"
        f"{inside} of {known.sum()} within the published spread",
        fontweight="normal",
    )
    axes.scatter([], [], s=26, color="none", edgecolor=GREY, lw=0.8, label="average, hollow")
    axes.legend(loc="upper left", handletextpad=0.2)
    return figure


def _points(axes: Axes, pairs: pd.DataFrame, name: str, colour: tuple, marker: str) -> None:
    """Single domains filled, averages hollow; both spreads as thin bars."""
    bars = {"fmt": "none", "ecolor": colour, "elinewidth": 0.6, "alpha": 0.4}
    axes.errorbar(pairs["published"], pairs["ours"], pairs["std"], pairs["spread"], **bars)
    look = {"marker": marker, "edgecolor": colour, "lw": 0.8, "zorder": 3}
    own = pairs[pairs["kind"] == "domain"]
    axes.scatter(own["published"], own["ours"], s=16, color=colour, label=name, **look)
    average = pairs[pairs["kind"] == "average"]
    axes.scatter(average["published"], average["ours"], s=26, color="none", **look)


def reads_papers(datasets: set[str]) -> bool:
    """Whether a paper prints anything about these datasets."""
    printed = {part for name in results()["dataset"].unique() for part in name.split("+")}
    return bool(printed & datasets)
