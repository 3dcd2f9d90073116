"""Accuracy over rounds, with the rounds that selection takes."""

from __future__ import annotations

import math

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from leaderboard.figures.material import Material
from leaderboard.figures.theme import GREY, WIDTH, new_figure, style
from leaderboard.select import titled

SHOWN = 7
"""Methods in colour; the others are grey."""


def curves_over_rounds(data: Material) -> Figure | None:
    """A panel per held-out domain: the mean over seeds and the range of the seeds behind it. A
    mark stands at the mean of the rounds taken and at the accuracy reported for them."""
    chosen = data.chosen()
    curves = data.named(data.curves[data.curves["id"].isin(chosen["id"])])
    if curves["round"].nunique() < 2:
        return None
    oracle = data.chosen("oracle", every_configuration=True)
    oracle = oracle[oracle["id"].isin(chosen["id"])]
    order = chosen.groupby("label")["test"].mean().sort_values(ascending=False).index
    shown = [*data.averages(chosen).index, *order]
    shown = list(dict.fromkeys(shown))[:SHOWN]
    columns = min(len(data.domains), 3 if len(data.domains) > 4 else 2)
    rows = math.ceil(len(data.domains) / columns)
    figure = new_figure(WIDTH, 0.9 + 2.1 * rows)
    panels = list(figure.subplots(rows, columns, sharex=True, squeeze=False).flat)
    for axes, domain in zip(panels, data.domains, strict=False):
        parts = [table[table["target"] == domain] for table in (curves, chosen, oracle)]
        _panel(axes, *parts, shown, data.rule)
        axes.set_title(domain)
    for axes in panels[len(data.domains) :]:
        axes.set_visible(False)
    for axes in panels[-columns:]:
        axes.set_xlabel("round")
    for axes in panels[::columns]:
        axes.set_ylabel("accuracy on the unseen domain (%)")
    figure.suptitle(f"{data.title} · selection: {titled(data.rule)}")
    others = curves["label"].nunique() - len(shown)
    _legend(figure, shown, others, data.rule)
    return figure


def _panel(
    axes: Axes,
    curves: pd.DataFrame,
    chosen: pd.DataFrame,
    oracle: pd.DataFrame,
    shown: list[str],
    rule: str,
) -> None:
    for label, runs in curves[~curves["label"].isin(shown)].groupby("label"):
        mean = runs.groupby("round")["test"].mean()
        axes.plot(mean.index + 1, mean, color="0.85", lw=0.8, zorder=1, gid=label)
    for k, label in reversed(list(enumerate(shown))):
        colour, marker = style(k)
        rounds = curves[curves["label"] == label].groupby("round")["test"]
        mean, low, high = rounds.mean(), rounds.min(), rounds.max()
        axes.plot(mean.index + 1, mean, color=colour, lw=1.2, alpha=0.9, zorder=3)
        axes.fill_between(mean.index + 1, low, high, color=colour, alpha=0.1, lw=0, zorder=2)
        best = oracle.loc[oracle["label"] == label, ["round", "test"]].mean()
        if rule != "oracle":
            axes.plot(
                best["round"] + 1, best["test"], marker, mfc="white", mec=colour, ms=5, zorder=4
            )
        taken = chosen.loc[chosen["label"] == label, ["round", "test"]].mean()
        axes.plot(
            taken["round"] + 1,
            taken["test"],
            marker,
            color=colour,
            mec="white",
            mew=0.5,
            ms=6.5,
            zorder=5,
        )
    axes.xaxis.get_major_locator().set_params(integer=True)


def _legend(figure: Figure, shown: list[str], others: int, rule: str) -> None:
    handles = []
    for k, label in enumerate(shown):
        colour, marker = style(k)
        handles.append(Line2D([], [], color=colour, marker=marker, ms=5, mec="white", label=label))
    if others:
        name = f"{others} other method{'s' * (others != 1)}"
        handles.append(Line2D([], [], color="0.8", lw=1, label=name))
    taken = Line2D([], [], ls="", marker="o", color=GREY, ms=5, label=f"reported ({rule})")
    handles.append(taken)
    if rule != "oracle":
        handles.append(
            Line2D([], [], ls="", marker="o", mfc="white", color=GREY, ms=5, label="oracle")
        )
    figure.legend(handles=handles, loc="outside lower center", ncols=min(5, len(handles)))
