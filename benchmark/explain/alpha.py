"""How much of each sample's own statistics FedFD-A's adapters use, layer by layer (its Fig. 6).

The paper has one panel for each held-out domain, with the test samples of the run that held it out.
So has this where runs differ in nothing but that; of a single run, every domain is shown as that
run's model sees it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmark.explain.finished import Finished
from benchmark.method import compose
from benchmark.seeds import seed_for
from benchmark.spec import RunSpec
from leaderboard.figures.theme import GREY, WIDTH, new_figure, style
from methods.fedfd_a import FedFDA, interpolations

COLUMNS = 2
LABELLED = 8
"""Layers with their names under them; more have numbers."""


def misfit(spec: RunSpec) -> str | None:
    """Why a run has no α to show."""
    if issubclass(compose(spec.method), FedFDA):
        return None
    return f"{spec.method} has no adapters; choose a run of fedfd_a"


def alphas(run: Finished, only_unseen: bool = False) -> pd.DataFrame:
    """One row per sample and layer: domain, whether it is unseen, layer, α."""
    samples = run.federation.evaluator.held_out.evaluation_batches()
    parts = []
    for batch in samples if only_unseen else run.batches():
        names = [run.domains[k] for k in batch.domains.tolist()]
        for layer, values in interpolations(run.model, batch.images).items():
            parts.append(
                pd.DataFrame({"domain": names, "layer": layer, "alpha": values.cpu().numpy()})
            )
    frame = pd.concat(parts, ignore_index=True)
    order = pd.CategoricalDtype(run.domains, ordered=True)
    return frame.assign(
        domain=frame["domain"].astype(order), unseen=frame["domain"] == run.spec.target
    )


def gathered(runs: Sequence[Finished]) -> list[tuple[list[Finished], pd.DataFrame]]:
    """Runs that go in one figure, with its data: repeats of one configuration and seed that hold
    out different domains go together."""
    groups: dict[tuple[str, int], list[Finished]] = {}
    for run in runs:
        groups.setdefault((run.spec.config, run.spec.seed), []).append(run)
    made = []
    for group in groups.values():
        several = len(group) > 1
        made.append((group, pd.concat([alphas(run, several) for run in group])))
    return made


def alpha_figure(frame: pd.DataFrame, title: str) -> Figure:
    """A panel per domain: the layers from input to output, every sample a point."""
    present = [name for name in frame["domain"].cat.categories if (frame["domain"] == name).any()]
    columns = min(COLUMNS, len(present))
    rows = -(-len(present) // columns)
    figure = new_figure(WIDTH * columns / COLUMNS, 0.9 + 1.75 * rows)
    panels = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    layers = list(dict.fromkeys(frame["layer"]))
    for axes, name in zip(panels, present, strict=False):
        own = frame[frame["domain"] == name]
        colour = style(list(frame["domain"].cat.categories).index(name) + 1)[0]
        _panel(
            axes, [own.loc[own["layer"] == layer, "alpha"].to_numpy() for layer in layers], colour
        )
        kind = "unseen, test" if own["unseen"].all() else "source, validation"
        count = len(own) // len(layers)
        axes.set_title(f"{name} ({kind}: {count} samples)", loc="left", color=colour)
        _name_layers(axes, layers)
    for axes in panels[len(present) :]:
        axes.set_visible(False)
    for axes in panels[len(present) - columns : len(present)]:
        axes.set_xlabel("normalisation layer, from input to output")
    figure.supylabel("α (0: global, 1: the sample's own statistics)", fontsize=8)
    figure.suptitle(title)
    figure.legend(
        handles=[
            Line2D([], [], ls="", marker="o", ms=2.5, color=GREY, label="sample"),
            Line2D([], [], lw=3, color=GREY, label="middle half"),
            Line2D([], [], marker="o", ms=4, mfc="white", mec="0.1", color=GREY, label="median"),
        ],
        loc="outside lower center",
        ncols=3,
    )
    return figure


def _panel(axes: Axes, values: Sequence[np.ndarray], colour: tuple) -> None:
    rng = np.random.default_rng(seed_for(0, "jitter"))
    places = np.arange(1, len(values) + 1)
    for place, own in zip(places, values, strict=True):
        spread = rng.uniform(-0.3, 0.3, len(own))
        look = {"s": 2.5, "lw": 0, "alpha": 0.35, "color": colour, "rasterized": True}
        axes.scatter(place + spread, own, **look)
    low, middle, high = np.array([np.quantile(own, (0.25, 0.5, 0.75)) for own in values]).T
    axes.plot(places, middle, color="0.25", lw=0.9, zorder=3)
    axes.vlines(places, low, high, color="0.25", lw=3, zorder=3)
    axes.scatter(places, middle, s=16, color="white", edgecolor="0.1", lw=0.8, zorder=4)
    axes.set_ylim(-0.04, 1.04)


def _name_layers(axes: Axes, layers: Sequence[str]) -> None:
    places = range(1, len(layers) + 1)
    if len(layers) <= LABELLED:
        axes.set_xticks(places, layers)
    else:
        axes.set_xticks(places, places, fontsize=6)
    axes.set_xlim(0.4, len(layers) + 0.6)
    axes.grid(axis="x", visible=False)


def title_of(runs: Sequence[Finished]) -> str:
    """What a figure of these runs is about."""
    spec = runs[0].spec
    about = f"{runs[0].result.about['label']} on {spec.dataset}, {spec.backbone}, seed {spec.seed}"
    if len(runs) > 1:
        return f"{about}: each domain held out in turn"
    return f"{about}: all domains, {spec.target} held out"
