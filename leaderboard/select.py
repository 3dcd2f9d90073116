"""Model selection: pure functions from the frame of all records to one row per run.

    training_domain   the round with the best mean validation accuracy over the round's clients
    last              the last round
    oracle            the round with the best accuracy on the unseen domain: an upper bound that
                      no one could have chosen, labelled as such wherever it is shown

Of equally good rounds the earliest is taken.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from benchmark.errors import unknown

RUN = ["dataset", "setting", "method", "predictor", "config", "target", "seed", "id"]


def rounds_of(frame: pd.DataFrame) -> pd.DataFrame:
    """One row per run, predictor and evaluated round: validation and test accuracy.

    A client's validation accuracy counts every one of its samples alike; clients count alike.
    """
    val = frame[frame["part"] == "val"]
    right = (val["accuracy"] * val["count"]).rename("right")
    keys = [*RUN, "round"]
    per_client = (
        pd.concat([val[[*keys, "client", "count"]], right], axis=1)
        .groupby([*keys, "client"], observed=True, sort=False)[["right", "count"]]
        .sum()
    )
    accuracy = (per_client["right"] / per_client["count"]).groupby(keys, sort=False).mean()
    test = frame[frame["part"] == "test"].set_index(keys)["accuracy"]
    return pd.DataFrame({"val": accuracy.reindex(test.index), "test": test}).reset_index()


def training_domain(curves: pd.DataFrame) -> pd.DataFrame:
    return _best(curves, "val")


def oracle(curves: pd.DataFrame) -> pd.DataFrame:
    return _best(curves, "test")


def last(curves: pd.DataFrame) -> pd.DataFrame:
    return _best(curves.assign(order=curves["round"]), "order").drop(columns="order")


def _best(curves: pd.DataFrame, column: str) -> pd.DataFrame:
    """The row of each run with the largest value of a column, the earliest of equals."""
    ordered = curves.sort_values("round", kind="stable")
    ranked = ordered.sort_values(column, ascending=False, kind="stable", na_position="last")
    return ranked.drop_duplicates(RUN).sort_index()


SELECTIONS: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "training_domain": training_domain,
    "last": last,
    "oracle": oracle,
}


def select(frame: pd.DataFrame, rule: str = "training_domain") -> pd.DataFrame:
    """One row per run and predictor: the round the rule takes, its validation and test accuracy.

    Where a method was run in several configurations, the one with the best mean validation
    accuracy over seeds is kept, for each target on its own (under `oracle`: the best test one).
    """
    if rule not in SELECTIONS:
        raise unknown("selection", rule, SELECTIONS)
    if frame.empty:
        return pd.DataFrame(columns=[*RUN, "round", "val", "test"])
    chosen = SELECTIONS[rule](rounds_of(frame))
    cell = ["dataset", "setting", "method", "predictor", "target"]
    judged = "test" if rule == "oracle" else "val"
    means = chosen.groupby([*cell, "config"], sort=False)[judged].mean().reset_index()
    means = means.sort_values(judged, ascending=False, kind="stable", na_position="last")
    best = means.drop_duplicates(cell)[[*cell, "config"]]
    return chosen.merge(best, on=[*cell, "config"])
