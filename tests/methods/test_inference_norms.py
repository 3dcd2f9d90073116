"""TBN, fixed alpha, random alpha, IABN, MixNorm: normalisation that only prediction changes."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmark.backbones.base import make_backbone, replace_norm
from benchmark.errors import UserError
from benchmark.execute import execute
from benchmark.federation import Server, rounds
from benchmark.method import compose, make_method
from benchmark.state import copy_of
from methods import mixnorm
from methods.iabn import InstanceAwareNorm2d, soft_shrink
from methods.ops.normalisation import converted
from tests.conftest import TRAINING, toy_spec
from tests.test_federation import equal, run_rounds

NAMES = ("tbn", "fixed_alpha", "random_alpha", "iabn", "mixnorm")
STEADY = tuple(name for name in NAMES if name != "random_alpha")


def a_server(backbone: str = "cnn_tiny_bn") -> Server:
    """A server whose model has statistics worth mixing."""
    torch.manual_seed(0)
    model = make_backbone(backbone, 4, "none")
    for _ in range(3):
        model(images(8) * 2 + 1)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.weight.data.uniform_(0.5, 1.5)
            layer.bias.data.normal_()
    return Server(model.eval(), TRAINING, seed=0, client_count=3)


def images(count: int) -> torch.Tensor:
    return torch.randn(count, 3, 32, 32).to(memory_format=torch.channels_last)


def predictor(name: str, server: Server, **hparams):
    return make_method(name, hparams).predictors(server, [])[name]


@torch.inference_mode()
def logits(predict, x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(7)
    return predict(x)


@pytest.mark.parametrize("name", NAMES)
def test_training_is_fedavgs_and_nothing_more_is_sent(federation, name):
    ours = federation(toy_spec(name))
    assert equal(run_rounds(ours), run_rounds(federation(toy_spec("fedavg"))))
    assert set(ours.server.traffic.counts) == {"up/weights", "down/weights"}
    assert compose(name).info.shares == ()


@pytest.mark.parametrize("name", NAMES)
def test_the_servers_model_is_left_alone(name):
    server = a_server()
    state, kinds = copy_of(server.state), [type(m) for m in server.model.modules()]
    predict = predictor(name, server)
    x = images(6)
    before = logits(server.model, x)
    logits(predict, x)
    with torch.no_grad():
        for parameter in predict.parameters():
            parameter.zero_()
    assert equal(server.state, state)
    assert [type(m) for m in server.model.modules()] == kinds
    assert torch.equal(logits(server.model, x), before)


@pytest.mark.parametrize("name", NAMES)
def test_the_networks_state_keeps_its_keys(name):
    server = a_server()
    predict = predictor(name, server)
    network = predict.model if name == "mixnorm" else predict
    assert equal(network.state_dict(), server.state)


@pytest.mark.parametrize("name", STEADY)
@pytest.mark.parametrize("backbone", ["cnn_tiny_bn", "resnet18_b256"])
def test_one_by_one_in_a_batch_or_shuffled_is_the_same(name, backbone):
    server = a_server(backbone)
    predict, x = predictor(name, server), images(7)
    together = logits(predict, x)
    alone = torch.cat([logits(predict, x[k : k + 1]) for k in range(7)])
    assert torch.allclose(alone, together, atol=1e-5, rtol=1e-5)
    order = torch.tensor([3, 0, 6, 5, 1, 4, 2])
    assert torch.allclose(logits(predict, x[order]), together[order], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_normalisation_of_vectors_keeps_the_global_statistics(name):
    predict = predictor(name, a_server("resnet18_b256"))
    vectors = [m for m in predict.modules() if isinstance(m, nn.BatchNorm1d)]
    assert [type(layer) for layer in vectors] == [nn.BatchNorm1d]
    assert not vectors[0].training
    assert not any(type(m) is nn.BatchNorm2d for m in predict.modules())


def test_each_is_a_row_of_the_same_run(store, place):
    result = execute(toy_spec("iabn+mixnorm+silobn"), store, place)
    assert list(dict.fromkeys(result.records["predictor"])) == ["iabn", "mixnorm", "global"]
    assert result.about["predictor"] == "iabn"
    result = execute(toy_spec("tbn+fedprox"), store, place)
    assert set(result.records["predictor"]) == {"tbn", "global"}


def test_random_alpha_gives_the_same_result_in_every_run(tmp_path, place):
    from benchmark.results import ResultStore

    spec = toy_spec("random_alpha")
    results = [execute(spec, ResultStore(tmp_path / name), place) for name in ("one", "other")]
    assert results[0].records == results[1].records


@pytest.mark.parametrize("expression", ["tbn+bin", "bin+tbn", "mixnorm+dson", "dson+iabn"])
def test_a_trained_mix_is_not_thrown_away(federation, expression):
    ours = federation(toy_spec(expression))
    with pytest.raises(UserError, match="already mix batch and instance statistics"):
        next(rounds(ours.method, ours.server, ours.clients))


def test_tbn_is_instance_normalisation_with_the_trained_parameters():
    server, x = a_server(), images(5)
    other = copy.deepcopy(server.model)

    def instance(old):
        new = nn.InstanceNorm2d(old.num_features, affine=True)
        new.load_state_dict({"weight": old.weight, "bias": old.bias})
        return new

    replace_norm(other, instance)
    assert torch.allclose(logits(predictor("tbn", server), x), logits(other, x), atol=1e-4)


def test_tbn_forgets_each_channels_scale_and_shift():
    predict = predictor("tbn", a_server())
    layer, x = predict.get_submodule("block2.1"), torch.randn(3, 32, 16, 16)
    scale, shift = torch.rand(3, 32, 1, 1) + 0.5, torch.randn(3, 32, 1, 1)
    assert torch.allclose(layer(scale * x + shift), layer(x), atol=1e-3)
    assert not torch.allclose(layer(-x), layer(x), atol=1e-1)


def test_fixed_alpha_runs_from_the_global_model_to_tbn():
    server, x = a_server(), images(5)
    global_logits = logits(server.model, x)
    at = {a: logits(predictor("fixed_alpha", server, alpha_instance=a), x) for a in (0, 0.5, 1)}
    assert torch.allclose(at[0], global_logits, atol=1e-5)
    assert torch.equal(at[1], logits(predictor("tbn", server), x))
    assert not torch.allclose(at[0.5], at[0], atol=1e-2)
    assert not torch.allclose(at[0.5], at[1], atol=1e-2)


@pytest.mark.parametrize(
    ("spread", "expected"),
    [("std", [-0.944272, 0, 0.944272, 1.888544]), ("variance", [-0.942809, 0, 0.942809, 1.885618])],
)
def test_fixed_alpha_by_hand(spread, expected):
    """Map 0, 2, 4, 6 against mean 1 and variance 4: mean 2, spread (√5 + 2) / 2 or √4.5."""
    server = a_server()
    predict = predictor("fixed_alpha", server, alpha_instance=0.5, alpha_spread=spread)
    layer = predict.get_submodule("block1.1")
    layer.eps = 0.0
    for tensor, value in zip(
        (layer.running_mean, layer.running_var, layer.weight.data, layer.bias.data),
        (1.0, 4.0, 1.0, 0.0),
        strict=True,
    ):
        tensor.fill_(value)
    output = layer(torch.tensor([0.0, 2, 4, 6]).view(1, 1, 2, 2).expand(1, 16, 2, 2))
    assert output[0, 3].flatten().tolist() == pytest.approx(expected, abs=1e-6)


def test_random_alpha_draws_per_sample_and_layer(monkeypatch):
    server, x = a_server(), images(5)
    predict = predictor("random_alpha", server)
    assert torch.equal(logits(predict, x), logits(predict, x))
    order = torch.tensor([4, 3, 2, 1, 0])
    assert not torch.allclose(logits(predict, x[order]), logits(predict, x)[order], atol=1e-2)
    draws = []

    def watch(*shape):
        draws.append(shape)
        return torch.full(shape, 0.25)

    monkeypatch.setattr("methods.random_alpha.torch.rand", watch)
    quarter = logits(predict, x)
    assert draws == [(5, 1)] * 4
    monkeypatch.undo()
    fixed = predictor("fixed_alpha", server, alpha_instance=0.25)
    assert torch.allclose(quarter, logits(fixed, x), atol=1e-5)


def iabn_layer(k: float, mean: float, variance: float, eps: float = 0.0) -> InstanceAwareNorm2d:
    layer = converted(InstanceAwareNorm2d, nn.BatchNorm2d(1, eps=eps)).eval()
    layer.k = k
    layer.running_mean.fill_(mean)
    layer.running_var.fill_(variance)
    return layer


def test_iabn_by_hand():
    """Map 1, 2, 3, 4, global mean 0 and variance 1, k = 1: mean 2, variance 1."""
    output = iabn_layer(1.0, 0.0, 1.0)(torch.tensor([[[[1.0, 2], [3, 4]]]]))
    assert output.flatten().tolist() == pytest.approx([-1, 0, 1, 2], abs=1e-6)


def test_soft_shrinking():
    differences, threshold = torch.tensor([-3.0, -1, 0, 0.5, 2]), torch.tensor(1.0)
    assert soft_shrink(differences, threshold).tolist() == [-2, 0, 0, 0, 1]


def test_iabn_runs_from_instance_to_global_statistics():
    x = torch.randn(3, 1, 4, 4) * 3 + 2
    mean, variance = x.mean((2, 3), keepdim=True), x.var((2, 3), keepdim=True)
    own = iabn_layer(0.0, 0.5, 2.0, eps=1e-5)(x)
    assert torch.allclose(own, (x - mean) / (variance + 1e-5).sqrt(), atol=1e-5)
    server, x = a_server(), images(5)
    held = logits(predictor("iabn", server, iabn_k=1e9), x)
    assert torch.allclose(held, logits(server.model, x), atol=1e-5)
    free = logits(predictor("iabn", server, iabn_k=0.0), x)
    assert not torch.allclose(free, held, atol=1e-2)


def test_iabn_keeps_global_statistics_on_a_map_of_one_position():
    layer = iabn_layer(0.0, 1.0, 4.0)
    assert layer(torch.full((2, 1, 1, 1), 5.0)).flatten().tolist() == [2, 2]


def test_mixnorm_runs_from_the_global_model_to_tbn(monkeypatch):
    server, x = a_server(), images(6)
    none = logits(predictor("mixnorm", server, mixnorm_m=0.0), x)
    assert torch.allclose(none, logits(server.model, x), atol=1e-5)
    tbn = logits(predictor("tbn", server), x)
    alone = logits(predictor("mixnorm", server, mixnorm_m=1.0, mixnorm_copies=1), x)
    assert torch.allclose(alone, tbn, atol=1e-5)
    full = predictor("mixnorm", server, mixnorm_m=1.0)
    assert not torch.allclose(logits(full, x), tbn, atol=1e-2)
    monkeypatch.setattr(mixnorm, "random_views", lambda images, draws, smallest: images)
    assert torch.allclose(logits(full, x), tbn, atol=1e-4)


def test_mixnorm_forwards_five_copies_of_every_sample():
    seen = []
    predict = predictor("mixnorm", a_server())
    predict.model.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    x = images(7)
    logits(predict, x)
    assert sum(map(len, seen)) == 35
    assert max(map(len, seen)) <= 7
    assert torch.equal(torch.cat(seen)[::5], x)
    copies = torch.cat(seen).unflatten(0, (7, 5))
    assert all(not torch.equal(copies[k, 0], copies[k, j]) for k in range(7) for j in range(1, 5))


def test_views_are_boxes_of_the_image_and_mirrors():
    x = images(1)
    whole = [1.0, 0.5, 0.3, 0.8]
    same = mixnorm.random_views(x, torch.tensor([[*whole, 0.9]]), 0.7)
    assert torch.allclose(same, x, atol=1e-4)
    mirrored = mixnorm.random_views(x, torch.tensor([[*whole, 0.1]]), 0.7)
    assert torch.allclose(mirrored, x.flip(-1), atol=1e-4)
    ramp = torch.linspace(-1, 1, 33)[:-1].add(1 / 32).expand(1, 3, 32, 32).clone()
    left = mixnorm.random_views(ramp, torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.9]]), 0.25)
    assert left[0, 0, 5, 0] == pytest.approx(-1 + 1 / 32, abs=1e-2)  # half the width, from the left
    assert left[0, 0, 5, -1] == pytest.approx(-1 / 64, abs=1e-2)


def test_views_are_the_images_own_and_the_runs():
    x = images(3)
    draws = mixnorm.own_uniforms(x, 20, seed=0)
    assert torch.equal(mixnorm.own_uniforms(x[[2, 0]], 20, seed=0), draws[[2, 0]])
    assert torch.equal(mixnorm.own_uniforms(x.contiguous(), 20, seed=0), draws)
    assert len({tuple(row.tolist()) for row in draws}) == 3
    assert not torch.equal(mixnorm.own_uniforms(x, 20, seed=1), draws)
    assert draws.min() >= 0
    assert draws.max() < 1


def test_predictions_of_every_rule_are_sane_probabilities(federation):
    """On data like the training data a small share of own statistics does little harm."""
    training = TRAINING.changed({"rounds": 6, "local_steps": 6})
    ours = federation(toy_spec("fixed_alpha+iabn+mixnorm", training=training))
    run_rounds(ours)
    batch = next(ours.clients[0].val.evaluation_batches())
    rows = ours.method.predictors(ours.server, ours.clients)
    losses = {
        name: F.cross_entropy(logits(predict.eval(), batch.images), batch.labels)
        for name, predict in rows.items()
    }
    assert all(loss < 1.0 for loss in losses.values()), losses
