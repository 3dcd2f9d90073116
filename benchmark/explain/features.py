"""What the classifier sees: t-SNE of the features, by class and by domain.

Of any method, a line of panels per run, so that two can be compared (gPerXAN's Fig. 3). A run of
FedADG shows its reference distribution as well (its Fig. 4), and with `--before` also the model
before training (its Fig. 3).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from benchmark.errors import UserError
from benchmark.execute import Place, assemble
from benchmark.explain.finished import Finished
from benchmark.seeds import seed_for
from benchmark.spec import RunSpec
from datasets.base import open_dataset
from leaderboard.figures.theme import GREY, WIDTH, new_figure, style
from methods.fedadg import FedADG
from methods.ops.alignment import fixed_reference, one_hot

MOST_CLASSES = 10
"""With a colour of their own, the most frequent ones; others are grey."""
REFERENCES = 10
"""Draws of a reference distribution for each class."""


def misfit(spec: RunSpec) -> str | None:
    """Every run has features."""
    return None


@torch.no_grad()
def features_of(run: Finished, per_domain: int) -> tuple[np.ndarray, pd.DataFrame]:
    """Features (samples, size), and for each its class and domain; at most `per_domain` samples
    of each domain, drawn by the run's seed."""
    classes = open_dataset(run.spec.dataset).classes
    vectors, labels, domains = [], [], []
    for batch in run.batches():
        vectors.append(run.model.features(batch.images).cpu())
        labels += [classes[k] for k in batch.labels.tolist()]
        domains += [run.domains[k] for k in batch.domains.tolist()]
    about = pd.DataFrame({"label": labels, "domain": domains})
    about["unseen"] = about["domain"] == run.spec.target
    kept = []
    for name, rows in about.groupby("domain", sort=False).indices.items():
        rng = np.random.default_rng(seed_for(run.spec.seed, "explain", name))
        kept += rng.permutation(rows)[:per_domain].tolist()
    kept.sort()
    return torch.cat(vectors)[kept].numpy(), about.iloc[kept].reset_index(drop=True)


@torch.no_grad()
def references_of(run: Finished) -> tuple[np.ndarray, list[str]]:
    """Draws of the distribution that FedADG aligns features with, and their classes."""
    method, model = run.federation.method, run.model
    classes = open_dataset(run.spec.dataset).classes
    if not isinstance(method, FedADG) or method.lambda_0 == 0:
        return np.empty((0, model.feature_size), np.float32), []
    labels = torch.arange(len(classes)).repeat_interleave(REFERENCES)
    torch.manual_seed(seed_for(run.spec.seed, "explain", "reference"))
    if method.learns_reference:
        generator = method.make_generator(model)
        generator.load_state_dict(run.federation.server.memory["fedadg"])
        drawn = generator(one_hot(labels, len(classes), method.adg_onehot))
    else:
        drawn = fixed_reference(method.adg_reference, len(labels), model.feature_size)
    return drawn.cpu().numpy(), [classes[k] for k in labels.tolist()]


def embedded(run: Finished, per_domain: int) -> pd.DataFrame:
    """One row per point: x, y, label, domain, unseen; `domain` is empty for references."""
    vectors, about = features_of(run, per_domain)
    drawn, labels = references_of(run)
    extra = pd.DataFrame({"label": labels, "domain": "", "unseen": False})
    places = flattened(np.concatenate([vectors, drawn]), seed_for(run.spec.seed, "explain"))
    frame = pd.concat([about, extra], ignore_index=True) if labels else about
    return frame.assign(x=places[:, 0], y=places[:, 1])


def flattened(vectors: np.ndarray, seed: int) -> np.ndarray:
    """Vectors in the plane, by t-SNE; the same bits for the same seed."""
    from sklearn.manifold import TSNE

    if len(vectors) < 10:
        raise UserError(f"{len(vectors)} samples are too few for t-SNE; raise --samples")
    if not np.ptp(vectors, axis=0).any():
        raise UserError("all features are the same: this model tells nothing apart")
    perplexity = min(30.0, (len(vectors) - 1) / 3)
    tsne = TSNE(init="pca", perplexity=perplexity, random_state=seed % 2**32, n_jobs=1)
    return tsne.fit_transform(vectors.astype(np.float64))


def before_training(run: Finished, place: Place) -> Finished:
    """The same run when no round had been made."""
    federation = assemble(run.spec, place)
    torch.manual_seed(seed_for(run.spec.seed, "prepare"))  # as the loop begins
    federation.method.prepare(federation.server, federation.clients)
    return dataclasses.replace(run, federation=federation)


def features_figure(lines: Sequence[tuple[str, pd.DataFrame]], title: str) -> Figure:
    """A line of two panels for each titled frame: colours are classes, then domains. A domain has
    the same marker in both; the unseen one has dark edges."""
    everything = pd.concat([frame for _, frame in lines])
    points = everything[everything["domain"] != ""]
    domains = list(dict.fromkeys(points["domain"]))
    labels = sorted(points["label"].value_counts().index[:MOST_CLASSES])
    figure = new_figure(WIDTH, 0.9 + 2.9 * len(lines))
    panels = figure.subplots(len(lines), 2, squeeze=False)
    for (name, frame), (left, right) in zip(lines, panels, strict=True):
        _panel(left, frame, "label", labels, domains)
        _panel(right, frame, "domain", domains, domains)
        left.set_title(name, loc="left", fontsize=7.5)
        right.set_title("the same, coloured by domain", loc="left", fontsize=7.5)
    others = points["label"].nunique() - len(labels)
    _legends(figure, labels, others, domains, points, bool((everything["domain"] == "").any()))
    figure.suptitle(title)
    return figure


def _panel(
    axes: Axes, frame: pd.DataFrame, by: str, values: Sequence[str], domains: Sequence[str]
) -> None:
    for k, domain in enumerate(domains):
        own = frame[frame["domain"] == domain]
        if own.empty:
            continue
        colours = [style(values.index(v))[0] if v in values else GREY for v in own[by]]
        unseen = own["unseen"].iloc[0]
        look = {"s": 13 if unseen else 9, "marker": style(k)[1], "zorder": 3 if unseen else 2}
        edges = {"edgecolor": "0.15", "lw": 0.45} if unseen else {"lw": 0}
        axes.scatter(own["x"], own["y"], c=colours, alpha=0.85, **look, **edges)
    drawn = frame[frame["domain"] == ""]
    if len(drawn):
        axes.scatter(drawn["x"], drawn["y"], marker="*", s=26, c="crimson", lw=0, zorder=4)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color("0.8")


def _legends(
    figure: Figure,
    labels: Sequence[str],
    others: int,
    domains: Sequence[str],
    points: pd.DataFrame,
    with_reference: bool,
) -> None:
    """Below the left panels the classes, below the right ones the domains."""
    colours = [Patch(color=style(k)[0], label=label) for k, label in enumerate(labels)]
    if others:
        colours.append(Patch(color=GREY, label=f"{others} others"))
    unseen = set(points.loc[points["unseen"], "domain"])
    marks = []
    for k, domain in enumerate(domains):
        colour, marker = style(k)
        look = {"mec": "0.15", "mew": 0.6} if domain in unseen else {"mew": 0}
        name = f"{domain} (unseen)" if domain in unseen else domain
        marks.append(Line2D([], [], ls="", marker=marker, color=colour, label=name, ms=5, **look))
    if with_reference:
        label = "reference distribution"
        marks.append(Line2D([], [], ls="", marker="*", color="crimson", label=label, ms=6, mew=0))
    look = {"handlelength": 1, "handletextpad": 0.4, "columnspacing": 1.2, "alignment": "left"}
    place = {"loc": "outside lower left", "ncols": 5 if len(max(labels, key=len)) < 9 else 3}
    figure.legend(handles=colours, title="class", **place, **look)
    place = {"loc": "outside lower right", "ncols": 2}
    figure.legend(handles=marks, title="domain", **place, **look)


def title_of(runs: Sequence[Finished]) -> str:
    """What a figure of these runs is about."""
    specs = [run.spec for run in runs]
    places = dict.fromkeys(f"{spec.dataset}, {spec.backbone}" for spec in specs)
    return f"t-SNE of the features on {'; '.join(places)}"
