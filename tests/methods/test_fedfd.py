"""FedFD: mixed statistics in a second pass, its losses, its snapshot of the global statistics."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmark.backbones.base import make_backbone, replace_norm
from benchmark.costs import bytes_of
from benchmark.errors import UserError
from benchmark.federation import rounds, visit
from benchmark.method import compose, make_method
from benchmark.state import batchnorm_keys, copy_of
from methods.bin import BatchInstanceNorm2d
from methods.fedfd import SecondPassStyles, total_loss
from methods.ops.centred import centred_moments
from methods.ops.global_norm import GlobalNorm2d, mixing, take_snapshot, with_global
from tests.conftest import TRAINING, toy_spec
from tests.test_federation import equal, run_rounds


def a_layer(channels: int = 6, eps: float = 1e-5) -> GlobalNorm2d:
    """A layer with random parameters and running statistics, and another snapshot."""
    torch.manual_seed(0)
    layer = with_global(nn.BatchNorm2d(channels, eps=eps)).train()
    for tensor in (layer.weight.data, layer.bias.data, layer.running_mean):
        tensor.normal_()
    layer.running_var.uniform_(0.5, 2)
    state = {"0.running_mean": torch.randn(channels), "0.running_var": torch.rand(channels) + 0.5}
    take_snapshot(nn.Sequential(layer), state)
    return layer


def with_u(layer: GlobalNorm2d, x: torch.Tensor, u, **settings) -> torch.Tensor:
    with mixing(layer, lambda _: lambda local, reference: u, **settings):
        return layer(x)


def fedfd(federation, expression="fedfd", changes=None, **hparams):
    overrides = {expression.split("+")[0]: hparams}
    return federation(toy_spec(expression, overrides=overrides, **(changes or {})))


def received(ours):
    """A client in training that has received the global model, and a batch of its own."""
    client = ours.clients[0]
    ours.method.receive(ours.server, client)
    client.model.train()
    return client, next(ours.method.batches(client))


def moved_statistics(model: nn.Module) -> None:
    """Running statistics that are not those of a fresh network."""
    torch.manual_seed(1)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)


@torch.no_grad()
def diverse_features(ours, client, images: torch.Tensor) -> torch.Tensor:
    with ours.method._diversified(client.model):
        return client.model.features(images)


def test_the_ends_are_instance_and_global_batch_normalisation():
    layer, x = a_layer(), torch.randn(5, 6, 4, 4) * 2 + 1
    own = F.instance_norm(x, weight=layer.weight, bias=layer.bias)
    assert torch.allclose(with_u(layer, x, 1.0), own, atol=1e-6)
    mean, variance = layer.snapshot.mean, layer.snapshot.std.square() - layer.eps
    whole = F.batch_norm(x, mean, variance, layer.weight, layer.bias, training=False)
    assert torch.allclose(with_u(layer, x, 0.0), whole, atol=1e-6)
    channels = torch.tensor([0.0, 1, 0, 1, 1, 0])
    mixed = with_u(layer, x, channels)
    for k, one in enumerate(channels):
        assert torch.allclose(mixed[:, k], (own if one else whole)[:, k], atol=1e-6)


def test_by_hand():
    """Map 0, 2, 4, 6 (mean 3, variance 5) against mean 1 and variance 4 with u = ½: mean 2 and
    spread (√5 + 2) / 2 = 2.118034."""
    layer = with_global(nn.BatchNorm2d(1, eps=0.0))
    state = {"0.running_mean": torch.tensor([1.0]), "0.running_var": torch.tensor([4.0])}
    take_snapshot(nn.Sequential(layer), state)
    output = with_u(layer, torch.tensor([[[[0.0, 2], [4, 6]]]]), 0.5)
    expected = [-0.944272, 0, 0.944272, 1.888544]
    assert output.flatten().tolist() == pytest.approx(expected, abs=1e-6)


def test_where_a_sample_has_the_global_statistics_u_does_not_matter():
    layer, x = a_layer(), torch.randn(5, 6, 4, 4)
    mean, std = layer.snapshot.mean[:, None, None], layer.snapshot.std[:, None, None]
    x = (x - x.mean((2, 3), keepdim=True)) / x.std((2, 3), correction=0, keepdim=True)
    x = x * (std.square() - layer.eps).sqrt() + mean
    outputs = [with_u(layer, x, u) for u in (0.0, 0.3, 1.0, torch.rand(6))]
    assert all(torch.allclose(output, outputs[0], atol=1e-5) for output in outputs)


def test_u_of_one_and_of_zero_through_the_whole_network(federation):
    for u in (1.0, 0.0):
        ours = fedfd(federation, u_low=u, u_high=u)
        moved_statistics(ours.server.model)
        client, batch = received(ours)
        other = copy.deepcopy(ours.server.model).eval()
        if u:

            def instance(old):
                new = nn.InstanceNorm2d(old.num_features, affine=True)
                new.load_state_dict({"weight": old.weight, "bias": old.bias})
                return new

            replace_norm(other, instance)
        with torch.no_grad():
            expected = other.features(batch.images)
        features = diverse_features(ours, client, batch.images)
        assert torch.allclose(features, expected, atol=1e-4, rtol=1e-4)


def test_the_total_by_hand():
    """CE = 2, CACL = 3, CAFL = 0.5 with λ1 = 0.1, λ2 = 4."""
    method = make_method("fedfd", {})
    parts = [torch.tensor(value) for value in (2.0, 3.0, 0.5)]
    assert total_loss(*parts, method.lambda1, method.lambda2).item() == pytest.approx(4.1, abs=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_loss_is_the_equation_of_two_passes(federation, reduction):
    ours = fedfd(federation, u_low=0.3, u_high=0.3, cafl_reduction=reduction)
    moved_statistics(ours.server.model)
    client, batch = received(ours)
    model = client.model
    loss = ours.method.loss(client, batch)
    diverse, features = diverse_features(ours, client, batch.images), model.features(batch.images)
    squares = (features - diverse).square()
    distance = squares.sum() / (8 if reduction == "sum" else 8 * 256)
    expected = (
        0.9 * F.cross_entropy(model.classifier(features), batch.labels)
        + 0.1 * F.cross_entropy(model.classifier(diverse), batch.labels)
        + 4.0 * distance
    )
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize("variant", ["fedfd", "mixstyle"])
def test_running_statistics_are_those_of_the_ordinary_pass(federation, variant):
    ours = fedfd(federation, fedfd_pass=variant)
    client, batch = received(ours)
    twin = copy.deepcopy(client.model)
    ours.method.loss(client, batch)
    twin(batch.images)
    statistics = batchnorm_keys(twin).all
    for key in statistics:
        assert torch.equal(client.state[key], twin.state_dict()[key])
    assert client.state["block1.1.num_batches_tracked"] == 1


@pytest.mark.parametrize("base", ["fedavg", "silobn", "fedbn"])
def test_without_its_losses_it_is_the_base_bit_for_bit(federation, base):
    without = fedfd(federation, f"fedfd+{base}", lambda1=0.0, lambda2=0.0)
    state = run_rounds(federation(toy_spec(base)))
    assert equal(run_rounds(without), state)
    assert set(without.server.traffic.counts) == {"up/weights", "down/weights"}
    assert not equal(run_rounds(fedfd(federation, f"fedfd+{base}")), state)


def test_clients_that_keep_their_statistics_are_sent_the_global_ones(federation):
    for base, extra in (("fedavg", False), ("silobn", True), ("fedbn", True)):
        ours = fedfd(federation, f"fedfd+{base}")
        state = ours.server.state
        statistics = {key: state[key] for key in batchnorm_keys(ours.server.model).statistics}
        loop = rounds(ours.method, ours.server, ours.clients)
        next(loop)
        assert set(ours.server.traffic.counts) == {"up/weights", "down/weights"}  # all is new
        next(loop)
        sent = ours.server.traffic.counts["down/statistics"]
        assert sent == (3 * bytes_of(statistics) if extra else 0)
        assert ours.server.traffic.counts["up/weights"] == 6 * bytes_of(state)
    assert compose("fedfd").info.shares == ()


def test_the_snapshot_is_global_frozen_and_no_part_of_the_state(federation):
    ours = fedfd(federation, "fedfd+silobn")
    assert ours.server.state.keys() == federation(toy_spec("silobn")).server.state.keys()
    run_rounds(ours, 1)
    client, _ = received(ours)
    layer = client.model.block2[1]
    sent = copy_of(ours.server.state)
    assert torch.equal(layer.snapshot.mean, sent["block2.1.running_mean"])
    assert torch.allclose(layer.snapshot.std.square(), sent["block2.1.running_var"] + 1e-5)
    for key in batchnorm_keys(client.model).statistics:
        assert torch.equal(client.state[key], client.memory["kept"][key])
    client.lr = 0.05
    client.optimizer = ours.method.optimizer(client)
    for batch in ours.method.batches(client):
        ours.method.step(client, batch)
    assert torch.equal(layer.snapshot.mean, sent["block2.1.running_mean"])
    assert not torch.equal(client.state["block2.1.running_mean"], layer.snapshot.mean)
    ours.method.upload(client)
    assert layer.snapshot is None
    assert equal(ours.server.state, sent)


def test_u_is_drawn_for_every_layer_and_step_and_channel(federation, monkeypatch):
    shapes, rand = [], torch.rand

    def watch(*shape, **settings):
        shapes.append(tuple(shape[0]))
        return rand(*shape, **settings)

    monkeypatch.setattr("methods.fedfd.torch.rand", watch)
    for per_sample, expected in (
        (False, [(16,), (32,), (32,), (64,)]),
        (True, [(8, 16), (8, 32), (8, 32), (8, 64)]),
    ):
        ours = fedfd(federation, per_sample=per_sample)
        client, batch = received(ours)
        for _ in range(2):
            shapes.clear()
            ours.method.loss(client, batch)
            assert shapes == expected
    ours = fedfd(federation, u_low=0.5, u_high=0.5)
    client, batch = received(ours)
    shapes.clear()
    ours.method.loss(client, batch)
    assert shapes == []


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.0, 0.5), (0.5, 1.0), (-0.1, 1.1)])
def test_u_fills_its_range(low, high):
    method, layer = make_method("fedfd", {"u_low": low, "u_high": high}), a_layer(5000)
    u = method._draw(layer.snapshot, layer.snapshot)
    assert u.shape == (5000,)
    assert low <= u.min() < low + 0.01 * (high - low)
    assert high - 0.01 * (high - low) < u.max() <= high
    assert u.mean().item() == pytest.approx((low + high) / 2, abs=0.02)


def test_beyond_the_ends_the_spread_stays_positive():
    layer = a_layer()
    flat = torch.full((2, 6, 4, 4), 3.0)
    flat[..., 0, 0] += 1e-3
    output = with_u(layer, flat, 1.1)
    assert torch.isfinite(output).all()
    mean = 1.1 * flat.mean((2, 3)) - 0.1 * layer.snapshot.mean
    expected = (flat - mean[..., None, None]) / layer.eps**0.5
    expected = expected * layer.weight[:, None, None] + layer.bias[:, None, None]
    assert torch.allclose(output, expected, rtol=1e-3)


def test_statistics_of_the_batch_are_batch_normalisations():
    layer, x = a_layer(), torch.randn(5, 6, 4, 4) * 2 + 1
    whole = F.batch_norm(x, None, None, layer.weight, layer.bias, training=True)
    assert torch.allclose(with_u(layer, x, 1.0, of_batch=True), whole, atol=1e-5)
    assert not torch.allclose(with_u(layer, x, 1.0), whole, atol=1e-1)


def test_gradients_flow_through_local_statistics_unless_detached():
    layer, x = a_layer().double(), torch.randn(2, 6, 4, 4, dtype=torch.double)
    layer.snapshot = type(layer.snapshot)(*(part.double() for part in layer.snapshot))
    x.requires_grad_()
    direction = torch.randn_like(x)
    for constant in (False, True):
        output = with_u(layer, x, 0.4, constant=constant)
        (found,) = torch.autograd.grad((output * direction).sum(), x)
        mean, std = x.mean((2, 3)), (x.var((2, 3), correction=0) + layer.eps).sqrt()
        if constant:
            mean, std = mean.detach(), std.detach()
        mean = 0.4 * mean + 0.6 * layer.snapshot.mean
        std = 0.4 * std + 0.6 * layer.snapshot.std
        y = (x - mean[..., None, None]) / std[..., None, None] * layer.weight[:, None, None]
        (expected,) = torch.autograd.grad((y * direction).sum(), x)
        assert torch.allclose(found, expected, atol=1e-10)


def test_centring_can_be_differentiated_twice():
    x = torch.randn(2, 3, 3, 2, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(centred_moments, x)
    assert torch.autograd.gradgradcheck(centred_moments, x)
    centred, mean, variance = centred_moments(x)
    assert torch.allclose(centred + mean[..., None, None], x)
    assert torch.allclose(variance, x.var((2, 3), correction=0))


def test_the_distance_can_be_made_to_teach_the_second_pass_only(federation):
    gradients = []
    for detach in (False, True):
        ours = fedfd(federation, lambda1=0.0, detach_clean=detach)
        moved_statistics(ours.server.model)
        client, batch = received(ours)
        torch.manual_seed(0)
        loss = ours.method.loss(client, batch)
        gradients.append(torch.autograd.grad(loss, client.model.block1[0].weight)[0])
    assert not torch.allclose(*gradients, rtol=1e-2)


def test_training_brings_both_passes_closer(federation):
    """Than training without the distance, from the same start, on the same images."""
    distances = []
    training = TRAINING.changed({"local_steps": 12, "rounds": 1})
    for strength in (0.0, 4.0):
        ours = fedfd(federation, changes={"training": training}, lambda2=strength)
        client = ours.clients[0]
        visit(ours.method, ours.server, client)
        take_snapshot(client.model, ours.server.state)
        images = next(client.val.evaluation_batches()).images
        with torch.no_grad():
            plain = client.model.features(images)
        torch.manual_seed(0)
        diverse = diverse_features(ours, client, images)
        distances.append(((plain - diverse).square().sum() / plain.square().sum()).item())
    assert distances[1] < 0.8 * distances[0]


def test_two_passes_a_step_and_none_more(federation):
    ours = fedfd(federation)
    client, batch = received(ours)
    calls = []
    client.model.block1[0].register_forward_hook(lambda *_: calls.append(1))
    ours.method.loss(client, batch)
    assert len(calls) == 2


def test_mixstyle_in_its_place_acts_in_the_second_pass_only(federation):
    ours = fedfd(federation, "fedfd+silobn", fedfd_pass="mixstyle", fedfd_mixstyle_p=1.0)
    assert not any(isinstance(m, GlobalNorm2d) for m in ours.server.model.modules())
    assert sum(isinstance(m, SecondPassStyles) for m in ours.server.model.modules()) == 3
    client, batch = received(ours)
    with torch.no_grad():
        plain = client.model.features(batch.images)
        assert torch.equal(client.model.features(batch.images), plain)
    assert not torch.allclose(diverse_features(ours, client, batch.images), plain, atol=1e-2)
    run_rounds(ours)
    assert set(ours.server.traffic.counts) == {"up/weights", "down/weights"}
    never = fedfd(federation, fedfd_pass="mixstyle", fedfd_mixstyle_p=0.0)
    client, batch = received(never)
    loss = never.method.loss(client, batch)
    expected = F.cross_entropy(client.model(batch.images), batch.labels)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_normalisation_of_vectors_uses_the_batch_in_the_second_pass():
    method = make_method("fedfd", {"u_low": 0.5, "u_high": 0.5})
    model = method.build(lambda: make_backbone("resnet18_b256", 7, "none")).train()
    take_snapshot(model, model.state_dict())
    inputs, outputs = [], []
    vectors = model.bottleneck[1]
    vectors.register_forward_hook(lambda _, x, y: inputs.append(x[0]) or outputs.append(y.clone()))
    before = copy_of(model.state_dict())
    with torch.no_grad(), method._diversified(model):
        model.features(torch.randn(4, 3, 32, 32))
    expected = F.batch_norm(inputs[0], None, None, vectors.weight, vectors.bias, training=True)
    assert torch.allclose(outputs[0], expected, atol=1e-5)
    assert equal(model.state_dict(), before)
    assert len([m for m in model.modules() if isinstance(m, GlobalNorm2d)]) == 20


def test_layers_that_learn_a_mix_use_it_in_the_ordinary_pass(federation):
    ours = fedfd(federation, "fedfd+bin+silobn", u_low=0.5, u_high=0.5)
    client, _ = received(ours)
    layer, x = client.model.block1[1], torch.randn(4, 16, 8, 8)
    assert isinstance(layer, BatchInstanceNorm2d)
    layer.gate.data.fill_(0.25)
    plain = layer(x)
    batch_side = F.batch_norm(x, None, None, layer.weight, layer.bias, training=True)
    own = F.instance_norm(x, weight=layer.weight, bias=layer.bias)
    assert torch.allclose(plain, 0.25 * batch_side + 0.75 * own, atol=1e-5)
    assert torch.allclose(with_u(layer, x, 1.0), own, atol=1e-5)
    run_rounds(ours)
    gates = torch.cat([m.gate for m in ours.server.model.modules() if hasattr(m, "gate")])
    assert not torch.equal(gates, torch.ones_like(gates))
    rows = federation(toy_spec("fedfd+dson"))
    run_rounds(rows)
    assert list(rows.method.predictors(rows.server, rows.clients)) == ["dson", "global"]


@pytest.mark.parametrize("expression", ["bin+fedfd", "ibn+fedfd", "gperxan+fedfd"])
def test_methods_that_would_take_its_layers_away_come_after_it(federation, expression):
    ours = federation(toy_spec(expression))
    with pytest.raises(UserError, match="write it to the right"):
        next(rounds(ours.method, ours.server, ours.clients))
    assert federation(toy_spec("+".join(reversed(expression.split("+")))))


def test_a_range_that_is_none(federation):
    with pytest.raises(UserError, match=r"u_low=0.9 must not exceed u_high=0.1"):
        fedfd(federation, u_low=0.9, u_high=0.1)


def test_it_composes_with_methods_that_make_their_own_passes(federation):
    for expression in ("fedfd+rsc", "fedfd+randconv", "elcfs+fedfd", "fedsam+fedfd", "ga+fedfd"):
        state = run_rounds(federation(toy_spec(expression)), 1)
        assert all(torch.isfinite(value).all() for value in state.values())
