"""How much a method's accuracy depends on a hyper-parameter."""

from __future__ import annotations

import numbers
from collections.abc import Iterator

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from leaderboard.figures.material import Material
from leaderboard.figures.theme import GREY, WIDTH, new_figure, style
from leaderboard.select import titled

LOGARITHMIC = 20.0
PANELS = 3


def sensitivity(data: Material) -> Iterator[tuple[str, Figure]]:
    """A figure for every method that was run in several configurations."""
    chosen = data.chosen(every_configuration=True)
    best = data.chosen()
    kept = set(zip(best["config"], best["target"], strict=True))
    hparams = {r.spec.config: dict(r.spec.hparams) for r in data.found.results}
    for method, runs in chosen.groupby("method", observed=True):
        values = pd.DataFrame({config: hparams[config] for config in runs["config"].unique()}).T
        varied = [name for name in values if values[name].map(str).nunique() > 1]
        if varied:
            yield str(method), _figure(data, runs, values[varied], kept)


def _figure(
    data: Material, runs: pd.DataFrame, values: pd.DataFrame, kept: set[tuple[str, str]]
) -> Figure:
    names = list(values)
    columns = min(PANELS, len(names))
    rows = -(-len(names) // columns)
    figure = new_figure(WIDTH * max(columns, 1.6) / PANELS, 1.1 + 2.1 * rows)
    panels = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
    for axes, name in zip(panels, names, strict=False):
        _panel(axes, data, runs.assign(x=runs["config"].map(values[name])), kept, len(names) == 1)
        axes.set_xlabel(name)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    for axes in panels[::columns]:
        axes.set_ylabel("accuracy (%)")
    label = runs["label"].iloc[0]
    figure.suptitle(f"{label} on {data.title}\nselection: {titled(data.rule)}")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(2 * columns + 1, len(labels))
    )
    return figure


def _panel(
    axes: Axes, data: Material, runs: pd.DataFrame, kept: set[tuple[str, str]], alone: bool
) -> None:
    """Each domain thin, their average thick. Points are joined only where nothing else varies."""
    number = runs["x"].map(lambda x: isinstance(x, numbers.Real) and not isinstance(x, bool)).all()
    runs = runs if number else runs.assign(x=runs["x"].map(str))
    line = "-" if alone else ""
    for k, domain in enumerate(data.domains):
        own = runs[runs["target"] == domain].groupby(["x", "config"])["test"].mean().reset_index()
        colour, marker = style(k + 1)
        look = {"color": colour, "marker": marker, "ms": 3.5, "lw": 0.9, "alpha": 0.8}
        axes.plot(own["x"], own["test"], ls=line, label=domain, **look)
        taken = own[[(config, domain) in kept for config in own["config"]]]
        ring = {"s": 55, "facecolor": "none", "edgecolor": colour, "lw": 0.9, "zorder": 5}
        axes.scatter(taken["x"], taken["test"], **ring)
    groups = runs.groupby(["x", "config", "seed"])
    seeds = groups.agg(test=("test", "mean"), found=("target", "nunique"))
    seeds = seeds[seeds["found"] == len(data.domains)].reset_index()
    mean = seeds.groupby(["x", "config"])["test"].agg(["mean", "std"]).reset_index()
    look = {"color": "0.1", "marker": "o", "ms": 4.5, "lw": 1.6, "zorder": 4}
    axes.errorbar(mean["x"], mean["mean"], mean["std"].fillna(0), ls=line, label="average", **look)
    axes.scatter([], [], s=55, facecolor="none", edgecolor=GREY, label="chosen by validation")
    if number:
        _scale(axes, runs["x"].astype(float))


def _scale(axes: Axes, values: pd.Series) -> None:
    positive = values[values > 0]
    if len(positive) and values.max() / positive.min() >= LOGARITHMIC:
        if (values > 0).all():
            axes.set_xscale("log")
        elif (values >= 0).all():
            axes.set_xscale("symlog", linthresh=positive.min())
