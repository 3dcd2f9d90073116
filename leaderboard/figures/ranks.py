"""The critical-difference diagram: average ranks, methods that cannot be told apart joined."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmark.errors import UserError
from benchmark.results import Collection
from leaderboard.figures.theme import WIDTH, new_figure, paradigm_legend, paradigm_style
from leaderboard.select import titled
from leaderboard.stats import average_ranks, complete_blocks, friedman, scores


def critical_difference(found: Collection, rule: str, each_seed: bool = False) -> Figure | str:
    """Over all settings of a store; a text says why there is none."""
    from scikit_posthocs import critical_difference_diagram

    try:
        blocks = complete_blocks(scores(found, rule), each_seed)
    except UserError as error:
        return str(error)
    test = friedman(blocks.table)
    if test is None:
        return "Friedman's test needs three methods and two held-out domains"
    ranks = average_ranks(blocks.table)
    figure = new_figure(WIDTH, 1.3 + 0.14 * len(ranks))
    axes = figure.add_subplot()
    categories = {facts["label"]: facts["category"] for facts in found.about.values()}
    critical_difference_diagram(
        ranks,
        test.pairs,
        alpha=test.alpha,
        ax=axes,
        label_fmt_left="{label}  {rank:.2f} ",
        label_fmt_right=" {rank:.2f}  {label}",
        color_palette={n: paradigm_style(categories.get(n, ""))[0] for n in ranks.index},
        label_props={"fontsize": 7.5},
        marker_props={"marker": "o", "s": 16},
        elbow_props={"linewidth": 0.8},
        crossbar_props={"linewidth": 2.5, "color": "0.25", "solid_capstyle": "butt"},
        text_h_margin=0.05 * len(ranks),
    )
    _axis(axes, math.ceil(ranks.max()), test.critical_difference)
    axes.set_title(
        f"average rank over {len(blocks.table)} blocks, selection: {titled(rule)}; Friedman "
        f"p = {test.p:.3g}\njoined methods cannot be told apart at α = {test.alpha:g} (Nemenyi)",
        fontweight="normal",
    )
    paradigm_legend(figure, (categories.get(label, "") for label in ranks.index), "o")
    return figure


def _axis(axes: Axes, count: int, distance: float) -> None:
    """The scale up to the last rank, and above it the critical difference as a ruler."""
    axes.grid(visible=False)
    axes.spines["top"].set_visible(True)
    axes.spines["top"].set_bounds(1, count)
    axes.set_xticks(range(1, count + 1, -(-count // 15)))
    height = 2.0
    axes.plot([1, 1 + distance], [height] * 2, color="0.25", lw=1.2, marker="|", ms=5)
    axes.text(
        1 + distance / 2,
        height + 0.35,
        f"critical difference {distance:.2f}",
        ha="center",
        va="bottom",
        fontsize=7,
    )
    axes.set_ylim(top=height + 1.6)
