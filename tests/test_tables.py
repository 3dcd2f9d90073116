"""Selection and tables as pure functions of records: small frames, expected to the letter."""

import csv
import dataclasses
import io
import itertools
import random
import shutil
import subprocess

import pandas as pd
import pytest

from benchmark.errors import UserError
from benchmark.results import COLUMNS, Collection, Result
from leaderboard.fields import parse_conditions, restricted
from leaderboard.formats import html, latex, markdown, render, tidy
from leaderboard.formats.latex import escape
from leaderboard.free import Shape, free_table
from leaderboard.gather import gather
from leaderboard.select import rounds_of, select
from leaderboard.sheets import Block, Cell, Column, Row, Sheet
from leaderboard.tables import ORDER, make_tables
from tests.conftest import toy_spec

ABOUT = {
    "category": "federated",
    "predictor": "global",
    "domains": ["red", "green", "blue", "grey"],
}


def result(method, target, seed, curve, predictors=("global",), hparams=None, label=None, **about):
    """A result whose curve is a list of (validation accuracy, test accuracy); `sends` names what
    leaves a client besides weights."""
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
    sent = {f"up/{about.pop('sends')}": 2e6} if "sends" in about else {}
    about = {**ABOUT, "label": label or method, "predictor": predictors[0], **about}
    costs = {"bytes_per_round": {"up/weights": 4e6, "down/weights": 4e6, **sent}}
    costs |= {"parameters": 500_000, "ms_per_step": 12.5, "peak_memory_mb": 300.0}
    return Result(spec, about, columns, [1.0], "partition", costs, {})


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
    runs += [
        result("ccst", d, s, [(0.5, 0.45)], label="CCST", category="federated DG", sends="style")
        for d in domains
        for s in (0, 1)
    ]
    failed = dataclasses.replace(toy_spec("fedbn", "grey"), seed=1)
    return Collection(runs, [], {failed: "the loss is nan"}, {})


GOLDEN_MARKDOWN = """\
**Toy, cnn_tiny_bn, single_domain**

| paradigm     | method          |                   red |                       green |                  blue |           grey |        average |
|:-------------|:----------------|----------------------:|----------------------------:|----------------------:|---------------:|---------------:|
| federated    | FedAvg          |            41.0 ± 1.4 |              **51.0 ± 1.4** |        **61.0 ± 1.4** | **71.0 ± 1.4** | **56.0 ± 1.4** |
|              | FedBN           |        **50.0 ± 0.0** | <ins>50.0</ins> (1/2 seeds) | <ins>50.0 ± 0.0</ins> |         failed |              – |
|              | FedBN (local_1) |        **50.0 ± 0.0** | <ins>50.0</ins> (1/2 seeds) | <ins>50.0 ± 0.0</ins> |         failed |              – |
| federated DG | CCST †          | <ins>45.0 ± 0.0</ins> |                  45.0 ± 0.0 |            45.0 ± 0.0 |     45.0 ± 0.0 |     45.0 ± 0.0 |

accuracy in % on the unseen domain, 3 rounds of 2 steps, selection: training_domain, 2 seeds; 2 of 16 cells missing (–); † more than weights leaves a client

- fedbn: 1 run failed: the loss is nan
"""  # noqa: E501

GOLDEN_LATEX = r"""\begin{table}[t]
\centering
\caption{Toy, cnn\_tiny\_bn, single\_domain: accuracy in \% on the unseen domain, 3 rounds of 2 steps, selection: training\_domain, 2 seeds; 2 of 16 cells missing (--); $\dagger$ more than weights leaves a client.}\smallskip
\fdbfit{\begin{tabular}{llccccc}
\toprule
Paradigm & Method & red & green & blue & grey & average \\
\midrule
federated & FedAvg & 41.0 {\scriptsize $\pm$1.4} & \textbf{51.0} {\scriptsize $\pm$1.4} & \textbf{61.0} {\scriptsize $\pm$1.4} & \textbf{71.0} {\scriptsize $\pm$1.4} & \textbf{56.0} {\scriptsize $\pm$1.4} \\
 & FedBN & \textbf{50.0} {\scriptsize $\pm$0.0} & \underline{50.0} {\scriptsize (1/2 seeds)} & \underline{50.0} {\scriptsize $\pm$0.0} & failed & -- \\
 & FedBN (local\_1) & \textbf{50.0} {\scriptsize $\pm$0.0} & \underline{50.0} {\scriptsize (1/2 seeds)} & \underline{50.0} {\scriptsize $\pm$0.0} & failed & -- \\
\midrule
federated DG & \fdbgrey{CCST $\dagger$} & \fdbgrey{\underline{45.0} {\scriptsize $\pm$0.0}} & \fdbgrey{45.0 {\scriptsize $\pm$0.0}} & \fdbgrey{45.0 {\scriptsize $\pm$0.0}} & \fdbgrey{45.0 {\scriptsize $\pm$0.0}} & \fdbgrey{45.0 {\scriptsize $\pm$0.0}} \\
\bottomrule
\end{tabular}}
\par\smallskip{\scriptsize fedbn: 1 run failed: the loss is nan\par}
\end{table}"""  # noqa: E501

GOLDEN_CSV = """\
table,block,group,label,side,shares,column_group,column,mean,std,low,high,seeds,planned,failed,rank,text,mark
"Toy, cnn_tiny_bn, single_domain",,federated,FedAvg,,no,,red,41,1.414213562,,,2,2,0,,,
"Toy, cnn_tiny_bn, single_domain",,federated,FedAvg,,no,,green,51,1.414213562,,,2,2,0,1,,
"Toy, cnn_tiny_bn, single_domain",,federated,FedAvg,,no,,blue,61,1.414213562,,,2,2,0,1,,
"Toy, cnn_tiny_bn, single_domain",,federated,FedAvg,,no,,grey,71,1.414213562,,,2,2,0,1,,
"Toy, cnn_tiny_bn, single_domain",,federated,FedAvg,,no,,average,56,1.414213562,,,2,2,0,1,,
"Toy, cnn_tiny_bn, single_domain",,federated,FedBN,,no,,red,50,0,,,2,2,0,1,,
"Toy, cnn_tiny_bn, single_domain",,federated,FedBN,,no,,green,50,,,,1,2,0,2,,
"Toy, cnn_tiny_bn, single_domain",,federated,FedBN,,no,,blue,50,0,,,2,2,0,2,,
"Toy, cnn_tiny_bn, single_domain",,federated,FedBN,,no,,grey,,,,,0,2,1,,,
"Toy, cnn_tiny_bn, single_domain",,federated,FedBN,,no,,average,,,,,0,2,0,,,
"""


def test_markdown_to_the_letter():
    (table,) = make_tables(golden())
    assert markdown(table) + "\n" == GOLDEN_MARKDOWN


def test_latex_to_the_letter():
    (table,) = make_tables(golden())
    text = latex(table)
    assert text[text.index(r"\begin{table}") :] == GOLDEN_LATEX
    assert text.startswith(r"\providecommand{\fdbgrey}")


def test_csv_to_the_letter():
    (table,) = make_tables(golden())
    text = tidy([table])
    assert text.startswith(GOLDEN_CSV)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 4 * 5
    assert {row["label"] for row in rows if row["shares"] == "yes"} == {"CCST"}


def test_html_says_the_same_and_stands_alone():
    (table,) = make_tables(golden())
    text = html(table)
    assert '<th scope="row" class="method">CCST †</th><td><u>45.0</u>' in text
    assert "<b>50.0</b>" in text
    assert "<td>failed</td>" in text
    assert "<script" not in text
    assert "http" not in text


def sheet(label: str, text: str = "") -> Sheet:
    row = Row(label, (Cell(50.0), Cell(text=text or "x")), side=label)
    columns, blocks = (Column(label), Column("b")), (Block(label, (row,)),)
    return Sheet(label, label, columns, blocks, footnotes=(label,))


def test_foreign_text_is_inert_in_every_format():
    bad = sheet("<script>alert(1)</script> | & % # _ ~ \\x\n=1+1")
    assert "<script" not in html(bad)
    shown = markdown(bad)
    assert "<script" not in shown
    assert r"\|" in shown
    assert all(line.count(" | ") == 4 for line in shown.splitlines() if line.startswith("| "))
    assert r"\textless{}script\textgreater{}" in latex(bad)
    formula = tidy([sheet("=cmd()")])
    assert "'=cmd()" in formula


TEX = shutil.which("pdflatex") or shutil.which("tectonic")


@pytest.mark.skipif(TEX is None, reason="no TeX engine is installed")
@pytest.mark.parametrize("packages", ["booktabs", "booktabs,xcolor,graphicx"])
def test_latex_compiles_as_it_stands(packages, tmp_path):
    tables = [*make_tables(golden(), ["last", "oracle"], costs=True), sheet("a_b & 5% ~ ± Δ α χ²")]
    body = "\n\n".join(latex(table) for table in tables)
    document = rf"\documentclass{{article}}\usepackage{{{packages}}}\begin{{document}}"
    (tmp_path / "a.tex").write_text(f"{document}\n{body}\n\\end{{document}}\n")
    flags = [] if "tectonic" in TEX else ["-interaction=nonstopmode", "-halt-on-error"]
    ran = subprocess.run([TEX, *flags, "a.tex"], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-2000:]


def test_the_average_is_missing_where_a_domain_is_and_partial_seeds_do_not_mix():
    (table,) = make_tables(golden())
    fedavg, fedbn = table.rows[0].cells, table.rows[1].cells
    assert fedavg[-1].mean == pytest.approx(56.0)
    assert fedbn[-1].missing
    assert table.missing == 2


def test_a_method_that_only_failed_or_is_missing_still_has_a_row():
    lost = toy_spec("fedprox", "red")
    found = Collection(
        [result("fedavg", "red", 0, [(0.5, 0.4)])], [toy_spec("silobn", "red")], {lost: "boom"}, {}
    )
    (table,) = make_tables(found)
    rows = {row.label: row.cells[0] for row in table.rows}
    assert rows["fedprox"].failed == 1
    assert rows["silobn"].missing
    assert "failed" in markdown(table)
    assert "fedprox: 1 run failed: boom" in table.footnotes


def test_rules_stand_side_by_side_and_the_oracle_is_not_ranked():
    runs = [
        result("fedavg", "red", 0, [(0.9, 0.2), (0.1, 0.6)], label="A"),
        result("fedprox", "red", 0, [(0.9, 0.4), (0.1, 0.5)], label="B"),
    ]
    (table,) = make_tables(collection(*runs), ["training_domain", "last", "oracle"])
    red = {(row.label, row.side): row.cells[0].mean for row in table.rows}
    assert red == {
        ("A", "training_domain"): pytest.approx(20),
        ("A", "last"): pytest.approx(60),
        ("A", "oracle"): pytest.approx(60),
        ("B", "training_domain"): pytest.approx(40),
        ("B", "last"): pytest.approx(50),
        ("B", "oracle"): pytest.approx(50),
    }
    shown = [line for line in markdown(table).splitlines() if line.startswith("| ")][1:]
    best = ["**" in line for line in shown]
    assert best == [False, True, False, True, False, False]
    assert "ORACLE" in table.note


def test_an_oracle_table_has_no_best():
    runs = [result("fedavg", "red", 0, [(0.5, 0.4)]), result("fedbn", "red", 0, [(0.5, 0.6)])]
    (table,) = make_tables(collection(*runs), "oracle")
    assert "**6" not in markdown(table)


def test_pooled_runs_are_a_row_of_every_partition_with_the_same_budget():
    spec = toy_spec("fedavg", "red")
    runs = [result("fedavg", "red", 0, [(0.5, 0.4)]), result("erm_pool", "red", 0, [(0.5, 0.6)])]
    other = dataclasses.replace(runs[0], spec=dataclasses.replace(spec, partition="other"))
    foreign = dataclasses.replace(runs[0], spec=dataclasses.replace(spec, backbone="other"))
    tables = {
        table.title: [row.label for row in table.rows]
        for table in make_tables(collection(*runs, other, foreign))
    }
    assert tables == {
        "Toy, cnn_tiny_bn, single_domain": ["erm_pool", "fedavg"],
        "Toy, cnn_tiny_bn, other": ["erm_pool", "fedavg"],
        "Toy, other, single_domain": ["fedavg"],
    }


def test_centralised_methods_do_not_compete_with_federated_ones():
    runs = [
        result("fedavg", "red", 0, [(0.5, 0.4)]),
        result("fedbn", "red", 0, [(0.5, 0.5)]),
        result("erm_pool", "red", 0, [(0.5, 0.9)], category="centralised"),
    ]
    (table,) = make_tables(collection(*runs))
    shown = markdown(table)
    assert "**50.0**" in shown
    assert "**90.0**" not in shown
    assert "erm_pool †" in shown


def test_the_order_of_paradigms_is_that_of_the_methods():
    from benchmark.method import CATEGORIES

    assert ORDER == CATEGORIES


def test_costs_are_columns():
    (table,) = make_tables(golden(), costs=True)
    names = [column.name for column in table.columns]
    cells = dict(zip(names, table.rows[-1].cells, strict=True))
    assert cells["parameters (M)"].mean == pytest.approx(0.5)
    assert cells["up (MB/round)"].mean == pytest.approx(6.0)
    assert cells["besides weights (MB/round)"].mean == pytest.approx(2.0)
    assert cells["train (ms/step)"].mean == pytest.approx(12.5)
    assert cells["test (ms/image)"].missing
    assert "16 cells missing" in table.caption(), "costs are no accuracies"
    assert "CCST sends besides weights, MB/round: up/style 2" in table.footnotes


def test_one_seed_has_no_spread():
    (table,) = make_tables(collection(result("fedavg", "red", 0, [(0.5, 0.4)])))
    assert "±" not in markdown(table)
    assert "1 seed" in table.note


def test_latex_signs_are_escaped():
    assert escape(r"a_b & 5% #1 {x} \y ~ ^") == (
        r"a\_b \& 5\% \#1 \{x\} \textbackslash{}y \textasciitilde{} \textasciicircum{}"
    )


def varied() -> Collection:
    """A method with a searched hyper-parameter and two seeds, and one with neither."""
    runs = [
        result(
            "fedprox", d, s, [(0.5 + mu / 10, 0.4 + mu / 10)], hparams={"mu": mu}, label="FedProx"
        )
        for d in ABOUT["domains"]
        for s in (0, 1)
        for mu in (0.5, 1.0)
    ]
    return collection(*runs, *(result("fedavg", d, 0, [(0.5, 0.6)]) for d in ABOUT["domains"]))


def test_free_tables_take_any_field():
    table = free_table(varied(), Shape(["method"], ["dataset", "target"]), ["last"])
    assert [(c.group, c.name) for c in table.columns] == [
        *(("Toy", d) for d in ABOUT["domains"]),
        ("Toy", "average"),
    ]
    fedprox = next(row for row in table.rows if row.label == "FedProx")
    assert [cell.mean for cell in fedprox.cells] == pytest.approx([50.0] * 5), "best mu is 1"
    by_mu = free_table(
        restricted(varied(), parse_conditions(["method=fedprox"])), Shape(["mu"], []), ["last"]
    )
    assert [(row.label, row.cells[0].mean) for row in by_mu.rows] == [
        ("0.5", pytest.approx(45.0)),
        ("1", pytest.approx(50.0)),
    ]
    assert "averaged over target" in by_mu.note
    fedavg = next(row for row in table.rows if row.label == "fedavg")
    assert fedavg.cells[0].partial == "1/2 seeds"


def test_free_tables_refuse_to_average_over_settings():
    spec = dataclasses.replace(toy_spec("fedavg", "red"), backbone="other")
    mixed = collection(
        result("fedavg", "red", 0, [(0.5, 0.4)]),
        dataclasses.replace(result("fedavg", "red", 0, [(0.5, 0.9)]), spec=spec),
    )
    with pytest.raises(UserError, match="mix runs with different backbone"):
        free_table(mixed, Shape(["method"], ["target"]), ["last"])
    table = free_table(mixed, Shape(["backbone", "method"], ["target"]), ["last"])
    assert [row.group for row in table.rows] == ["cnn_tiny_bn", "other"]
    chosen = restricted(mixed, parse_conditions(["backbone=other"]))
    assert free_table(chosen, Shape(["method"], ["target"]), ["last"]).rows[0].cells[0].mean == 90


@pytest.mark.parametrize(
    ("rows", "columns", "where", "message"),
    [
        (["methd"], [], [], "did you mean 'method'"),
        (["method"], ["method"], [], "both in --rows and in --columns"),
        ([], ["target"], [], "at least one field in --rows"),
        (["method"], [], ["seed=7"], "no result with seed=7; there are seed = 0, 1"),
        (["method"], [], ["seed"], "write FIELD=VALUE"),
        (["method"], [], ["colour=red"], "unknown field 'colour'"),
    ],
)
def test_bad_free_tables_are_one_clear_line(rows, columns, where, message):
    with pytest.raises(UserError, match=message):
        found = restricted(varied(), parse_conditions(where))
        free_table(found, Shape(rows, columns), ["last"])


def test_failure_notes_are_gathered_with_the_results(store, capsys):
    store.put(result("fedavg", "red", 0, [(0.5, 0.4)]))
    spec = toy_spec("fedprox", "red")
    store.put_failure(spec, "the loss is nan", "…")
    store.failure_path(toy_spec("fedbn", "red")).parent.mkdir()
    store.failure_path(toy_spec("fedbn", "red")).write_text("{")
    found = gather(store.root)
    assert found.failed == {spec: "the loss is nan"}
    assert "damaged, skipped" in capsys.readouterr().err


def test_ten_thousand_results_become_one_table_per_dataset():
    """Their speed is measured by `python -m leaderboard table`, not asserted here; a tenth of them
    must be right."""
    found = synthetic(datasets=10, methods=5, targets=4, seeds=5)
    assert len(found.results) == 1000
    tables = make_tables(found)
    assert len(tables) == 10
    assert all(cell.seeds == 5 for table in tables for row in table.rows for cell in row.cells)
    values = [r.records["accuracy"][-1] for r in found.results if r.spec.method == "m0"][:5]
    first = tables[0].rows[0].cells[0].mean
    assert first == pytest.approx(100 * sum(values) / 5)
    assert render(tables, "csv").count("\n") == 1 + 10 * 5 * 5


def synthetic(datasets: int, methods: int, targets: int, seeds: int, rounds: int = 3) -> Collection:
    """Results of a large store: `synthetic(10, 50, 4, 5)` are ten thousand. The validation accuracy
    rises, so that the last round is taken."""
    base = toy_spec("fedavg", "red")
    domains = [f"d{k}" for k in range(targets)]
    results = []
    for d, m, t, s in itertools.product(range(datasets), range(methods), domains, range(seeds)):
        spec = dataclasses.replace(base, dataset=f"D{d}", method=f"m{m}", target=t, seed=s)
        rng = random.Random(f"{d} {m} {t} {s}")
        rows = []
        for r in range(rounds):
            rows += [(r, "global", "val", f"c{c}", f"d{c}", 0.5 + r / 100, 1.0, 9) for c in "abc"]
            rows.append((r, "global", "test", "", t, rng.random(), 1.0, 9))
        columns = [list(column) for column in zip(*rows, strict=True)]
        about = {**ABOUT, "label": f"M{m}", "domains": domains}
        records = dict(zip(COLUMNS, columns, strict=True))
        results.append(Result(spec, about, records, [1.0] * rounds, "x", {}, {}))
    return collection(*results)
