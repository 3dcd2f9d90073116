"""Every printed line of the four papers is a plan of runs here, or says why not."""

import pytest

from benchmark.errors import UserError
from leaderboard.published import results, table_names, table_rows
from leaderboard.reproduce.plans import lines_of, specs_of

UNPLANNED = {("stablefdg", "1b", "DigitsDG", "FedBN")}


@pytest.mark.parametrize("table", table_names())
def test_every_line_is_planned_or_says_why_not(table):
    for line in lines_of(table):
        where = tuple(line.key[name] for name in ("paper", "table", "dataset", "method"))
        assert bool(line.specs) == (where not in UNPLANNED), line
        if not line.specs:
            assert line.reason != "no reading of this line"


def test_no_accuracy_is_forgotten():
    cells = sum(len(line.cells) for table in table_names() for line in lines_of(table))
    assert cells == len(results()) == 1549


def test_a_whole_table_with_its_parts():
    parts = {line.key["table"] for line in lines_of("stablefdg/1")}
    assert parts == {"1a", "1b"}
    with pytest.raises(UserError, match="did you mean 'fedfd_a'"):
        table_rows("fedfd/5")
    with pytest.raises(UserError, match="unknown table 'fedfd_a/55'"):
        table_rows("fedfd_a/55")
    with pytest.raises(UserError, match="write PAPER/NUMBER"):
        table_rows("5")


def test_table_five_of_fedfd_a_is_twenty_one_methods_on_three_datasets_with_four_seeds():
    specs = specs_of("fedfd_a/5")
    assert len(specs) == 21 * 3 * 4 * 4
    assert {spec.backbone for spec in specs} == {"resnet18_b256"}
    assert {spec.training.rounds for spec in specs} == {40}
    assert len({spec.id for spec in specs}) == len(specs)


@pytest.mark.parametrize(
    ("table", "method", "variant", "expected"),
    [
        ("fedfd_a/13", "SiloBN", "long local iterations (600 per round)", ("silobn", 600, 40)),
        ("fedfd_a/13", "SiloBN", "long total rounds (120)", ("silobn", 200, 120)),
        ("fedfd_a/1", "FedFD-A", "base=FedBN", ("fedfd_a+fedbn", 200, 40)),
    ],
)
def test_variants(table, method, variant, expected):
    (line,) = (
        line
        for line in lines_of(table)
        if (line.key["method"], line.key["variant"]) == (method, variant)
    )
    spec = line.specs[0]
    assert (spec.method, spec.training.local_steps, spec.training.rounds) == expected


def test_settings_become_partitions_and_backbones():
    (partition,) = {spec.partition for spec in specs_of("fedfd_a/10c")}
    assert partition.startswith("dirichlet_label:alpha=0.1,clients=10")
    assert {spec.backbone for spec in specs_of("stablefdg/4b")} == {"resnet50"}
    assert {spec.partition for spec in specs_of("stablefdg/4a")} == {"pooled"}
    assert {spec.backbone for spec in specs_of("fedadg/5")} == {"alexnet", "resnet18"}
    assert {spec.backbone for spec in specs_of("fedfd_a/6")} == {"vit_b16"}


def test_in_domain_numbers_are_read_from_validation():
    parts = {line.reading.part for line in lines_of("fedfd_a/12") if line.key["variant"] == ""}
    assert parts == {"val"}


def test_the_command_line_plans_a_table(capsys):
    from benchmark import sweep

    with pytest.raises(SystemExit) as exit:
        sweep.main(["--reproduce", "fedfd_a/13", "--dry-run", "--seeds", "0", "--targets", "photo"])
    assert exit.value.code == 0
    shown = capsys.readouterr().out
    assert "3 runs, 0 stored, 3 to do" in shown
    assert "fedfd_a+silobn" in shown


def test_lines_that_cannot_be_run_are_named(capsys):
    from benchmark import sweep

    flags = ["--reproduce", "stablefdg/1b", "--dry-run", "--seeds", "0", "--datasets", "DigitsDG"]
    with pytest.raises(SystemExit):
        sweep.main(flags)
    assert "left out: stablefdg/1b FedBN on DigitsDG: " in capsys.readouterr().err
