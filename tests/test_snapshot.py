"""The committed snapshot of MiniDigits: its arithmetic, and that it is of today's runs."""

import statistics
from pathlib import Path

import pandas as pd
import pytest

from benchmark.errors import UserError
from benchmark.protocol import plan, protocols
from benchmark.results import Collection, ResultStore
from leaderboard.snapshot import __main__ as program
from leaderboard.snapshot.page import page, summary, words
from leaderboard.snapshot.rows import (
    BASELINE,
    COLUMNS,
    DATASET,
    METHODS,
    PAPERS,
    PROTOCOL,
    SEEDS,
    read,
    rows_of,
    snapshot,
)
from tests.board_results import make_result
from tests.test_sweep import call

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "minidigits.md"
DOMAINS = ("handwritten", "blended", "print", "street")


@pytest.fixture(scope="module")
def rows():
    return read()


@pytest.fixture(scope="module")
def values(rows):
    """Accuracy by rule, method, target and seed, in plain Python."""
    return {
        rule: {(r.method, r.target, r.seed): getattr(r, rule) for r in rows.itertuples()}
        for rule in ("training_domain", "last", "oracle", "validation")
    }


def test_every_method_has_all_its_runs_and_no_run_is_there_twice(rows):
    assert tuple(rows.columns) == COLUMNS
    keys = list(zip(rows["method"], rows["target"], rows["seed"], strict=True))
    assert keys == [(m, t, s) for m in METHODS for t in DOMAINS for s in SEEDS]
    assert rows["id"].is_unique
    assert set(METHODS) > {name for names in PAPERS.values() for name in names} | {BASELINE}


def test_the_runs_are_those_that_would_be_planned_today(rows):
    """A default that changes must be measured anew: see `leaderboard/snapshot`."""
    changes = {"seeds": SEEDS}
    planned = plan(protocols[PROTOCOL], METHODS, datasets=[DATASET], changes=changes)
    assert not planned.left_out
    today = {(s.method, s.target, s.seed): s.id for s in planned.specs}
    there = {(r.method, r.target, r.seed): r.id for r in rows.itertuples()}
    assert there == today


def test_accuracies_are_shares_of_the_tested_images(rows):
    assert rows.groupby("target")["tested"].nunique().eq(1).all()
    for row in rows.itertuples():
        for accuracy in (row.training_domain, row.last, row.oracle):
            assert accuracy == round(accuracy * row.tested) / row.tested
        assert row.oracle >= max(row.training_domain, row.last)
        assert 0 < row.validation <= 1


def mean_and_spread(numbers):
    return 100 * statistics.fmean(numbers), 100 * statistics.stdev(numbers)


def cell(mean, spread, sign=""):
    return f"{mean:{sign}.1f} ± {spread:.1f}"


def expected_line(values, method):
    """A line of the table worked out by hand, from name to validation."""
    chosen = values["training_domain"]
    cells = [
        cell(*mean_and_spread([chosen[method, target, seed] for seed in SEEDS]))
        for target in DOMAINS
    ]
    averages = [statistics.fmean(chosen[method, t, seed] for t in DOMAINS) for seed in SEEDS]
    cells.append(cell(*mean_and_spread(averages)))
    pairs = [(t, seed) for t in DOMAINS for seed in SEEDS]
    gains = [chosen[method, *pair] - chosen[BASELINE, *pair] for pair in pairs]
    if method == BASELINE:
        cells += ["", ""]
    else:
        cells += [cell(*mean_and_spread(gains), "+"), str(sum(gain > 0 for gain in gains))]
    for rule in ("last", "oracle", "validation"):
        cells.append(f"{100 * statistics.fmean(values[rule][method, *pair] for pair in pairs):.1f}")
    return cells


def table_of(text):
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[part.strip() for part in line.strip("|").split("|")] for line in lines]


def test_every_cell_of_the_page_follows_from_the_rows(values):
    header, _, *lines = table_of(PAGE.read_text())
    assert header[2:6] == list(DOMAINS)
    shown = {line[1].strip("`"): line[2:] for line in lines}
    assert set(shown) == set(METHODS)
    for method in METHODS:
        assert shown[method] == expected_line(values, method), method
    averages = [float(line[6].split(" ± ")[0]) for line in lines]
    assert averages == sorted(averages, reverse=True)


def test_the_page_is_the_one_that_the_rows_make(rows):
    assert PAGE.read_text() == page(rows)


def test_the_words_say_what_the_numbers_say(rows, values):
    text = " ".join(words(summary(rows), 12).split())
    chosen = values["training_domain"]
    for paper, methods in PAPERS.items():
        assert f"{paper}'s paper: " in text
        for method in methods:
            gains = [chosen[method, t, s] - chosen[BASELINE, t, s] for t in DOMAINS for s in SEEDS]
            gain = 100 * statistics.fmean(gains)
            assert f"{gain:+.1f} (better in {sum(g > 0 for g in gains)} of 12)" in text
    means = {m: statistics.fmean(chosen[m, t, s] for t in DOMAINS for s in SEEDS) for m in METHODS}
    above = sum(mean > means[BASELINE] for mean in means.values())
    assert f"{above} of the {len(METHODS) - 1} other methods are above it" in text
    assert "not the papers' datasets" in " ".join(PAGE.read_text().split())


# making it


def made(method, target, seed, **changes):
    return make_result(method, DATASET, target, seed, DOMAINS, **changes)


@pytest.fixture
def everything():
    return [made(m, t, s) for m in reversed(METHODS) for t in DOMAINS for s in SEEDS]


def test_rows_hold_what_each_rule_takes():
    result = made("fedavg", "print", 0, rounds=3)
    records = dict(result.records)
    records["accuracy"] = [
        {0: (0.9, 0.2), 1: (0.8, 0.5), 2: (0.7, 0.4)}[round][part == "test"]
        for round, part in zip(records["round"], records["part"], strict=True)
    ]
    result = type(result)(**{**vars(result), "records": records})
    (row,) = rows_of(Collection([result], [], {}, {})).itertuples()
    assert (row.training_domain, row.last, row.oracle) == (0.2, 0.4, 0.5)
    assert row.validation == pytest.approx(0.9)
    assert (row.method, row.target, row.seed, row.tested) == ("fedavg", "print", 0, 400)
    assert row.id == result.spec.id
    assert row.commit == "abc1234"


def test_a_snapshot_is_in_order_and_leaves_other_runs_out(everything):
    others = [made("moon", "print", 0), make_result("fedavg", "Sample")]
    table = snapshot(Collection([*everything, *others], [], {}, {}))
    keys = list(zip(table["method"], table["target"], table["seed"], strict=True))
    assert keys == [(m, t, s) for m in METHODS for t in DOMAINS for s in SEEDS]


def test_what_lacks_or_is_there_twice_is_one_clear_line(everything):
    with pytest.raises(UserError, match="1 runs missing, the first fedadg on handwritten seed 0"):
        short = [r for r in everything if r.spec != made("fedadg", "handwritten", 0).spec]
        snapshot(Collection(short, [], {}, {}))
    with pytest.raises(UserError, match="1 runs more than one per method, domain and seed"):
        twice = [*everything, made("fedavg", "print", 0, rounds=5)]
        snapshot(Collection(twice, [], {}, {}))
    with pytest.raises(UserError, match=r"no run of fedavg, .* on MiniDigits"):
        snapshot(Collection([make_result("fedavg", "Sample")], [], {}, {}))


def test_the_program_writes_rows_that_read_back_to_the_bit_and_the_page(
    everything, tmp_path, capsys
):
    store = ResultStore(tmp_path / "runs")
    for result in everything:
        store.put(result)
    where = ["--csv", tmp_path / "rows.csv", "--page", tmp_path / "page.md"]
    assert call(program.main, store.root, *where) == 0
    assert capsys.readouterr().out.count("wrote ") == 2
    table = read(tmp_path / "rows.csv")
    pd.testing.assert_frame_equal(table, snapshot(store.collect()))
    assert (tmp_path / "page.md").read_text() == page(table)
    assert call(program.main, *where) == 0, "the page alone"
    assert call(program.main, tmp_path / "nothing", *where) == 2
    assert "no results in" in capsys.readouterr().err
