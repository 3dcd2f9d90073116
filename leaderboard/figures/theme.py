"""One look for every figure: small type, few lines, colours that the colour-blind can tell apart.

Figures are made without pyplot, so nothing global is left behind; every paradigm also has a marker
of its own, so that no figure rests on colour alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import seaborn
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Bbox

from datasets.base import write_atomically
from leaderboard.tables import ORDER

WIDTH = 7.0
"""Inches: the text width of a two-column paper."""
GREY = "0.55"
LABELLED = 18
"""Points with a name beside them; with more, names cover each other."""
PALETTE = seaborn.color_palette("colorblind")
MARKERS = "os^Dvp<>hd8HXP*"
PARADIGMS = {
    name: (PALETTE[colour], marker)
    for name, colour, marker in zip(ORDER, (0, 3, 2, 1, 4, 9, 7), "os^vDPX", strict=True)
}
RC = {
    **seaborn.axes_style("ticks"),
    **seaborn.plotting_context("paper"),
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8.5,
    "axes.titleweight": "bold",
    "figure.titlesize": 9,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "legend.title_fontsize": 7.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.4,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "savefig.dpi": 200,
    "svg.hashsalt": "feddomainbed",
    "svg.fonttype": "path",
}


@contextlib.contextmanager
def theme() -> Iterator[None]:
    """The look, for as long as figures are made and saved."""
    with matplotlib.rc_context(RC):
        yield


def new_figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def paradigm_style(category: str) -> tuple:
    """Colour and marker of a paradigm; one that nobody knows is grey."""
    return PARADIGMS.get(category, (GREY, "o"))


def style(number: int) -> tuple:
    """Colour and marker of the n-th of anything: colours repeat later than markers do."""
    return PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]


def paradigm_legend(figure: Figure, categories: Iterable[str], marker: str = "") -> None:
    """Which colour is which paradigm; nothing where there is only one. `marker` is for figures
    that have the same for all."""
    present = set(categories)
    names = [name for name in (*ORDER, "") if name in present]
    if len(names) < 2:
        return
    handles = [
        Line2D([], [], ls="", marker=marker or own, color=colour, ms=5, label=name or "other")
        for name in names
        for colour, own in [paradigm_style(name)]
    ]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(len(handles), int(figure.get_figwidth())),
        handletextpad=0.2,
        columnspacing=1.2,
    )


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """The figure as PNG and SVG, whole or not at all; the same data give the same bytes."""
    paths = []
    for suffix, metadata in ((".png", {"Software": None}), (".svg", {"Date": None})):
        path = folder / f"{name}{suffix}"
        write_atomically(
            path,
            lambda temporary, suffix=suffix, metadata=metadata: figure.savefig(
                temporary,
                format=suffix[1:],
                metadata=metadata,
                bbox_inches="tight",
                pad_inches=0.04,
            ),
        )
        paths.append(path)
    return paths


def annotate(axes: Axes, points: pd.DataFrame, x: str, y: str, named: Iterable[str]) -> None:
    """Names beside some of the points, moved so that none covers another name or any point, with a
    thin line to the point where they had to move far; left out where there is no room at all."""
    figure = axes.figure
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    renderer = figure.canvas.get_renderer()
    scale = figure.dpi / 72
    frame = axes.get_window_extent(renderer)
    places = dict(zip(points.index, axes.transData.transform(points[[x, y]]), strict=True))
    taken = [Bbox([place - 3 * scale, place + 3 * scale]) for place in places.values()]
    for name in sorted(named, key=lambda name: -places[name][1]):
        text = axes.text(0, 0, name, fontsize=6.5, transform=None)
        size = text.get_window_extent(renderer)
        text.remove()
        found = _free_box(places[name], size.width, size.height, taken, frame, scale)
        if found is None:
            continue
        box, far = found
        taken.append(box)
        middle = (box.min + box.max) / 2
        line = {"arrowstyle": "-", "color": "0.7", "lw": 0.5, "shrinkA": 1, "shrinkB": 2}
        axes.annotate(
            name,
            points.loc[name, [x, y]],
            xytext=(middle - places[name]) / scale,
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=6.5,
            color="0.2",
            zorder=4,
            bbox={"boxstyle": "square,pad=0.05", "fc": "white", "ec": "none", "alpha": 0.9},
            arrowprops=line if far else None,
        )


DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))
REACHES = (5, 10, 16, 24, 34, 46, 60, 76, 94)


def _free_box(
    place: np.ndarray, width: float, height: float, taken: list[Bbox], frame: Bbox, scale: float
) -> tuple[Bbox, bool] | None:
    """The nearest box of a size around a point that covers nothing, and whether it is far."""
    for reach in REACHES:
        for right, up in DIRECTIONS:
            x = place[0] + right * (reach * scale + width / 2)
            y = place[1] + up * (reach * scale + (0 if right else height / 2))
            box = Bbox.from_bounds(x - width / 2, y - height / 2, width, height)
            inside = box.x0 >= frame.x0 and box.x1 <= frame.x1 + 4 * scale
            inside = inside and box.y0 >= frame.y0 and box.y1 <= frame.y1
            if inside and not box.count_overlaps(taken):
                return box, reach > 10
    return None
