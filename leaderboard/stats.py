"""Statistics over runs: intervals, paired comparisons, ranks. Tests come from scipy and
scikit-posthocs.

Methods are compared within a setting, each with its own predictor and its best configuration by
validation. A block is a dataset, setting and held-out domain, its value the mean over seeds; with
`each_seed` every seed is a block of its own, which makes more of few domains than they are, since
seeds of one domain are not independent. Paired comparisons are over (dataset, setting, domain,
seed). Centralised methods see what no other does and are left out. Whatever is left out is said.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from benchmark.errors import UserError
from benchmark.results import Collection
from benchmark.seeds import seed_for
from leaderboard.select import select

BLOCK = ["dataset", "setting", "target"]
TIE = 0.05
"""Percentage points: what differs less looks the same in a table with one decimal."""
RESAMPLES = 9999


@dataclasses.dataclass(frozen=True)
class Scores:
    """Accuracy in percent of every method in every block and seed, as a long frame."""

    frame: pd.DataFrame
    left_out: tuple[str, ...]

    @property
    def labels(self) -> list[str]:
        return list(dict.fromkeys(self.frame["label"]))


def scores(found: Collection, rule: str = "training_domain") -> Scores:
    """What the methods of a store reached."""
    about = found.about
    chosen = select(found.frame(), rule)
    own = chosen["predictor"] == chosen["method"].map(lambda name: about[name]["predictor"])
    central = chosen["method"].map(lambda name: about[name]["category"] == "centralised")
    labels = _labels(found)
    frame = chosen[own & ~central]
    frame = pd.DataFrame(
        {
            "label": frame["method"].map(labels),
            **{name: frame[name] for name in (*BLOCK, "seed")},
            "value": 100 * frame["test"],
        }
    ).reset_index(drop=True)
    left_out = [f"{labels[name]}: centralised" for name in dict.fromkeys(chosen["method"][central])]
    return Scores(frame, tuple(left_out))


def _labels(found: Collection) -> dict[str, str]:
    """Methods by name, with the name itself where two have one label."""
    labels = {name: about["label"] for name, about in found.about.items()}
    counts = pd.Series(labels).value_counts()
    return {n: label if counts[label] == 1 else f"{label} [{n}]" for n, label in labels.items()}


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Complete blocks × methods, best average rank first."""

    table: pd.DataFrame
    incomplete: int
    """Blocks that lack a method and are left out."""


def complete_blocks(given: Scores, each_seed: bool = False) -> Blocks:
    """The blocks in which every method has a result."""
    if len(given.labels) < 2:
        raise UserError("a comparison needs two methods or more; run another one")
    by = [*BLOCK, "seed"] if each_seed else BLOCK
    wide = given.frame.pivot_table(index=by, columns="label", values="value", observed=True)
    whole = wide.dropna()
    if whole.empty:
        gaps = wide.isna().sum().sort_values()
        raise UserError(
            f"no domain has a result of every method; {gaps.index[-1]} lacks {gaps.iloc[-1]} of "
            f"{len(wide)}; run it or choose methods with --where method=…"
        )
    order = average_ranks(whole).index
    return Blocks(whole[list(order)], len(wide) - len(whole))


def average_ranks(table: pd.DataFrame) -> pd.Series:
    """Mean rank over blocks, 1 is best, ties share; best first."""
    return table.rank(axis=1, ascending=False).mean().sort_values(kind="stable")


@dataclasses.dataclass(frozen=True)
class Friedman:
    """Whether the methods differ at all, and by how much ranks must differ to tell two apart."""

    statistic: float
    p: float
    critical_difference: float
    alpha: float
    pairs: pd.DataFrame
    """Nemenyi's p of every pair."""


def friedman(table: pd.DataFrame, alpha: float = 0.05) -> Friedman | None:
    """Friedman's test and Nemenyi's after it; None for fewer than three methods or two blocks."""
    from scikit_posthocs import posthoc_nemenyi_friedman
    from scipy.stats import friedmanchisquare, studentized_range

    blocks, methods = table.shape
    if methods < 3 or blocks < 2:
        return None
    quantile = studentized_range.ppf(1 - alpha, methods, math.inf) / math.sqrt(2)
    distance = float(quantile * math.sqrt(methods * (methods + 1) / (6 * blocks)))
    if (table.nunique(axis=1) == 1).all():  # every method the same in every block
        pairs = pd.DataFrame(1.0, table.columns, table.columns)
        return Friedman(0.0, 1.0, distance, alpha, pairs)
    statistic, p = friedmanchisquare(*(table[label] for label in table))
    pairs = posthoc_nemenyi_friedman(table.to_numpy())
    pairs.index = pairs.columns = table.columns
    return Friedman(float(statistic), float(p), distance, alpha, pairs)


def wins(table: pd.DataFrame) -> dict[tuple[str, str], tuple[int, int, int]]:
    """Blocks in which a method wins, ties and loses against another."""
    found = {}
    for one, other in itertools.permutations(table.columns, 2):
        gap = table[one] - table[other]
        won, lost = int((gap > TIE).sum()), int((gap < -TIE).sum())
        found[one, other] = (won, len(gap) - won - lost, lost)
    return found


@dataclasses.dataclass(frozen=True)
class Paired:
    """One method against another over all (dataset, setting, domain, seed) both have."""

    one: str
    other: str
    pairs: int
    difference: float
    """Mean of one minus other, in percentage points."""
    p: float
    """Wilcoxon's signed-rank test; NaN for fewer than two pairs."""
    adjusted: float
    """Holm's correction over all comparisons made together."""


def paired(given: Scores, against: str | None = None) -> list[Paired]:
    """All pairs of methods, or all others against one."""
    from statsmodels.stats.multitest import multipletests

    wide = given.frame.pivot_table(index=[*BLOCK, "seed"], columns="label", values="value")
    labels = given.labels
    pairs = [(a, against) for a in labels if a != against]
    pairs = pairs if against else list(itertools.combinations(labels, 2))
    raw = [_wilcoxon((wide[one] - wide[other]).dropna().to_numpy()) for one, other in pairs]
    tested = [k for k, (_, _, p) in enumerate(raw) if not math.isnan(p)]
    adjusted = [math.nan] * len(raw)
    if tested:
        corrected = multipletests([raw[k][2] for k in tested], method="holm")[1]
        for k, p in zip(tested, corrected, strict=True):
            adjusted[k] = float(p)
    return [
        Paired(one, other, count, difference, p, holm)
        for (one, other), (count, difference, p), holm in zip(pairs, raw, adjusted, strict=True)
    ]


def _wilcoxon(gaps: np.ndarray) -> tuple[int, float, float]:
    from scipy.stats import wilcoxon

    if len(gaps) < 2:
        return len(gaps), float(gaps.mean()) if len(gaps) else math.nan, math.nan
    p = 1.0 if not gaps.any() else float(wilcoxon(gaps, zero_method="zsplit").pvalue)
    return len(gaps), float(gaps.mean()), p


def bootstrap_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of the mean; the same for the same values, NaN for fewer than two."""
    from scipy.stats import bootstrap

    values = np.sort(np.asarray(values, dtype=float))
    if len(values) < 2:
        return math.nan, math.nan
    if np.ptp(values) == 0:
        return float(values[0]), float(values[0])
    rng = np.random.default_rng(seed_for(len(values), "bootstrap"))
    interval = bootstrap(
        (values,),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=level,
        method="percentile",
        rng=rng,
    ).confidence_interval
    return float(interval.low), float(interval.high)
