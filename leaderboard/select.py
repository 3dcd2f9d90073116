"""Model selection: pure functions from the frame of all records to one row per run.

    training_domain   the round with the best mean validation accuracy over the round's clients
    last              the last round
    oracle            the round with the best accuracy on the unseen domain: an upper bound that
                      no one could have chosen, labelled as such wherever it is shown and never
                      ranked among the others

Of equally good rounds the earliest is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from benchmark.errors import unknown

RUN = ["dataset", "setting", "method", "predictor", "config", "target", "seed", "id"]
CELL = ["dataset", "setting", "method", "predictor", "target"]
"""What a cell of a table is about; seeds and configurations differ within it."""


def rounds_of(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per run, predictor and evaluated round: validation and test accuracy.

    A client's validation accuracy counts every one of its samples alike; clients count alike.
    """
    runs, _ = _codes(frame["id"])
    predictors, names = _codes(frame["predictor"])
    rounds = frame["round"].to_numpy(dtype=np.int64)
    keys = (runs * len(names) + predictors) * (rounds.max() + 1) + rounds
    part = frame["part"].to_numpy()
    tested = np.flatnonzero(part == "test")
    means = _client_means(frame, keys, np.flatnonzero(part == "val"))
    curves = frame.iloc[tested][[*RUN, "round"]].reset_index(drop=True)
    curves["val"] = means.reindex(keys[tested]).to_numpy()
    curves["test"] = frame["accuracy"].to_numpy()[tested]
    return curves


def _codes(column: pd.Series) -> tuple[np.ndarray, pd.Index]:
    codes, values = pd.factorize(column)
    return codes.astype(np.int64), values


def _client_means(frame: pd.DataFrame, keys: np.ndarray, rows: np.ndarray) -> pd.Series:
    """Validation accuracy by key: over a client's samples, then over clients."""
    clients, names = _codes(frame["client"].iloc[rows])
    count = frame["count"].to_numpy(dtype=float)[rows]
    right = frame["accuracy"].to_numpy(dtype=float)[rows] * count
    pairs, place = np.unique(keys[rows] * max(1, len(names)) + clients, return_inverse=True)
    accuracy = np.bincount(place, right) / np.bincount(place, count)
    owners, place = np.unique(pairs // max(1, len(names)), return_inverse=True)
    return pd.Series(np.bincount(place, accuracy) / np.bincount(place), index=owners)


def training_domain(curves: pd.DataFrame) -> pd.DataFrame:
    return _best(curves, "val")


def oracle(curves: pd.DataFrame) -> pd.DataFrame:
    return _best(curves, "test")


def last(curves: pd.DataFrame) -> pd.DataFrame:
    return _best(curves, "round")


def _best(curves: pd.DataFrame, column: str) -> pd.DataFrame:
    """The row of each run with the largest value of a column, the earliest of equals."""
    runs, _ = _codes(curves["id"])
    predictors, names = _codes(curves["predictor"])
    value = curves[column].to_numpy(dtype=float)
    value = np.where(np.isnan(value), -np.inf, value)
    run = runs * len(names) + predictors
    order = np.lexsort((curves["round"].to_numpy(), -value, run))
    first = np.ones(len(order), bool)
    first[1:] = run[order][1:] != run[order][:-1]
    return curves.iloc[np.sort(order[first])]


SELECTIONS: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "training_domain": training_domain,
    "last": last,
    "oracle": oracle,
}


def check_rules(rules: Sequence[str]) -> list[str]:
    """The rules asked for, each once, all of them known."""
    for rule in rules:
        if rule not in SELECTIONS:
            raise unknown("selection", rule, SELECTIONS)
    return list(dict.fromkeys(rules))


def titled(rule: str) -> str:
    """A rule as tables and figures name it."""
    return "oracle (ORACLE: chosen on the test domain)" if rule == "oracle" else rule


def choose_rounds(frame: pd.DataFrame, rule: str = "training_domain") -> pd.DataFrame:
    """One row per run and predictor, every configuration of a method kept."""
    check_rules([rule])
    if frame.empty:
        return pd.DataFrame(columns=[*RUN, "round", "val", "test"])
    return SELECTIONS[rule](rounds_of(frame))


def choose_configurations(
    chosen: pd.DataFrame, rule: str, cell: Sequence[str] = CELL
) -> pd.DataFrame:
    """Where a method was run in several configurations, the one with the best mean validation
    accuracy over seeds, for each target on its own (under `oracle`: the best test one)."""
    cell = list(cell)
    judged = "test" if rule == "oracle" else "val"
    means = chosen.groupby([*cell, "config"], sort=False, observed=True, dropna=False)[judged]
    means = means.mean().reset_index()
    means = means.sort_values(judged, ascending=False, kind="stable", na_position="last")
    best = means.drop_duplicates(cell)[[*cell, "config"]]
    return chosen.merge(best, on=[*cell, "config"])


def select(frame: pd.DataFrame, rule: str = "training_domain") -> pd.DataFrame:
    """One row per run and predictor: the round the rule takes, its validation and test accuracy,
    of each method's best configuration."""
    chosen = choose_rounds(frame, rule)
    return chosen if chosen.empty else choose_configurations(chosen, rule)
