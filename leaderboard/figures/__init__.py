"""Figures of a store as PNG and SVG: `python -m leaderboard figures --runs DIR --to FOLDER`."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmark.errors import unknown
from benchmark.results import Collection
from leaderboard.figures.accuracy import accuracy_per_domain, at_home_and_away
from leaderboard.figures.against_papers import gather_pairs, published_against_ours, reads_papers
from leaderboard.figures.curves import curves_over_rounds
from leaderboard.figures.material import Material, materials
from leaderboard.figures.ranks import critical_difference
from leaderboard.figures.sensitivity import sensitivity
from leaderboard.figures.theme import save, theme
from leaderboard.figures.tradeoff import accuracy_against_communication, accuracy_against_training

OF_A_SETTING = {
    "accuracy": (accuracy_per_domain, "no accuracy"),
    "in-and-out": (at_home_and_away, "no validation accuracy was stored"),
    "curves": (curves_over_rounds, "only one round was evaluated"),
    "communication": (accuracy_against_communication, "no method has every domain and its costs"),
    "training": (accuracy_against_training, "no method has every domain and its costs"),
}
NAMES = (*OF_A_SETTING, "sensitivity", "ranks", "published")


@dataclasses.dataclass(frozen=True)
class Written:
    """The files of the figures, and why others are not there."""

    paths: list[Path]
    left_out: list[str]


def write_figures(
    found: Collection,
    folder: Path,
    rule: str = "training_domain",
    only: Sequence[str] | None = None,
    runs: Path | None = None,
) -> Written:
    """Every figure that the results allow. `runs` is the store, read again for papers' tables."""
    for name in only or ():
        if name not in NAMES:
            raise unknown("figure", name, NAMES)
    wanted = set(only or NAMES)
    paths: list[Path] = []
    left_out: list[str] = []
    with theme():
        for name, figure in _figures(found, rule, wanted, runs):
            if isinstance(figure, Figure):
                paths += save(figure, folder, name)
            else:
                left_out.append(f"{name}: {figure}")
    return Written(paths, left_out)


def _figures(
    found: Collection, rule: str, wanted: set[str], runs: Path | None
) -> Iterator[tuple[str, Figure | str]]:
    """Names and figures; a text instead of a figure says why there is none."""
    parts = materials(found, rule)
    slugs = Counter(part.slug for part in parts)
    for part in parts:
        slug = part.slug if slugs[part.slug] == 1 else f"{part.slug}-{part.spec.setting}"
        yield from _of_setting(part, slug, wanted)
    if "ranks" in wanted:
        ranked = rule if rule != "oracle" else "training_domain"
        yield "ranks", critical_difference(found, ranked)
    if "published" in wanted:
        if runs is None or not reads_papers({result.spec.dataset for result in found.results}):
            yield "published", "no paper prints numbers on these datasets"
        else:
            figure = published_against_ours(gather_pairs(runs))
            yield "published", figure or "no stored run belongs to a line of a paper"


def _of_setting(part: Material, slug: str, wanted: set[str]) -> Iterator[tuple[str, Figure | str]]:
    for name, (draw, reason) in OF_A_SETTING.items():
        if name in wanted:
            yield f"{slug}-{name}", draw(part) or reason
    if "sensitivity" in wanted:
        drawn = False
        for method, figure in sensitivity(part):
            drawn = True
            yield f"{slug}-sensitivity-{method}", figure
        if not drawn:
            yield f"{slug}-sensitivity", "no method was run in several configurations"
