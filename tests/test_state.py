"""State arithmetic: the oracles of FedAvg and the classification of batch-normalisation keys."""

import torch
from torch import nn

from benchmark.state import batchnorm_keys, copy_of, state_of, weighted_mean, write


def test_weighted_mean_of_one_and_three_is_two_and_a_half():
    states = [{"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])}]
    assert weighted_mean(states, [0.25, 0.75])["w"].item() == 2.5


def test_identical_states_are_their_own_mean():
    state = {"w": torch.randn(100, generator=torch.Generator().manual_seed(0))}
    mean = weighted_mean([state] * 3, [1 / 3] * 3)
    assert torch.allclose(mean["w"], state["w"], atol=1e-7, rtol=2.4e-7)  # two roundings


def test_integer_counters_stay_integers_and_are_the_first_clients():
    states = [{"n": torch.tensor(k), "w": torch.tensor([1.0])} for k in (5, 8)]
    mean = weighted_mean(states, [0.5, 0.5])
    assert mean["n"].dtype == torch.int64
    assert mean["n"].item() == 5


def test_the_mean_leaves_its_inputs_alone():
    states = [
        {"w": torch.ones(2), "n": torch.tensor(1)},
        {"w": torch.zeros(2), "n": torch.tensor(2)},
    ]
    mean = weighted_mean(states, [0.5, 0.5])
    mean["n"] += 7
    assert states[0]["w"].tolist() == [1, 1]
    assert states[0]["n"].item() == 1


def test_batchnorm_keys_are_found_by_type_not_by_name():
    model = nn.Sequential()
    model.add_module("bn_in_name_only", nn.Linear(2, 2))
    model.add_module("shortcut", nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)))
    model.add_module("flat", nn.BatchNorm1d(2, affine=False))
    keys = batchnorm_keys(model)
    assert keys.affine == {"shortcut.1.weight", "shortcut.1.bias"}
    assert keys.statistics == {
        "shortcut.1.running_mean",
        "shortcut.1.running_var",
        "flat.running_mean",
        "flat.running_var",
    }
    assert keys.counters == {"shortcut.1.num_batches_tracked", "flat.num_batches_tracked"}
    assert not any("bn_in_name_only" in key for key in keys.all)


def test_writing_a_state_changes_the_model_and_a_copy_does_not_follow():
    model = nn.BatchNorm2d(2)
    before = copy_of(state_of(model))
    write(state_of(model), {"weight": torch.full((2,), 7.0)})
    assert model.weight.tolist() == [7, 7]
    assert before["weight"].tolist() == [1, 1]
    write(state_of(model), {})
    assert model.weight.tolist() == [7, 7]
