"""Specs: what changes the numbers changes the name; what does not, does not."""

import dataclasses
import json

import pytest

from benchmark.errors import UserError
from benchmark.seeds import seed_for
from benchmark.spec import RunSpec, Training
from tests.conftest import TRAINING, toy_spec


def test_the_id_is_a_function_of_the_content():
    assert toy_spec().id == toy_spec().id
    assert RunSpec.from_json(json.loads(json.dumps(toy_spec().to_json()))).id == toy_spec().id


def test_every_field_changes_the_id():
    spec = toy_spec("fedprox")
    others = {
        field.name: dataclasses.replace(spec, **{field.name: "other"})
        for field in dataclasses.fields(RunSpec)
        if field.type == "str"
    }
    others["hparams"] = dataclasses.replace(spec, hparams={"mu": 0.2})
    others["seed"] = dataclasses.replace(spec, seed=1)
    others["image_size"] = dataclasses.replace(spec, image_size=33)
    for name, value in {"rounds": 4, "lr": 0.1, "keep_optimizer": True, "clip": 1.0}.items():
        others[name] = dataclasses.replace(spec, training=TRAINING.changed({name: value}))
    ids = [spec.id, *(other.id for other in others.values())]
    assert len(set(ids)) == len(ids)


def test_repeats_share_their_config_and_rivals_their_setting():
    spec = toy_spec("fedprox")
    assert dataclasses.replace(spec, seed=5, target="red").config == spec.config
    assert dataclasses.replace(spec, hparams={"mu": 0.2}).config != spec.config
    assert toy_spec("fedavg").setting == spec.setting
    assert toy_spec("fedavg", backbone="cnn_small_bn").setting != spec.setting
    pooled = toy_spec("erm_pool")
    assert pooled.setting != spec.setting
    assert pooled.pooled_setting == spec.pooled_setting


def test_a_spec_of_another_version_is_refused_not_guessed():
    data = toy_spec().to_json()
    with pytest.raises(ValueError, match="fields: extra"):
        RunSpec.from_json({**data, "extra": 1})
    with pytest.raises(ValueError, match="fields: lr"):
        RunSpec.from_json(
            {**data, "training": {k: v for k, v in data["training"].items() if k != "lr"}}
        )


def test_local_work_is_steps_or_epochs_not_both():
    with pytest.raises(UserError, match="exactly one"):
        Training(local_steps=1, local_epochs=1)
    with pytest.raises(UserError, match="exactly one"):
        Training()


def test_schedules():
    step = TRAINING.changed({"schedule": "step", "lr": 1.0, "step_rounds": 2, "rounds": 6})
    assert [step.lr_at(r) for r in range(5)] == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    cosine = TRAINING.changed({"schedule": "cosine", "lr": 1.0, "rounds": 4})
    assert [cosine.lr_at(r) for r in (0, 2)] == pytest.approx([1.0, 0.5])
    assert cosine.lr_at(3) == pytest.approx(0.146447, abs=1e-6)
    assert TRAINING.lr_at(2) == 0.05


def test_the_last_round_is_always_evaluated():
    training = TRAINING.changed({"rounds": 5, "evaluate_every": 2})
    assert [r for r in range(5) if training.evaluates(r)] == [1, 3, 4]


def test_seeds_are_pure_functions_with_known_values():
    assert seed_for(0, "batches", 1, 2) == seed_for(0, "batches", 1, 2)
    places = {seed_for(s, p, r, c) for s in (0, 1) for p in "ab" for r in (0, 1) for c in (0, 1)}
    assert len(places) == 16
    assert all(0 <= seed < 2**63 for seed in places)
