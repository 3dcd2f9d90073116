"""Statistics against numbers known from elsewhere."""

import math

import numpy as np
import pandas as pd
import pytest

from benchmark.errors import UserError
from leaderboard import __main__ as board
from leaderboard.stats import (
    BLOCK,
    Scores,
    average_ranks,
    bootstrap_interval,
    complete_blocks,
    friedman,
    paired,
    scores,
    wins,
)
from leaderboard.stats_sheets import stats_sheets
from tests.test_tables import ABOUT, collection, result

DEMSAR = pd.DataFrame(
    {
        "C4.5": [763, 599, 954, 628, 882, 936, 661, 583, 775, 1000, 940, 619, 972, 957],
        "C4.5+m": [768, 591, 971, 661, 888, 931, 668, 583, 838, 1000, 962, 666, 981, 978],
        "C4.5+cf": [771, 590, 968, 654, 886, 916, 609, 563, 866, 1000, 965, 614, 975.01, 946],
        "C4.5+m+cf": [798, 569, 967, 657, 898, 931, 685, 625, 875, 1000, 962, 669, 975, 970],
    }
)
"""Table 6 of Demšar, Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 2006.
It prints 975 twice in one line and ranks the two apart, by digits that it does not print."""


def test_ranks_and_critical_difference_of_demsars_example():
    ranks = average_ranks(DEMSAR)
    assert ranks.round(3).to_dict() == {
        "C4.5+m+cf": 1.964,
        "C4.5+m": 2.000,
        "C4.5+cf": 2.893,
        "C4.5": 3.143,
    }
    test = friedman(DEMSAR)
    # his q = 2.569 for four classifiers; sqrt(4 × 5 / (6 × 14)) = 0.48795
    assert test.critical_difference == pytest.approx(2.569 * 0.48795, abs=1e-3)
    # his 9.28 is without correction for ties, which makes it larger
    assert 9.28 < test.statistic < 11
    assert test.p < 0.05
    assert test.pairs.loc["C4.5", "C4.5+m+cf"] == test.pairs.loc["C4.5+m+cf", "C4.5"]
    assert test.pairs.loc["C4.5+m", "C4.5+m+cf"] > 0.9


def test_methods_that_never_differ_are_not_told_apart():
    same = pd.DataFrame({name: [50.0, 60.0, 70.0] for name in "abc"})
    test = friedman(same)
    assert test.p == 1.0
    assert (test.pairs.to_numpy() >= 0.99).all()


def test_too_little_for_a_test():
    assert friedman(DEMSAR[["C4.5", "C4.5+m"]]) is None
    assert friedman(DEMSAR.iloc[:1]) is None


def long(**values) -> Scores:
    """Methods as lists of accuracies, one domain each."""
    rows = [
        {"label": label, "dataset": "D", "setting": "s", "target": f"t{k}", "seed": 0, "value": v}
        for label, column in values.items()
        for k, v in enumerate(column)
        if v is not None
    ]
    return Scores(pd.DataFrame(rows), ())


def test_wilcoxon_of_all_wins_is_exact_and_holm_multiplies():
    given = long(a=[51, 62, 73, 84, 95, 46], b=[50, 60, 70, 80, 90, 40], c=[49, 58, 67, 76, 85, 34])
    found = {(pair.one, pair.other): pair for pair in paired(given)}
    assert [pair.p for pair in found.values()] == pytest.approx([2 / 2**6] * 3)
    assert [pair.adjusted for pair in found.values()] == pytest.approx([3 * 2 / 2**6] * 3)
    assert found["a", "b"].difference == pytest.approx(3.5)
    assert found["a", "b"].pairs == 6
    (one,) = [pair for pair in paired(given, against="b") if pair.one == "a"]
    assert one.adjusted == pytest.approx(2 * 2 / 2**6), "two comparisons, not three"


def test_only_pairs_that_both_have_are_compared():
    (pair,) = paired(long(a=[50, 60, None], b=[None, 59, 70]))
    assert pair.pairs == 1
    assert math.isnan(pair.p)
    (equal,) = paired(long(a=[50, 60], b=[50, 60]))
    assert equal.p == 1.0


def test_wins_ties_and_losses():
    table = pd.DataFrame({"a": [50.0, 60.0, 70.0, 80.0], "b": [50.04, 61.0, 69.0, 70.0]})
    assert wins(table) == {("a", "b"): (2, 1, 1), ("b", "a"): (1, 1, 2)}


def test_bootstrap_interval():
    low, high = bootstrap_interval([1.0, 2.0, 4.0])
    assert 1.0 <= low < 7 / 3 < high <= 4.0
    assert bootstrap_interval([4.0, 1.0, 2.0]) == (low, high), "the order of seeds is no matter"
    assert bootstrap_interval([3.0, 3.0]) == (3.0, 3.0)
    assert all(map(math.isnan, bootstrap_interval([3.0])))
    rng = np.random.default_rng(0)
    many = rng.normal(50, 10, 400)
    low, high = bootstrap_interval(many)
    # the normal interval: ± 1.96 × 10 / sqrt(400) = ± 0.98
    assert high - low == pytest.approx(2 * 1.96 * many.std(ddof=1) / 20, rel=0.1)


def board_of_three():
    domains = ABOUT["domains"]
    runs = [
        result(method, d, s, [(0.5, 0.3 + 0.1 * k + 0.05 * m + 0.01 * s)], label=method.upper())
        for m, method in enumerate(("fedavg", "fedprox", "silobn"))
        for k, d in enumerate(domains)
        for s in (0, 1)
    ]
    runs.append(result("erm_pool", "red", 0, [(0.5, 0.99)], category="centralised", label="ERM"))
    runs += [
        result("fedbn", d, 0, [(0.5, 0.9)], predictors=("global", "local"), label="FedBN")
        for d in domains[:2]
    ]
    return collection(*runs)


def test_scores_leave_out_what_sees_all_data_and_other_ways_of_predicting():
    given = scores(board_of_three())
    assert given.left_out == ("ERM: centralised",)
    assert set(given.labels) == {"FEDAVG", "FEDPROX", "SILOBN", "FedBN"}
    assert not given.frame.duplicated([*BLOCK, "label", "seed"]).any()
    blocks = complete_blocks(given)
    assert len(blocks.table) == 2
    assert blocks.incomplete == 2
    assert list(blocks.table.columns) == ["FedBN", "SILOBN", "FEDPROX", "FEDAVG"]
    assert len(complete_blocks(given, each_seed=True).table) == 2


def test_methods_without_a_common_domain_are_refused_with_the_one_to_blame():
    with pytest.raises(UserError, match="b lacks 2 of 3"):
        complete_blocks(long(a=[50, 60, None], b=[None, None, 70]))
    with pytest.raises(UserError, match="two methods or more"):
        complete_blocks(long(a=[50, 60]))


def test_two_methods_with_one_label_stay_apart():
    runs = [result(method, "red", 0, [(0.5, 0.5)], label="Same") for method in ("fedavg", "fedbn")]
    assert set(scores(collection(*runs)).labels) == {"Same [fedavg]", "Same [fedbn]"}


def test_the_sheets():
    accuracy, ranks, won, pairs = stats_sheets(board_of_three())
    cell = accuracy.rows[0].cells[0]
    assert (cell.low, cell.high) == (pytest.approx(30.0), pytest.approx(31.0))
    assert [row.label for row in ranks.rows] == ["FedBN", "SILOBN", "FEDPROX", "FEDAVG"]
    assert ranks.rows[0].cells[0].mean == 1.0
    assert "2 blocks without every method left out" in ranks.note
    assert "left out: ERM: centralised" in ranks.footnotes
    assert won.rows[0].cells[1].text == "2/0/0"
    assert "(n 8, p " in pairs.rows[1].cells[2].text
    std, *_ = stats_sheets(board_of_three(), interval="std")
    assert std.rows[0].cells[0].std == pytest.approx(math.sqrt(0.5))


def test_the_command(store, capsys):
    for one in board_of_three().results:
        store.put(one)
    for arguments in ([], ["--each-seed", "--interval", "std", "--against", "FEDAVG"]):
        with pytest.raises(SystemExit) as exit:
            board.main(["stats", "--runs", str(store.root), *arguments])
        assert exit.value.code == 0
    shown = capsys.readouterr().out
    assert "Friedman" in shown
    assert "against FEDAVG" in shown
    for arguments, message in (
        (["--against", "FEDAVGG"], "did you mean 'FEDAVG'"),
        (["--alpha", "2"], "between 0 and 1"),
        (["--selection", "oracle"], "invalid choice"),
        (["--where", "method=fedavg"], "two methods or more"),
    ):
        with pytest.raises(SystemExit) as exit:
            board.main(["stats", "--runs", str(store.root), *arguments])
        assert exit.value.code == 2
        assert message in capsys.readouterr().err
