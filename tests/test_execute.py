"""One run: storing, resuming, and what happens to damaged files."""

import dataclasses
import json

import pytest
import torch

from benchmark.errors import Diverged
from benchmark.execute import Interrupted, attempt, execute
from benchmark.results import Damaged, as_columns, read_failure
from tests.conftest import TRAINING, toy_spec
from tests.test_every_method import outcome


def interrupted_after(count):
    seen = iter(range(1, 100))
    return lambda: next(seen) >= count


def test_a_stored_result_reads_back_as_it_was(store, place):
    spec = toy_spec()
    result = execute(spec, store, place)
    assert store.get(spec) == result
    assert set(result.records["part"]) == {"val", "test"}
    assert result.records["domain"].count("grey") == 3
    assert result.records["count"][result.records["part"].index("test")] == 48
    assert result.costs["parameters"] == sum(p.numel() for p in model_of(spec).parameters())
    json.loads(store.path(spec).read_text())


def model_of(spec):
    from benchmark.backbones.base import make_backbone

    return make_backbone(spec.backbone, 4, "none")


def test_testing_only_the_training_part_of_the_target(store, place):
    result = execute(toy_spec(test_part="in"), store, place)
    assert result.records["count"][result.records["part"].index("test")] == 48 - 9


def test_stopping_saves_and_the_next_call_continues(store, place, tmp_path):
    spec = toy_spec("fedbn")
    with pytest.raises(Interrupted):
        execute(
            spec,
            store,
            dataclasses.replace(place, checkpoint_seconds=1e9),
            stop=interrupted_after(2),
        )
    assert store.get(spec) is None
    rounds = []
    resumed = execute(spec, store, place, on_round=rounds.append)
    assert rounds == [2, 3]
    whole = execute(spec, type(store)(tmp_path / "whole"), place)
    assert outcome(resumed) == outcome(whole)


@pytest.mark.parametrize("damage", ["truncate", "garbage", "other run"])
def test_a_damaged_checkpoint_is_set_aside_and_the_run_starts_over(store, place, damage):
    spec = toy_spec()
    with pytest.raises(Interrupted):
        execute(spec, store, place, stop=interrupted_after(1))
    path = store.checkpoint_path(spec)
    if damage == "truncate":
        path.write_bytes(path.read_bytes()[:1000])
    elif damage == "garbage":
        path.write_bytes(b"no checkpoint")
    else:
        checkpoint = torch.load(path, weights_only=True)
        torch.save({**checkpoint, "id": "other"}, path)
    rounds = []
    with pytest.warns(UserWarning, match=f"{path.name} is damaged.*starts over"):
        execute(spec, store, place, on_round=rounds.append)
    assert rounds == [0, 1, 2, 3]
    assert path.with_name(path.name + ".damaged").exists()


def test_checkpoints_hold_tensors_and_builtins_only(store, place):
    spec = toy_spec("fedbn", training=TRAINING.changed({"keep_optimizer": True}))
    with pytest.raises(Interrupted):
        execute(spec, store, place, stop=interrupted_after(1))
    checkpoint = torch.load(store.checkpoint_path(spec), weights_only=True)
    assert checkpoint["progress"]["next_round"] == 1


def test_divergence_is_a_recorded_failure_and_success_clears_it(store, place):
    spec = toy_spec(training=TRAINING.changed({"lr": 1e30}))
    reason = attempt(spec, store, place)
    assert "training loss of client" in reason
    assert read_failure(store.failure_path(spec)) == reason
    assert store.get(spec) is None
    good = toy_spec()
    store.put_failure(good, "earlier", "")
    assert attempt(good, store, place) is None
    assert not store.failure_path(good).exists()


def test_a_number_that_is_none_never_reaches_the_store(store, place):
    result = execute(toy_spec(), store, place)
    records = {**result.records, "loss": [float("nan")] * len(result.records["loss"])}
    store.path(result.spec).unlink()
    with pytest.raises(Diverged, match="loss that is not a finite number"):
        store.put(dataclasses.replace(result, records=records))
    assert not store.path(result.spec).exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: text.replace('"schema": 1', '"schema": 99'),
        lambda text: text.replace('"seed": 0', '"seed": 1'),
        lambda text: text.replace('"records"', '"record"'),
    ],
)
def test_a_damaged_result_is_named_skipped_counted_and_kept(store, place, damage):
    spec, sound = toy_spec(), toy_spec("fedprox")
    for each in (spec, sound):
        execute(each, store, place)
    path = store.path(spec)
    path.write_text(damage(path.read_text()))
    with pytest.raises(Damaged):
        store.get(spec)
    for found in (store.collect(), store.collect([spec, sound])):
        assert list(found.damaged) == [path]
        assert [result.spec for result in found.results] == [sound]
    with pytest.warns(UserWarning, match="is damaged .*; kept, run again"):
        assert attempt(spec, store, place) is None
    assert path.with_name(path.name + ".damaged").exists()
    assert store.get(spec).spec == spec


def test_columns_of_no_records():
    assert as_columns([])["round"] == []
