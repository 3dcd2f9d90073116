"""DSON: learnt mixtures of statistics, a branch per client, all branches vote."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmark.backbones.base import make_backbone
from benchmark.costs import bytes_of
from benchmark.errors import UserError
from benchmark.federation import rounds
from benchmark.method import Method, compose, make_method, methods, register
from benchmark.state import copy_of, state_of, write
from methods.dson import Ensemble, OptimisedNorm2d, branch_keys
from methods.ops.batchnorm import frozen_statistics
from methods.ops.normalisation import converted
from tests.conftest import TRAINING, toy_spec
from tests.methods.parts import trained_norm
from tests.test_federation import equal, run_rounds


def layers() -> tuple[OptimisedNorm2d, nn.BatchNorm2d]:
    return converted(OptimisedNorm2d, trained_norm()), trained_norm()


def lean(layer: OptimisedNorm2d, instance: float, batch: float) -> None:
    for logits in (layer.mean_logits, layer.variance_logits):
        logits.data.copy_(torch.tensor([instance, batch]))


def test_leaning_on_the_batch_it_is_batch_normalisation():
    mixed, plain = layers()
    lean(mixed, -50.0, 50.0)
    x = torch.randn(5, 6, 4, 4)
    assert torch.allclose(mixed.eval()(x), plain.eval()(x), atol=1e-5)
    # In training its variance of the batch is made of unbiased ones: 16/15 of the inner part.
    mixed.weight.data.fill_(1)
    inner = x.var((2, 3)).mean(0)
    variance = inner + x.mean((2, 3)).var(0, correction=0)
    centred = x - x.mean((0, 2, 3))[:, None, None]
    expected = centred / (variance + 1e-5).sqrt()[:, None, None] + mixed.bias[:, None, None]
    assert torch.allclose(mixed.train()(x), expected, atol=1e-5)


def test_leaning_on_the_instance_it_is_instance_normalisation_with_the_unbiased_variance():
    mixed, _ = layers()
    lean(mixed, 50.0, -50.0)
    x = torch.randn(5, 6, 4, 4)
    std = (x.var((2, 3), keepdim=True) + 1e-5).sqrt()
    expected = (x - x.mean((2, 3), keepdim=True)) / std
    expected = expected * mixed.weight[:, None, None] + mixed.bias[:, None, None]
    for training in (True, False):
        assert torch.allclose(mixed.train(training)(x), expected, atol=1e-5)


def test_statistics_are_mixed_by_hand():
    """Map 0, 2, 4, 6 (mean 3, unbiased variance 20/3), running mean 1 and variance 4, halves:
    mean 2, variance 16/3; with logits (0, ln 3) of the variance only: 20/12 + 3 = 14/3."""
    layer = converted(OptimisedNorm2d, nn.BatchNorm2d(1, eps=0.0)).eval()
    layer.running_mean.fill_(1)
    layer.running_var.fill_(4)
    x = torch.tensor([[[[0.0, 2], [4, 6]]]])
    expected = [value / (16 / 3) ** 0.5 for value in (-2, 0, 2, 4)]
    assert layer(x).flatten().tolist() == pytest.approx(expected, abs=1e-6)
    layer.variance_logits.data.copy_(torch.tensor([0.0, math.log(3)]))
    expected = [value / (14 / 3) ** 0.5 for value in (-2, 0, 2, 4)]
    assert layer(x).flatten().tolist() == pytest.approx(expected, abs=1e-6)


def test_mixing_statistics_is_not_mixing_outputs():
    mixed, plain = layers()
    x = torch.randn(5, 6, 4, 4) * 3 + 1
    instance = F.instance_norm(x, weight=plain.weight, bias=plain.bias)
    outputs = 0.5 * instance + 0.5 * plain.eval()(x)
    assert not torch.allclose(mixed.eval()(x), outputs, atol=1e-2)


def test_running_statistics_follow_a_tenth_of_the_way_and_can_be_frozen():
    layer = converted(OptimisedNorm2d, nn.BatchNorm2d(1))
    layer.train()(torch.tensor([[[[0.0, 2], [4, 6]]], [[[5.0, 5], [5, 5]]]]))
    assert layer.running_mean.item() == pytest.approx(0.4)  # of the batch: 4
    assert layer.running_var.item() == pytest.approx(0.9 + 0.1 * (10 / 3 + 1))
    assert layer.num_batches_tracked == 1
    before = copy_of(layer.state_dict())
    with frozen_statistics(layer):
        layer(torch.randn(3, 1, 4, 4))
    assert equal(layer.state_dict(), before)
    assert torch.isfinite(layer(torch.randn(3, 1, 1, 1))).all()


def test_a_branch_is_every_normalisation_layer():
    make = lambda: make_backbone("resnet18_b256", 7, "none")  # noqa: E731
    model = make_method("dson", {}).build(make)
    keys = branch_keys(model)
    assert len(keys) == 20 * 7 + 5
    assert {"layer2.0.downsample.1.mean_logits", "bottleneck.1.running_var"} <= keys
    assert not any("conv" in key or key.startswith("fc") for key in keys)


def test_branches_stay_with_their_clients_and_the_rest_is_shared(federation):
    ours = federation(toy_spec("dson"))
    run_rounds(ours)
    branches, keys = ours.server.memory["branches"], branch_keys(ours.server.model)
    assert sorted(branches) == [0, 1, 2]
    for client in ours.clients:
        assert set(client.memory["kept"]) == keys
        assert equal(branches[client.id], client.memory["kept"])
    assert not equal(branches[0], branches[1])
    assert not torch.equal(branches[0]["block1.1.mean_logits"], torch.ones(2))
    ours.method.receive(ours.server, ours.clients[1])
    for key, value in ours.clients[1].state.items():
        own = branches[1] if key in keys else ours.server.state
        assert torch.equal(value, own[key])


def test_what_it_shares_is_what_it_declares(federation):
    ours = federation(toy_spec("dson"))
    run_rounds(ours, 1)
    counts, state = ours.server.traffic.counts, ours.server.state
    branch = bytes_of(ours.server.memory["branches"][0])
    assert set(counts) == {"down/weights", "up/weights", "up/branch"}
    assert compose("dson").info.shares == ("branch",)
    assert counts["up/branch"] == 3 * branch
    assert counts["up/weights"] + counts["up/branch"] == 3 * bytes_of(state)
    first = counts["down/weights"]
    for _ in rounds(ours.method, ours.server, ours.clients, start=1):
        break
    assert first == 3 * bytes_of(state)
    assert ours.server.traffic.counts["down/weights"] - first == 3 * (bytes_of(state) - branch)


def test_the_ensemble_averages_probabilities(federation):
    ours = federation(toy_spec("dson"))
    run_rounds(ours)
    x = next(ours.clients[0].val.evaluation_batches()).images
    rows = ours.method.predictors(ours.server, ours.clients)
    assert list(rows) == ["dson", "global"]
    before = copy_of(ours.server.state)
    with torch.inference_mode():
        together = rows["dson"](x)
        singles = []
        for branch in ours.server.memory["branches"].values():
            write(ours.server.state, branch)
            singles.append(ours.server.model.eval()(x).softmax(1))
        write(ours.server.state, before)
    assert torch.allclose(together.exp(), sum(singles) / 3, atol=1e-6)
    assert torch.allclose(together.exp().sum(1), torch.ones(len(x)))
    assert max((one - other).abs().max() for one in singles for other in singles) > 1e-3
    assert torch.allclose(rows["dson"](x[3:4]), together[3:4], atol=1e-5)
    assert equal(ours.server.state, before)


def test_one_branch_or_identical_branches_are_a_single_network(federation):
    ours = federation(toy_spec("dson"))
    model, x = ours.server.model.eval(), torch.randn(4, 3, 32, 32)
    own = copy_of(state_of(model), sorted(branch_keys(model)))
    with torch.inference_mode():
        expected = model(x).log_softmax(1)
        for count in (1, 3):
            several = Ensemble(model, {k: own for k in range(count)})
            assert torch.allclose(several(x), expected, atol=1e-6)


def test_a_client_that_is_not_sampled_keeps_its_branch_and_its_vote(federation):
    training = TRAINING.changed({"clients_per_round": 1, "rounds": 6})
    ours = federation(toy_spec("dson", training=training))
    seen: dict[int, dict] = {}
    for round in rounds(ours.method, ours.server, ours.clients):
        chosen = round.chosen[0].id
        branches = ours.server.memory["branches"]
        for number, branch in seen.items():
            assert equal(branches[number], branch) == (number != chosen)
        seen = {number: copy_of(branch) for number, branch in branches.items()}
        rows = ours.method.predictors(ours.server, ours.clients)
        assert len(rows["dson"].branches) == len(seen)
    assert len(seen) > 1


def test_a_shared_branch_is_averaged_like_all_weights(federation):
    ours = federation(toy_spec("dson", overrides={"dson": {"dson_branches": "shared"}}))
    run_rounds(ours)
    assert "kept" not in ours.clients[0].memory
    assert set(ours.server.traffic.counts) == {"down/weights", "up/weights"}
    assert list(ours.method.predictors(ours.server, ours.clients)) == ["global"]


def test_leaning_on_the_batch_without_learning_the_mix_the_network_trains_like_fedbn(federation):
    """Up to the unbiased parts of the variances, which differ by 1/(positions − 1)."""
    mixed, fedbn = federation(toy_spec("dson")), federation(toy_spec("fedbn"))
    for model in (mixed.server.model, mixed.clients[0].model):
        for layer in model.modules():
            if isinstance(layer, OptimisedNorm2d):
                lean(layer, -50.0, 50.0)
    one, other = run_rounds(mixed, 1), run_rounds(fedbn, 1)
    shared = other["block1.0.weight"]
    assert torch.allclose(one["block1.0.weight"], shared, atol=2e-3)
    start = federation(toy_spec("fedbn")).server.state["block1.0.weight"]
    assert (shared - start).abs().max() > 1e-2


def test_it_comes_last_where_another_method_changes_uploads():
    class Uploading(Method):
        def upload(self, client):
            return super().upload(client)

    meta = {"label": "x", "paper": "x", "venue": "x", "category": "federated"}
    register("test_uploading", **meta)(Uploading)
    try:
        with pytest.raises(UserError, match="the upload of dson would silence that of test_upl"):
            compose("dson+test_uploading")
        assert compose("test_uploading+dson")
    finally:
        del methods._entries["test_uploading"]
        compose.cache_clear()
