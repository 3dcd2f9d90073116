"""Selection and tables as pure functions of records: small frames, expected to the letter."""

import dataclasses

import pandas as pd
import pytest

from benchmark.errors import UserError
from benchmark.results import Collection, Result
from leaderboard.select import rounds_of, select
from leaderboard.tables import escape, latex, make_tables, markdown
from tests.conftest import toy_spec

ABOUT = {
    "category": "federated",
    "predictor": "global",
    "domains": ["red", "green", "blue", "grey"],
}


def result(method, target, seed, curve, predictors=("global",), hparams=None, label=None):
    """A result whose curve is a list of (validation accuracy, test accuracy)."""
    spec = dataclasses.replace(toy_spec(method, target), seed=seed)
    if hparams:
        spec = dataclasses.replace(spec, hparams=hparams)
    rows = []
    for predictor in predictors:
        for number, (val, test) in enumerate(curve):
            rows.append((number, predictor, "val", "a", "x", val, 1.0, 10))
            rows.append((number, predictor, "val", "b", "y", val, 1.0, 30))
            rows.append((number, predictor, "test", "", target, test, 1.0, 48))
    names = ("round", "predictor", "part", "client", "domain", "accuracy", "loss", "count")
    columns = {
        name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }
    about = {**ABOUT, "label": label or method, "predictor": predictors[0]}
    return Result(spec, about, columns, [1.0], "partition", {}, {})


def collection(*results) -> Collection:
    return Collection(list(results), [], {}, {})


def test_clients_count_alike_whatever_their_size_and_samples_within_a_client_alike():
    one = result("fedavg", "red", 0, [(0.5, 0.1)])
    records = {name: list(column) for name, column in one.records.items()}
    for key, value in {"round": 0, "predictor": "global", "part": "val", "client": "b"}.items():
        records[key].append(value)
    for key, value in {"domain": "z", "accuracy": 1.0, "loss": 1.0, "count": 10}.items():
        records[key].append(value)
    frame = collection(dataclasses.replace(one, records=records)).frame()
    # client a: 0.5; client b: (30 × 0.5 + 10 × 1.0) / 40 = 0.625
    assert rounds_of(frame)["val"].tolist() == pytest.approx([0.5625])


@pytest.mark.parametrize(
    ("rule", "expected"), [("training_domain", 0.3), ("last", 0.2), ("oracle", 0.9)]
)
def test_selection_rules(rule, expected):
    curve = [(0.5, 0.9), (0.7, 0.3), (0.7, 0.4), (0.6, 0.2)]
    frame = collection(result("fedavg", "red", 0, curve)).frame()
    chosen = select(frame, rule)
    assert chosen["test"].tolist() == [expected]
    if rule == "training_domain":
        assert chosen["round"].tolist() == [1]  # of equals the first


def test_an_unknown_rule_is_suggested():
    with pytest.raises(UserError, match="did you mean 'oracle'"):
        select(pd.DataFrame(), "orakel")


def test_the_best_configuration_is_chosen_by_validation_over_all_seeds_never_by_test():
    runs = [
        result("fedprox", "red", 0, [(0.8, 0.1)], hparams={"mu": 1.0}),
        result("fedprox", "red", 1, [(0.8, 0.2)], hparams={"mu": 1.0}),
        result("fedprox", "red", 0, [(0.9, 0.9)], hparams={"mu": 0.5}),
        result("fedprox", "red", 1, [(0.6, 0.9)], hparams={"mu": 0.5}),
    ]
    assert select(collection(*runs).frame())["test"].tolist() == [0.1, 0.2]


def golden() -> Collection:
    domains = ABOUT["domains"]
    runs = [
        result("fedavg", d, s, [(0.5, 0.40 + 0.1 * k + 0.02 * s)], label="FedAvg")
        for k, d in enumerate(domains)
        for s in (0, 1)
    ]
    runs += [
        result("fedbn", d, s, [(0.5, 0.5)], predictors=("global", "local_1"), label="FedBN")
        for d in domains[:3]
        for s in (0, 1)
        if (d, s) != ("green", 1)
    ]
    return collection(*runs)


GOLDEN_MARKDOWN = """\
**Toy, cnn_tiny_bn, single_domain**

| method          |            red |            green |           blue |           grey |        average |
|:----------------|---------------:|-----------------:|---------------:|---------------:|---------------:|
| FedAvg          |     41.0 ± 1.4 |   **51.0 ± 1.4** | **61.0 ± 1.4** | **71.0 ± 1.4** | **56.0 ± 1.4** |
| FedBN           | **50.0 ± 0.0** | 50.0 (1/2 seeds) |     50.0 ± 0.0 |              – |              – |
| FedBN (local_1) | **50.0 ± 0.0** | 50.0 (1/2 seeds) |     50.0 ± 0.0 |              – |              – |

accuracy in % on the unseen domain, 3 rounds of 2 steps, selection: training_domain, 2 seeds; 2 of 12 cells missing (–)
"""  # noqa: E501


def test_markdown_to_the_letter():
    (table,) = make_tables(golden())
    assert markdown(table) + "\n" == GOLDEN_MARKDOWN


def test_latex_to_the_letter():
    (table,) = make_tables(golden())
    assert latex(table).splitlines()[2:] == [
        r"\caption{Toy, cnn\_tiny\_bn, single\_domain: accuracy in \% on the unseen domain, "
        r"3 rounds of 2 steps, selection: training\_domain, 2 seeds; 2 of 12 cells missing (--).}",
        r"\begin{tabular}{lccccc}",
        r"\toprule",
        r"Method & red & green & blue & grey & average \\",
        r"\midrule",
        r"FedAvg & 41.0 {\scriptsize$\pm$1.4} & \textbf{51.0} {\scriptsize$\pm$1.4} & "
        r"\textbf{61.0} {\scriptsize$\pm$1.4} & \textbf{71.0} {\scriptsize$\pm$1.4} & "
        r"\textbf{56.0} {\scriptsize$\pm$1.4} \\",
        r"FedBN & \textbf{50.0} {\scriptsize$\pm$0.0} & 50.0 (1/2 seeds) & "
        r"50.0 {\scriptsize$\pm$0.0} & -- & -- \\",
        r"FedBN (local\_1) & \textbf{50.0} {\scriptsize$\pm$0.0} & 50.0 (1/2 seeds) & "
        r"50.0 {\scriptsize$\pm$0.0} & -- & -- \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


def test_the_average_is_missing_where_a_domain_is_and_partial_seeds_do_not_mix():
    (table,) = make_tables(golden())
    fedavg, fedbn = table.cells[0], table.cells[1]
    assert fedavg[-1].mean == pytest.approx(56.0)
    assert fedbn[-1].missing
    assert table.missing == 2


def test_pooled_runs_are_a_row_of_every_partition_with_the_same_budget():
    spec = toy_spec("fedavg", "red")
    runs = [result("fedavg", "red", 0, [(0.5, 0.4)]), result("erm_pool", "red", 0, [(0.5, 0.6)])]
    other = dataclasses.replace(runs[0], spec=dataclasses.replace(spec, partition="other"))
    foreign = dataclasses.replace(runs[0], spec=dataclasses.replace(spec, backbone="other"))
    tables = {t.title: t.labels for t in make_tables(collection(*runs, other, foreign))}
    assert tables == {
        "Toy, cnn_tiny_bn, single_domain": ("erm_pool", "fedavg"),
        "Toy, cnn_tiny_bn, other": ("erm_pool", "fedavg"),
        "Toy, other, single_domain": ("fedavg",),
    }


def test_one_seed_has_no_spread():
    (table,) = make_tables(collection(result("fedavg", "red", 0, [(0.5, 0.4)])))
    assert "±" not in markdown(table)
    assert "1 seed" in table.note


def test_latex_signs_are_escaped():
    assert escape(r"a_b & 5% #1 {x} \y ~ ^") == (
        r"a\_b \& 5\% \#1 \{x\} \textbackslash{}y \textasciitilde{} \textasciicircum{}"
    )
