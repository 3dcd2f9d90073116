"""Accuracy per held-out domain and method, and at home against away."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from leaderboard.figures.material import Material
from leaderboard.figures.theme import (
    GREY,
    LABELLED,
    WIDTH,
    annotate,
    new_figure,
    paradigm_legend,
    paradigm_style,
    style,
)
from leaderboard.select import titled


def accuracy_per_domain(data: Material) -> Figure | None:
    """A dot per method in a panel per domain: mean and standard deviation over seeds, single seeds
    behind; methods by their average, a line at FedAvg."""
    chosen = data.chosen()
    averages = data.averages(chosen)
    means = chosen.groupby("label")["test"].mean().sort_values(ascending=False)
    labels = [*averages.index, *(name for name in means.index if name not in averages.index)]
    per_seed = chosen.groupby(["label", "seed"]).agg(test=("test", "mean"), n=("target", "nunique"))
    per_seed = per_seed[per_seed["n"] == len(data.domains)].reset_index()
    panels = [(d, chosen[chosen["target"] == d]) for d in data.domains] + [("average", per_seed)]
    figure = new_figure(WIDTH, 1.1 + 0.17 * max(4, len(labels)))
    for k, (name, rows) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), k + 1)
        _dots(axes, rows, labels, data)
        axes.set_title(name)
        axes.set_yticks(range(len(labels)), labels if k == 0 else [])
        axes.set_ylim(len(labels) - 0.4, -0.6)
        axes.grid(axis="y", visible=False)
        axes.tick_params(axis="y", length=0)
        axes.locator_params(axis="x", nbins=4)
    spread = ", mean and standard deviation over seeds" if chosen["seed"].nunique() > 1 else ""
    baseline = "; dashed: FedAvg" if "fedavg" in data.labels else ""
    figure.suptitle(
        f"{data.title} · selection: {titled(data.rule)}\n"
        f"accuracy on the unseen domain (%){spread}{baseline}"
    )
    paradigm_legend(figure, (data.categories[label] for label in labels))
    return figure


def _dots(axes: Axes, rows: pd.DataFrame, labels: list[str], data: Material) -> None:
    groups = {label: group["test"] for label, group in rows.groupby("label")}
    baseline = groups.get(data.labels.get("fedavg", ""))
    if baseline is not None:
        axes.axvline(baseline.mean(), color=GREY, lw=0.8, ls=(0, (4, 3)), zorder=1)
    for place, label in enumerate(labels):
        values = groups.get(label)
        if values is None:
            axes.text(
                0.04,
                place,
                "no run",
                transform=axes.get_yaxis_transform(),
                fontsize=6.5,
                va="center",
                color=GREY,
            )
            continue
        colour, marker = paradigm_style(data.categories[label])
        if len(values) > 1:
            axes.scatter(values, [place] * len(values), s=9, color=colour, alpha=0.4, lw=0)
            axes.errorbar(values.mean(), place, xerr=values.std(), color=colour, lw=0.9, alpha=0.8)
        axes.plot(values.mean(), place, marker=marker, color=colour, ms=4.5, mec="white", mew=0.4)


def at_home_and_away(data: Material) -> Figure | None:
    """Accuracy on the clients' own validation data against the unseen domain: of every method by
    domain (left) and averaged over domains (right)."""
    chosen = data.chosen()
    if chosen["val"].isna().all():
        return None
    figure = new_figure(WIDTH, 3.3)
    left, right = figure.subplots(1, 2)
    points = chosen.groupby(["label", "target"])[["val", "test"]].mean().reset_index()
    for k, domain in enumerate(data.domains):
        own = points[points["target"] == domain]
        colour, marker = style(k)
        look = {"color": colour, "marker": marker, "alpha": 0.85, "lw": 0}
        left.scatter(own["val"], own["test"], s=18, label=domain, **look)
    left.legend(title="held out", loc="best", handletextpad=0.2)
    left.set_title("each method, by held-out domain")
    averages = data.averages(chosen)
    for label, row in averages.iterrows():
        colour, marker = paradigm_style(data.categories[label])
        right.scatter(row["val"], row["test"], s=24, color=colour, marker=marker, lw=0, zorder=3)
    right.set_title("methods, averaged over domains")
    _diagonal(left, points)
    _diagonal(right, averages)
    figure.suptitle(f"{data.title} · selection: {titled(data.rule)}")
    paradigm_legend(figure, (data.categories[label] for label in averages.index))
    if len(averages):
        _focus(right, averages)
        annotate(right, averages, "val", "test", averages.index[:LABELLED])
    return figure


def _diagonal(axes: Axes, table: pd.DataFrame) -> None:
    """The line on which nothing is lost away from home."""
    low = table[["val", "test"]].min().min()
    if low == low:
        axes.axline((low, low), slope=1, color=GREY, lw=0.8, ls=(0, (4, 3)), zorder=1)
    axes.set_xlabel("in-domain accuracy: validation data of the clients (%)")
    axes.set_ylabel("out-of-domain accuracy (%)")
    axes.margins(0.12)


def _focus(axes: Axes, table: pd.DataFrame) -> None:
    """Limits around the points, not around the diagonal."""
    for name, setter in (("val", axes.set_xlim), ("test", axes.set_ylim)):
        low, high = table[name].min(), table[name].max()
        room = 0.15 * max(high - low, 1.0)
        setter(low - room, high + 1.5 * room)
