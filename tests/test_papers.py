"""The papers' tables: every published number in its place, ours beside it, nothing made up."""

import csv
import dataclasses
import io
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmark.errors import UserError
from benchmark.results import COLUMNS, Result, ResultStore
from datasets.base import open_dataset
from leaderboard import __main__ as board
from leaderboard import layout
from leaderboard.formats import latex, markdown, tidy
from leaderboard.ours import measure
from leaderboard.papers import paper_sheet
from leaderboard.printed import (
    CLOSES,
    printed,
    recomputed_averages,
    rows_of,
    table_names,
    tables_called,
)
from leaderboard.published import costs, results
from leaderboard.reproduce.plans import lines_of

ROOT = Path(__file__).parent.parent


def call(*arguments) -> int:
    with pytest.raises(SystemExit) as exit:
        board.main([str(argument) for argument in arguments])
    return exit.value.code


def test_all_tables_are_known():
    assert len(table_names()) == 47
    assert set(layout.TITLES) == set(table_names())
    assert sum(len(rows_of(name)) for name in table_names()) == len(results()) == 1549
    assert tables_called("stablefdg/1") == ["stablefdg/1a", "stablefdg/1b"]
    assert tables_called("fedfd_a/1") == ["fedfd_a/1"], "not 10, 11, …"


@pytest.mark.parametrize("name", table_names())
def test_every_published_accuracy_stands_in_its_cell(name):
    """Cell by cell: found again from the rendered CSV by line and column, and in the markdown with
    the digits that were printed."""
    table = printed(name)
    cells = {
        (row["block"], row["group"], row["label"], row["column_group"], row["column"]): row
        for row in csv.DictReader(io.StringIO(tidy([paper_sheet(name)])))
    }
    shown = markdown(paper_sheet(name))
    seen = []
    for line in table.lines:
        for place, row in line.at.items():
            cell = cells[line.block, line.group, line.label, place.group, place.name]
            assert float(cell["mean"]) == row.accuracy
            assert (float(cell["std"]) if cell["std"] else math.nan) == pytest.approx(
                row.std, nan_ok=True
            )
            if isinstance(row.accuracy_printed, str) and "CORRECTED" not in row.note:
                text = row.accuracy_printed
                assert re.search(rf"(?<![\d.]){re.escape(text)}(?!\d)", shown), text
            seen.append(row.Index)
    assert sorted(seen) == sorted(rows_of(name).index), "each published row once"


@pytest.mark.parametrize("name", table_names())
def test_every_printed_cost_stands_in_its_table(name):
    paper, _, number = name.partition("/")
    frame = costs()
    rows = frame[(frame["paper"] == paper) & (frame["table"] == f"Table {number}")]
    listed = list(csv.DictReader(io.StringIO(tidy([paper_sheet(name)]))))
    values = [row["text"] or f"{float(row['mean'] or 'nan'):g}" for row in listed]
    for row in rows.itertuples():
        value = row.value if row.unit in ("flag", "category") else f"{float(row.value):g}"
        assert value in values


def test_averages_close_but_for_six_that_are_known():
    table = recomputed_averages()
    assert len(table) == 281
    open_ones = table[table["gap"].abs() > CLOSES]
    assert {tuple(row) for row in open_ones[["paper", "table", "method"]].to_numpy()} == {
        ("fedfd_a", "11", "FedFD-A"),
        ("stablefdg", "7b", "CCST"),
        ("stablefdg", "13", "StableFDG"),
        ("fedadg", "4", "MTSSL"),
        ("fedadg", "4", "DANN"),
        ("fedadg", "4", "FedADG"),
    }


def test_dataset_averages_are_means_of_averages():
    for name, joined, gap in (
        ("fedfd_a/5", "PACS+VLCS+OfficeHome", 0.014),
        ("gperxan/2", "PACS+OfficeHome", 0.035),
    ):
        rows = rows_of(name)
        means = rows[(rows["target"] == "avg") & (rows["dataset"] != joined)]
        means = means.groupby("method")["accuracy"].mean()
        stated = rows[rows["dataset"] == joined].set_index("method")["accuracy"]
        assert (means - stated).abs().max() <= gap


def test_the_layout_of_the_main_table():
    sheet = paper_sheet("fedfd_a/5")
    assert [f"{c.group} {c.name}".strip() for c in sheet.columns] == [
        "PACS Photo",
        "PACS Art painting",
        "PACS Cartoon",
        "PACS Sketch",
        "PACS average",
        "VLCS average",
        "OfficeHome average",
        "average of 3 datasets",
    ]
    groups = dict.fromkeys(row.group for row in sheet.rows)
    assert list(groups) == [
        "Decentralized w/o DG",
        "Decentralized w/ DG",
        "Decentralized w/ federated DG",
    ]
    assert [row.label for row in sheet.rows if row.shares] == ["COPA", "FedDG", "CCST"]
    shown = markdown(sheet)
    assert "**85.53**" in shown
    assert "<ins>85.37</ins>" in shown
    assert "90.40 (0.97)" in shown
    assert "61.93\\*" in shown
    assert r"\fdbgrey{94.70 {\scriptsize (1.07)}}" in latex(sheet)


def test_backbones_are_blocks_and_paradigms_are_ranked_apart():
    sheet = paper_sheet("fedadg/5")
    assert [block.title for block in sheet.blocks] == ["alexnet", "resnet18"]
    shown = markdown(sheet)
    assert "**74.50**" in shown
    assert "**73.38**" in shown, "the best of the centralised ones"
    assert [row.label for row in sheet.blocks[0].rows if not row.shares] == ["FedAvg", "FedADG"]


def test_columns_keep_the_order_of_the_paper_where_cells_were_lost():
    names = [column.name for column in paper_sheet("fedfd_a/13").columns]
    assert names == ["Photo", "Art painting", "Cartoon", "Sketch", "average"]


def test_in_and_out_of_domain_stand_side_by_side():
    sheet = paper_sheet("fedfd_a/12")
    assert [column.name for column in sheet.columns] == ["in-domain", "out-of-domain"]
    assert [[cell.mean for cell in row.cells] for row in sheet.rows] == [
        [91.43, 77.35],
        [94.53, 84.07],
        [95.20, 85.53],
    ]


def test_who_shares_more_than_weights_is_each_papers_own_word():
    assert layout.sharing("gperxan") == {"ELCFS", "CCST"}
    assert {"FedDG", "COPA"} <= layout.sharing("fedadg")
    assert "FedAvg" not in layout.sharing("fedadg")


def test_cost_tables():
    sheet = paper_sheet("fedfd_a/4")
    assert [column.name for column in sheet.columns] == [
        "parameters (M)",
        "training (ms)",
        "inference (ms)",
        "average",
    ]
    fedfd_a = sheet.rows[-1]
    assert [cell.mean for cell in fedfd_a.cells] == [11.53, 3.50, 1.37, 85.53]
    marks = paper_sheet("gperxan/1")
    assert [cell.text for cell in marks.rows[0].cells] == ["yes", "yes", "yes"]


def ours(spec, value: float, predictor: str = "global", val: float = 0.9) -> Result:
    """A run that reaches `value` in its last round, and more in an earlier one."""
    rows = []
    for number, test in enumerate((min(1.0, value + 0.01), value)):
        rows += [
            (number, predictor, "val", f"c{k}", "x", val + number / 100, 1.0, 10) for k in range(3)
        ]
        rows.append((number, predictor, "test", "", spec.target, test, 1.0, 10))
    records = dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
    about = {
        "label": spec.method,
        "category": "federated",
        "predictor": predictor,
        "domains": list(open_dataset(spec.dataset).domains),
    }
    costs = {
        "parameters": 11_310_000,
        "bytes_per_round": {"up/weights": 3 * 45e6, "down/weights": 3 * 45e6},
        "ms_per_step": 20.0,
        "ms_per_evaluated_image": 2.0,
        "train_seconds": 120.0,
    }
    return Result(spec, about, records, [1.0] * 2, "p", costs, {})


def fill(store: ResultStore, table: str, shift: float = 0.0) -> None:
    """Runs of a table that reach what the paper prints for their domain, plus a shift."""
    for line in lines_of(table):
        dataset = open_dataset(line.key["dataset"])
        stated = {
            dataset.find_domain(row.target): row.accuracy
            for row in line.cells.itertuples()
            if row.target != "avg"
        }
        for spec in line.specs:
            noise = (spec.seed - 1.5) / 10
            value = (stated[spec.target] + shift + noise) / 100
            store.put(ours(spec, value, line.reading.predictor or "global"))


def test_ours_stand_below_the_published_with_the_difference(store):
    fill(store, "fedfd_a/10c", shift=0.5)
    sheet = paper_sheet("fedfd_a/10c", "both", measure("fedfd_a/10c", store))
    assert [row.side for row in sheet.rows] == ["published", "ours", "Δ"] * 3
    published, own, delta = sheet.rows[:3]
    assert published.label == "FedProx"
    assert [c.mean for c in own.cells[:4]] == pytest.approx([83.67, 63.15, 67.45, 55.84])
    assert [c.mean for c in delta.cells] == pytest.approx([0.5] * 4 + [67.5275 - 67.03])
    assert [c.mark for c in delta.cells] == ["‡", "", "", "", ""], "spreads 0.42, 4.42, 0.95, 4.33"
    assert own.cells[0].std == pytest.approx(0.1291, abs=1e-4)
    assert own.cells[-1].seeds == 4
    assert delta.scope is None
    assert "48 of 48 runs stored" in sheet.note
    assert "+0.50‡" in markdown(sheet)
    assert r"+0.50$\ddagger$" in latex(sheet)


def test_partial_failed_and_missing_runs_of_a_paper_are_visible(store):
    fill(store, "fedfd_a/10c")
    lines = {line.key["method"]: line for line in lines_of("fedfd_a/10c")}
    for spec in lines["FedProx"].specs:
        if spec.seed == 0 and spec.target == "photo":
            store.path(spec).unlink()
            store.put_failure(spec, "the loss is nan", "…")
    for spec in lines["SiloBN"].specs:
        store.path(spec).unlink()
    sheet = paper_sheet("fedfd_a/10c", "ours", measure("fedfd_a/10c", store))
    fedprox, silobn, _ = sheet.rows
    assert fedprox.cells[0].partial == "3/4 seeds, 1 failed"
    assert fedprox.cells[-1].partial == "3/4 seeds, 1 failed"
    assert fedprox.cells[1].partial == ""
    assert all(cell.missing for cell in silobn.cells)
    assert "4 of 12 cells missing" in sheet.caption()
    assert any("1 run of fedprox: the loss is nan" in note for note in sheet.footnotes)
    assert "31 of 48 runs stored" in sheet.note


def test_the_papers_own_selection_is_the_default_and_others_stand_beside_it(store):
    fill(store, "stablefdg/7a")
    assert measure("stablefdg/7a", store).rules == ["last"]
    rules = ["last", "oracle"]
    sheet = paper_sheet("stablefdg/7a", "both", measure("stablefdg/7a", store, rules))
    assert [row.side for row in sheet.rows[:4]] == [
        "published",
        "ours last",
        "Δ last",
        "ours oracle",
    ]
    last, oracle = sheet.rows[1], sheet.rows[3]
    assert oracle.cells[0].mean - last.cells[0].mean == pytest.approx(1.0)
    assert oracle.scope is None
    assert "ORACLE" in sheet.note


def test_lines_that_cannot_be_run_say_why(store):
    sheet = paper_sheet("stablefdg/1b", "ours", measure("stablefdg/1b", store))
    fedbn = next(row for row in sheet.rows if row.label == "FedBN")
    assert [cell.text for cell in fedbn.cells[5:]] == ["not run"] * 5
    assert any("no batch normalisation" in note for note in sheet.footnotes)


def test_measured_costs_stand_beside_the_printed_ones(store):
    for line in lines_of("fedfd_a/4"):
        for spec in line.specs:
            store.put(ours(spec, 0.8, line.reading.predictor or "global"))
    sheet = paper_sheet("fedfd_a/4", "both", measure("fedfd_a/4", store))
    own, delta = sheet.rows[1].cells, sheet.rows[2].cells
    assert [cell.mean for cell in own[:3]] == pytest.approx([11.31, 20.0, 2.0])
    assert delta[0].mean == pytest.approx(0.0)
    assert delta[1].text == " ", "times of two machines are not subtracted"


def test_in_domain_accuracy_is_read_from_validation(store):
    for line in lines_of("fedfd_a/12"):
        for spec in line.specs:
            store.put(ours(spec, 0.8, line.reading.predictor or "global", val=0.92))
    sheet = paper_sheet("fedfd_a/12", "ours", measure("fedfd_a/12", store))
    assert [cell.mean for cell in sheet.rows[0].cells] == pytest.approx([93.0, 80.0])


@pytest.mark.parametrize("form", ["markdown", "latex", "html", "csv"])
def test_the_command_prints_a_papers_table(form, capsys):
    assert call("table", "stablefdg/1", "--format", form) == 0
    shown = capsys.readouterr().out
    assert ("82.7," if form == "csv" else "82.70") in shown
    assert "98.05" in shown, "1b too"


def test_published_tables_need_no_torch():
    code = (
        "import sys, leaderboard.__main__ as board\n"
        "try: board.main(['table', 'fedfd_a/7'])\n"
        "except SystemExit as exit: assert exit.code == 0\n"
        "sys.exit('torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fedfd_a/55"], "did you mean 'fedfd_a/5'"),
        (["fedfda/5"], "did you mean 'fedfd_a'"),
        (["fedfd_a"], "write PAPER/NUMBER"),
        (["fedfd_a/5", "--rows", "method"], "make free tables"),
        (["gperxan/1", "--show", "ours"], "prints no accuracy"),
        (["fedfd_a/5", "--show", "published", "--selection", "last"], "--selection is about our"),
        (["--show", "both"], "name one, e.g. fedfd_a/5"),
        (["fedfd_a/1", "--show", "ours", "--selection", "orakel"], "did you mean 'oracle'"),
    ],
)
def test_bad_requests_are_one_clear_line(arguments, message, capsys, tmp_path):
    assert call("table", *arguments, "--runs", tmp_path) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_protocols_are_a_field_of_free_tables(store, capsys):
    fill(store, "fedfd_a/10c")
    where = ["--where", "protocol=fedfd_cross_silo"]
    assert call("table", "--rows", "method", "--runs", store.root, *where) == 2
    assert "protocol = none" in capsys.readouterr().err, "its alpha is 0.1, the protocol's 0.5"
    fill(store, "fedfd_a/10b")
    assert call("table", "--rows", "method", "--runs", store.root, *where) == 0
    shown = capsys.readouterr().out
    assert "77.0" in shown, "FedProx in 10b"
    assert "67.0" not in shown, "FedProx in 10c"


def test_a_table_that_is_not_there_is_refused():
    with pytest.raises(UserError, match="unknown table"):
        tables_called("gperxan/9")
    assert dataclasses.is_dataclass(printed("gperxan/2"))
