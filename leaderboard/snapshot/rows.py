"""From a store to the rows of the snapshot."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from benchmark.errors import UserError
from benchmark.results import Collection
from leaderboard.select import SELECTIONS, choose_rounds

DATASET = "MiniDigits"
PROTOCOL = "demo"
BASELINE = "fedavg"
SEEDS = (0, 1, 2)
METHODS = (
    *("fedavg", "fedprox", "fedbn", "silobn", "mixstyle"),
    *("fedfd", "fedfd+silobn", "fedfd_a", "fedfd_a+silobn"),
    *("guide+fedavg", "gperxan"),
    "stablefdg",
    "fedadg",
)
"""FedAvg, the papers' nearest baselines, then the four papers' own methods."""
PAPERS = {
    "FedFD-A": ("fedfd", "fedfd+silobn", "fedfd_a", "fedfd_a+silobn"),
    "gPerXAN": ("guide+fedavg", "gperxan"),
    "StableFDG": ("stablefdg",),
    "FedADG": ("fedadg",),
}
CSV = Path(__file__).parent / "minidigits.csv"
COLUMNS = (
    *("method", "label", "target", "seed", "id", "tested"),
    *("training_domain", "last", "oracle", "validation", "commit"),
)


def rows_of(found: Collection) -> pd.DataFrame:
    """A row per run: the method's own predictor, its accuracy on the unseen domain in the round
    that each rule takes, and the validation accuracy of the round that `training_domain` takes."""
    results = {result.spec.id: result for result in found.results}
    own = {run: result.about["predictor"] for run, result in results.items()}
    frame = found.frame()
    frame = frame[frame["predictor"] == frame["id"].map(own)]
    table = pd.DataFrame({"id": list(results)}).set_index("id")
    for rule in SELECTIONS:
        chosen = choose_rounds(frame, rule).set_index("id")
        table[rule] = chosen["test"]
        if rule == "training_domain":
            table["validation"] = chosen["val"]
    tested = frame[frame["part"] == "test"].groupby("id")["count"].first()
    specs = {run: result.spec for run, result in results.items()}
    table = table.assign(
        method=pd.Series({run: spec.method for run, spec in specs.items()}),
        target=pd.Series({run: spec.target for run, spec in specs.items()}),
        seed=pd.Series({run: spec.seed for run, spec in specs.items()}),
        label=pd.Series({run: result.about["label"] for run, result in results.items()}),
        commit=pd.Series({run: r.environment.get("commit") for run, r in results.items()}),
        tested=tested,
    ).reset_index()
    return table[list(COLUMNS)]


def snapshot(found: Collection) -> pd.DataFrame:
    """The rows of exactly the snapshot's runs, in its order; what lacks is an error."""
    wanted = [r for r in found.results if r.spec.dataset == DATASET and r.spec.method in METHODS]
    if not wanted:
        raise UserError(f"no run of {', '.join(METHODS)} on {DATASET}; run the sweep first")
    table = rows_of(Collection(wanted, [], {}, {}))
    domains = found.domains[DATASET]
    order = [(m, t, s) for m in METHODS for t in domains for s in SEEDS]
    keys = list(zip(table["method"], table["target"], table["seed"], strict=True))
    if extra := len(keys) - len(set(keys)):
        raise UserError(
            f"{extra} runs more than one per method, domain and seed; use a store of its own"
        )
    places = {key: place for place, key in enumerate(keys)}
    if missing := [key for key in order if key not in places]:
        method, target, seed = missing[0]
        raise UserError(f"{len(missing)} runs missing, the first {method} on {target} seed {seed}")
    return table.iloc[[places[key] for key in order]].reset_index(drop=True)


def read(path: Path = CSV) -> pd.DataFrame:
    """The committed rows, to the bit: Python's own `float` reads what it wrote."""
    exact = dict.fromkeys((*SELECTIONS, "validation"), float)
    return pd.read_csv(path, converters=exact, dtype={"id": str, "commit": str})
