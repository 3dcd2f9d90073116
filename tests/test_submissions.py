"""Entries: packed from results, checked as untrusted, repeated to the bit."""

from __future__ import annotations

import copy
import dataclasses
import json
import re

import pytest

from benchmark.errors import ArgumentParser, UserError
from benchmark.execute import Place, execute
from benchmark.results import ResultStore
from leaderboard.submissions.checks import Refused, parse
from leaderboard.submissions.commands import add_commands
from leaderboard.submissions.entry import (
    MAX_BYTES,
    check_entry,
    digest,
    pack,
    read_entry,
    write_entry,
)
from leaderboard.submissions.protocols import examine_protocol
from leaderboard.submissions.rerun import differences, sample
from leaderboard.submissions.verify import Report, examine
from tests.board_results import grid, make_result
from tests.conftest import toy_spec


@pytest.fixture(scope="module")
def packed() -> dict:
    return json.loads(pack(grid(["fedavg", "fedprox"]), "A group", "a@example.org", None))


@pytest.fixture
def entry(packed) -> dict:
    return copy.deepcopy(packed)


def run_command(*arguments: object) -> int:
    parser = ArgumentParser(prog="leaderboard")
    add_commands(parser.add_subparsers(required=True))
    options = parser.parse_args([str(argument) for argument in arguments])
    return options.handler(options)


def set_at(data, path: str, value) -> None:
    """Set `runs.0.spec.seed` and its like."""
    *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    for step in way:
        data = data[step]
    data[last] = value


def rehashed(data: dict) -> dict:
    return {**data, "hash": digest(data)}


def test_the_same_runs_give_the_same_bytes_in_any_order():
    results = grid(["fedavg", "fedprox"])
    text = pack(results, "A", "b", None)
    assert text == pack(results[::-1], "A", "b", None)
    assert json.loads(text)["schema"] == 1


def test_what_is_packed_comes_back_to_the_bit(entry):
    results = {result.spec.id: result for result in grid(["fedavg", "fedprox"])}
    back = check_entry(entry)
    assert len(back.results) == len(results) == 12
    for result in back.results:
        assert result.to_json() == results[result.spec.id].to_json()


def test_a_sound_entry_has_no_problems(entry):
    report = examine(check_entry(entry))
    assert report.problems == []
    assert len(report.checked) == 5


def test_an_accuracy_that_is_no_fraction_is_not_packed():
    result = make_result()
    accuracy = [0.123456, *result.records["accuracy"][1:]]
    odd = dataclasses.replace(result, records={**result.records, "accuracy": accuracy})
    with pytest.raises(UserError, match="no fraction"):
        pack([odd], "A", "b", None)


LONG = "x" * 10_000_000
HOSTILE = [
    ("name", ["a"], "name: expected text"),
    ("name", LONG, "name: 10000000 characters"),
    ("name", "a\u202eb", "name: .*cannot be printed"),
    ("contact", "a\nb", "contact: .*cannot be printed"),
    ("protocol", "../../etc/passwd", "protocol: .*is not a name"),
    ("schema", 2, "schema"),
    ("schema", True, "schema"),
    ("runs", [], "runs: there are none"),
    ("runs", {}, "runs: expected a list"),
    ("runs.0", None, r"runs\[0\]: expected an object"),
    ("runs.0.id", "0" * 16, r"runs\[0\].id: is not the hash of its spec"),
    ("runs.0.id", "../0", r"runs\[0\].id: is not the hash of its spec"),
    ("runs.0.spec.dataset", "../../outside", r"runs\[0\].spec.dataset: .*is not a name"),
    ("runs.0.spec.dataset", "/etc", r"runs\[0\].spec.dataset: .*is not a name"),
    ("runs.0.spec.dataset", "folder:here", r"runs\[0\].spec.dataset: a folder of one's own"),
    ("runs.0.spec.method", "<script>alert(1)</script>", r"runs\[0\].spec.method: .*not a name"),
    ("runs.0.spec.method", "a..b", r"runs\[0\].spec.method: .*not a name"),
    ("runs.0.spec.seed", -1, r"runs\[0\].spec.seed: -1 is out of range"),
    ("runs.0.spec.seed", 1.5, r"runs\[0\].spec.seed: expected a whole number"),
    ("runs.0.spec.seed", True, r"runs\[0\].spec.seed: expected a whole number"),
    ("runs.0.spec.image_size", 10**30, r"runs\[0\].spec.image_size: .*out of range"),
    ("runs.0.spec.hparams", {"mu": "../x"}, r"runs\[0\].spec.hparams.mu: .*not a name"),
    ("runs.0.spec.hparams", {"mu": {"a": 1}}, r"runs\[0\].spec.hparams.mu: expected a number"),
    ("runs.0.spec.training.rounds", 10**9, r"runs\[0\].spec.training.rounds: .*out of range"),
    ("runs.0.spec.training.lr", "fast", r"runs\[0\].spec.training.lr: expected a number"),
    ("runs.0.spec.training.lr", -1, r"runs\[0\].spec.training.lr: .*out of range"),
    ("runs.0.spec.training.local_epochs", 3, r"runs\[0\].spec.training: set exactly one"),
    ("runs.0.spec.training.odd", 3, r"runs\[0\].spec.training: unknown field 'odd'"),
    ("runs.0.about.label", LONG, r"runs\[0\].about.label: 10000000 characters"),
    ("runs.0.about.domains", ["a", "a"], r"runs\[0\].about.domains: .*twice"),
    ("runs.0.records.right.0", 401, r"runs\[0\].records.right\[0\]: 401 right of"),
    ("runs.0.records.right.0", -1, r"runs\[0\].records.right\[0\]: .*out of range"),
    ("runs.0.records.right.0", 0.5, r"runs\[0\].records.right\[0\]: expected a whole"),
    ("runs.0.records.count.0", 0, r"runs\[0\].records.count\[0\]: .*out of range"),
    ("runs.0.records.loss.0", 1e300, r"runs\[0\].records.loss\[0\]: .*out of range"),
    ("runs.0.records.loss.0", "1", r"runs\[0\].records.loss\[0\]: expected a number"),
    ("runs.0.records.loss", [], r"runs\[0\].records: .*differ in length"),
    ("runs.0.records.part.codes.0", 9, r"runs\[0\].records.part.codes\[0\]: .*out of range"),
    ("runs.0.records.client.names.1", "../x", r"runs\[0\].records.client.names\[1\]: .*name"),
    ("runs.0.train_loss.0", None, r"runs\[0\].train_loss\[0\]: expected a number"),
    ("runs.0.partition", 7, r"runs\[0\].partition: expected text"),
    ("runs.0.costs.parameters", 1e40, r"runs\[0\].costs.parameters: .*out of range"),
    ("runs.0.costs.bytes_per_round", {"side/x": 1}, r"runs\[0\].costs.bytes_per_round: keys"),
    ("runs.0.environment", 5, r"runs\[0\].environment: .*out of range"),
    ("environments.0.torch", ["x"], r"environments\[0\].torch: expected a number"),
    ("summary.0.mean", 2, r"summary\[0\].mean: .*out of range"),
    ("hash", "0", "hash: is not the hash of the entry"),
    ("extra", 1, "the entry: unknown field 'extra'"),
]


@pytest.mark.parametrize(
    ("path", "value", "message"), HOSTILE, ids=[f"{p}={str(v)[:12]}" for p, v, _ in HOSTILE]
)
def test_a_hostile_field_is_refused_by_name(entry, path, value, message):
    set_at(entry, path, value)
    with pytest.raises(Refused, match=message) as caught:
        check_entry(entry if path == "hash" else rehashed(entry))
    assert len(str(caught.value)) < 300 and "\n" not in str(caught.value)


def test_a_missing_field_is_refused_by_name(entry):
    del entry["runs"][0]["costs"]["steps"]
    with pytest.raises(Refused, match=r"runs\[0\].costs.steps: missing"):
        check_entry(rehashed(entry))


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_none_are_refused(packed, value):
    text = json.dumps(packed).replace('"train_loss": [1.0', f'"train_loss": [{value}', 1)
    with pytest.raises(Refused, match=value):
        parse(text)


def test_a_number_beyond_all_floats_is_refused_by_name(packed):
    text = json.dumps(packed).replace('"train_loss": [1.0', '"train_loss": [1e999', 1)
    with pytest.raises(Refused, match=r"train_loss\[0\]: inf is not a finite number"):
        check_entry(parse(text))


@pytest.mark.parametrize(
    "text", ['{"a": 1, "a": 2}', "[" * 100_000, "1" * 10_000, "not json", ""], ids=str.__len__
)
def test_text_that_is_no_sound_json_is_refused(text):
    with pytest.raises(Refused):
        check_entry(parse(text))


def test_a_run_that_stands_twice_is_refused(entry):
    entry["runs"].append(entry["runs"][0])
    with pytest.raises(Refused, match=r"runs\[12\].id: the same run as runs\[0\]"):
        check_entry(rehashed(entry))


def test_a_file_that_is_too_large_is_not_even_read(tmp_path):
    path = tmp_path / "entry.json"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(Refused, match="larger than 20 MB"):
        read_entry(path)


@pytest.mark.parametrize("data", [b"\xff\xfe", b"\x80\x04\x95"], ids=["binary", "pickle"])
def test_bytes_that_are_no_text_are_refused(tmp_path, data):
    (tmp_path / "entry.json").write_bytes(data)
    with pytest.raises(Refused, match="UTF-8"):
        read_entry(tmp_path / "entry.json")


def test_a_changed_file_is_noticed(entry):
    entry["name"] = "Another group"
    with pytest.raises(Refused, match="hash"):
        check_entry(entry)


def test_a_changed_setting_under_the_old_id_is_noticed(entry):
    entry["runs"][0]["spec"]["training"]["rounds"] = 5
    with pytest.raises(Refused, match="is not the hash of its spec"):
        check_entry(rehashed(entry))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("summary.0.mean", 0.99, "mean is 0.99, its runs give"),
        ("summary.0.seeds", 3, "seeds is 3, its runs give 2"),
        ("runs.0.costs.ms_per_step", 1.0, "ms_per_step does not follow"),
        ("runs.0.records.round.0", 3, "a record stands twice|one per evaluated round"),
        ("runs.0.train_loss", [0.1], "1 training losses for 4 rounds"),
        ("runs.0.about.predictor", "other", "has no records"),
        ("runs.0.about.label", "Else", "differs from .* in label"),
        ("runs.0.partition", "ffff", "differs from .* in who held which samples"),
    ],
)
def test_wrong_arithmetic_and_contradictions_are_told(entry, path, value, message):
    set_at(entry, path, value)
    problems = examine(check_entry(rehashed(entry))).problems
    assert any(re.search(message, problem) for problem in problems), problems


def test_training_on_the_held_out_domain_is_told(entry):
    columns = entry["runs"][0]["records"]["domain"]
    columns["codes"] = [0] * len(columns["codes"])
    problems = examine(check_entry(rehashed(entry))).problems
    assert any("must be tested, and only tested" in problem for problem in problems)


def test_a_missing_seed_is_told():
    results = grid(["fedavg"])
    text = pack(results[:-1], "A", "b", None)
    problems = examine(check_entry(json.loads(text))).problems
    assert len(problems) == 1 and problems[0].endswith("target c lacks seeds 1")


def test_a_missing_target_is_told():
    results = [result for result in grid(["fedavg"]) if result.spec.target != "b"]
    problems = examine(check_entry(json.loads(pack(results, "A", "b", None)))).problems
    assert len(problems) == 1 and problems[0].endswith("target b lacks seeds 0, 1")


def test_a_setting_that_is_not_the_protocols_is_told():
    domains = ("handwritten", "blended", "print", "street")
    text = pack(grid(["fedavg"], "MiniDigits", domains=domains), "A", "b", "demo")
    report = Report()
    examine_protocol(check_entry(json.loads(text)), report)
    told = " ".join(report.problems)
    assert "training.rounds is 4, the protocol says 10" in told
    assert "backbone" not in told


def test_a_protocol_that_does_not_exist_is_told(entry):
    entry["protocol"] = "dmo"
    with pytest.raises(UserError, match="did you mean 'demo'"):
        examine_protocol(check_entry(rehashed(entry)), Report())


@pytest.fixture(scope="module")
def toy_store(tmp_path_factory) -> ResultStore:
    """Really trained runs: one method, every domain of the toy dataset, one seed."""
    folder = tmp_path_factory.mktemp("toy")
    store = ResultStore(folder / "runs")
    first = execute(toy_spec(), store, Place(data=folder))
    for target in first.about["domains"]:
        if target != first.spec.target:
            execute(toy_spec(target=target), store, Place(data=folder))
    return store


def test_submit_and_verify_with_a_repeated_run(toy_store, tmp_path, capsys):
    path = tmp_path / "entry.json"
    assert run_command("submit", toy_store.root, "--name", "A", "--contact", "b", "--to", path) == 0
    assert run_command("verify", path, "--rerun", 1, "--data", tmp_path) == 0
    assert "1 runs repeated to the bit: ok" in capsys.readouterr().out


def test_a_repeated_run_that_differs_is_told(toy_store, tmp_path, capsys):
    data = json.loads(pack(toy_store.collect().results, "A", "b", None))
    for run in data["runs"]:
        run["train_loss"][0] += 1e-12
    write_entry(tmp_path / "entry.json", json.dumps(rehashed(data)))
    assert run_command("verify", tmp_path / "entry.json", "--rerun", 1, "--data", tmp_path) == 1
    assert "train_loss differs" in capsys.readouterr().err


def test_incomplete_runs_are_not_submitted(tmp_path, capsys):
    store = ResultStore(tmp_path / "runs")
    for result in grid(["fedavg"])[:-1]:
        store.put(result)
    arguments = ("submit", store.root, "--name", "A", "--contact", "b", "--to", tmp_path / "e.json")
    with pytest.raises(UserError, match="1 problems"):
        run_command(*arguments)
    assert "lacks seeds" in capsys.readouterr().err
    assert not (tmp_path / "e.json").exists()


def test_differences_name_the_column_and_its_gap():
    one, other = make_result(), make_result()
    records = {**other.records, "accuracy": [0.0, *other.records["accuracy"][1:]]}
    found = list(differences(one, dataclasses.replace(other, records=records)))
    assert len(found) == 1 and found[0].startswith("records.accuracy differs (by up to 0.")
    assert list(differences(one, make_result())) == []


def test_the_sample_depends_on_the_entry_and_the_checker(entry):
    checked = check_entry(entry)
    chosen = [result.spec.id for result in sample(checked, 3, 0)]
    assert chosen == [result.spec.id for result in sample(checked, 3, 0)]
    assert any(chosen != [r.spec.id for r in sample(checked, 3, seed)] for seed in range(1, 6))
    assert len(sample(checked, 99, 0)) == 12
