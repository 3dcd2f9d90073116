"""Accuracy against what it costs, with the methods that no other beats in both."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

from leaderboard.figures.material import Material
from leaderboard.figures.theme import (
    GREY,
    LABELLED,
    WIDTH,
    annotate,
    new_figure,
    paradigm_legend,
    paradigm_style,
)
from leaderboard.select import titled

LOGARITHMIC = 5.0
"""Costs that span more than this factor stand on a logarithmic axis."""


def pareto_front(costs: Sequence[float], accuracies: Sequence[float]) -> list[int]:
    """Places of points that no other beats in both, cheapest first; of equals the first."""
    order = sorted(range(len(costs)), key=lambda k: (costs[k], -accuracies[k], k))
    front: list[int] = []
    for k in order:
        if not front or accuracies[k] > accuracies[front[-1]]:
            front.append(k)
    return front


def accuracy_against_communication(data: Material) -> Figure | None:
    traffic = data.costs["up_mb"] + data.costs["down_mb"]
    return _tradeoff(data, traffic, "communication, up and down, all clients (MB per round)")


def accuracy_against_training(data: Material) -> Figure | None:
    return _tradeoff(data, data.costs["train_seconds"], "training time of a run (s)")


def _tradeoff(data: Material, costs: pd.Series, name: str) -> Figure | None:
    """Centralised methods are left out: nothing is sent, for everything is in one place."""
    averages = data.averages()
    federated = [data.categories[label] != "centralised" for label in averages.index]
    averages = averages[federated] if any(federated) else averages
    table = averages.assign(cost=costs.reindex(averages.index)).dropna(subset=["cost", "test"])
    if table.empty:
        return None
    figure = new_figure(0.72 * WIDTH, 3.4 + 0.08 * min(len(table), LABELLED))
    axes = figure.add_subplot()
    _front(axes, table)
    for label, row in table.iterrows():
        colour, marker = paradigm_style(data.categories[label])
        axes.scatter(row["cost"], row["test"], s=26, color=colour, marker=marker, lw=0, zorder=3)
    _scale(axes, table["cost"])
    axes.margins(y=0.12)
    axes.set_xlabel(name)
    axes.set_ylabel("accuracy, mean over unseen domains (%)")
    axes.set_title(f"{data.title}\nselection: {titled(data.rule)}", loc="left")
    paradigm_legend(figure, (data.categories[label] for label in table.index))
    front = pareto_front(table["cost"].tolist(), table["test"].tolist())
    named = sorted({*range(min(LABELLED, len(table))), *front})
    annotate(axes, table, "cost", "test", table.index[named])
    return figure


def _front(axes: Axes, table: pd.DataFrame) -> None:
    places = pareto_front(table["cost"].tolist(), table["test"].tolist())
    front = table.iloc[places]
    axes.step(front["cost"], front["test"], where="post", color=GREY, lw=1, zorder=1)
    last = front.iloc[-1]
    axes.plot([last["cost"], table["cost"].max()], [last["test"]] * 2, color=GREY, lw=1, zorder=1)
    axes.scatter(
        front["cost"],
        front["test"],
        s=80,
        facecolor="none",
        edgecolor=GREY,
        lw=0.9,
        zorder=2,
        label="Pareto front",
    )
    axes.legend(loc="lower right")


def _scale(axes: Axes, costs: pd.Series) -> None:
    low, high = costs.min(), costs.max()
    if low > 0 and high / low > LOGARITHMIC:
        axes.set_xscale("log")
        axes.set_xlim(low / 1.4, high * 1.8)
        subdivisions = (1.0, 2.0, 5.0) if high / low < 300 else (1.0,)
        axes.xaxis.set_major_locator(LogLocator(subs=subdivisions))
        axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        room = 0.12 * max(high - low, 0.05 * high)
        axes.set_xlim(low - room, high + 2.5 * room)
