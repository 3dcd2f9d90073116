"""gPerXAN: the sum of two normalisations, what is personal in it, and where it goes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmark.backbones.base import make_backbone
from benchmark.costs import bytes_of, parameter_count
from benchmark.errors import UserError
from benchmark.federation import rounds, visit
from benchmark.method import compose, make_method
from benchmark.state import batchnorm_keys, copy_of
from methods.gperxan import XAN2d
from tests.conftest import toy_spec
from tests.methods.parts import trained_norm
from tests.test_federation import equal, run_rounds

OFFICE_HOME, CAMELYON = "stem/layer1/layer2", "denseblock1/transition1"


def layers() -> tuple[XAN2d, nn.BatchNorm2d]:
    """A sum with an instance side of its own, and the batch normalisation it was made from."""
    layer, plain = XAN2d(trained_norm()), trained_norm()
    layer.instance_weight.data.normal_()
    layer.instance_bias.data.normal_()
    return layer, plain


def lean(layer: XAN2d, instance: float, batch: float) -> None:
    layer.instance_logit.data.fill_(instance)
    layer.batch_logit.data.fill_(batch)


def gperxan(federation, expression="gperxan", **hparams):
    return federation(toy_spec(expression, overrides={"gperxan": hparams}))


@pytest.mark.parametrize("training", [True, False])
def test_the_ends_are_batch_and_affine_instance_normalisation(training):
    layer, plain = layers()
    layer.train(training), plain.train(training)
    x = torch.randn(5, 6, 4, 4) * 2 + 1
    lean(layer, -50.0, 50.0)
    assert torch.equal(layer(x), plain(x))
    assert torch.equal(layer.batch.running_mean, plain.running_mean)
    assert torch.equal(layer.batch.running_var, plain.running_var)
    lean(layer, 50.0, -50.0)
    own = F.instance_norm(x, weight=layer.instance_weight, bias=layer.instance_bias)
    assert torch.allclose(layer(x), own, atol=1e-6)


@pytest.mark.parametrize(("logits", "share"), [((1.0, 1.0), 0.5), ((0.0, 1.0986123), 0.75)])
def test_between_them_it_mixes_outputs_by_the_softmax(logits, share):
    layer, plain = layers()
    lean(layer, *logits)
    x = torch.randn(5, 6, 4, 4) * 2 + 1
    own = F.instance_norm(x, weight=layer.instance_weight, bias=layer.instance_bias)
    expected = (1 - share) * own + share * plain.eval()(x)
    assert torch.allclose(layer.eval()(x), expected, atol=1e-6)


def test_a_new_layer_starts_at_halves_with_a_fresh_or_copied_instance_side():
    old = layers()[1]
    fresh, copied = XAN2d(old), XAN2d(old, copy_affine=True)
    for layer in (fresh, copied):
        assert layer.instance_logit.item() == layer.batch_logit.item() == 1
        assert layer.batch.weight is old.weight
    assert torch.equal(fresh.instance_weight, torch.ones(6))
    assert torch.equal(fresh.instance_bias, torch.zeros(6))
    assert torch.equal(copied.instance_weight, old.weight)
    assert copied.instance_weight is not old.weight


def test_all_four_kinds_of_parameters_learn():
    layer, _ = layers()
    layer(torch.randn(4, 6, 4, 4)).square().sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad.abs().sum() > 0
    assert layer.instance_logit.grad.item() == pytest.approx(-layer.batch_logit.grad.item())


def test_maps_of_one_position_pass():
    layer, _ = layers()
    assert torch.isfinite(layer(torch.randn(4, 6, 1, 1))).all()


@pytest.mark.parametrize(
    ("backbone", "stages", "count", "extra"),
    [
        ("resnet50", "all", 53, 53_226),
        ("resnet50", OFFICE_HOME, 24, 10_160),
        ("resnet50", "layer1/layer2", 23, 10_030),
        ("densenet121", CAMELYON, 13, 3_802),
    ],
)
def test_the_papers_layers_and_their_extra_parameters(backbone, stages, count, extra):
    with torch.device("meta"):
        plain = make_backbone(backbone, 7, "none")
        method = make_method("gperxan", {"xan_stages": stages})
        model = method.build(lambda: make_backbone(backbone, 7, "none"))
    assert sum(isinstance(m, XAN2d) for m in model.modules()) == count
    assert parameter_count(model) - parameter_count(plain) == extra


def test_the_papers_layers_by_name():
    with torch.device("meta"):
        dense = make_method("gperxan", {"xan_stages": CAMELYON}).build(
            lambda: make_backbone("densenet121", 2, "none")
        )
        residual = make_method("gperxan", {"xan_stages": OFFICE_HOME}).build(
            lambda: make_backbone("resnet50", 65, "none")
        )
    assert isinstance(dense.transition1.norm, XAN2d)
    assert isinstance(dense.denseblock1.denselayer6.norm2, XAN2d)
    assert type(dense.stem.norm0) is nn.BatchNorm2d
    assert type(dense.denseblock2.denselayer1.norm1) is nn.BatchNorm2d
    assert isinstance(residual.bn1, XAN2d)
    assert isinstance(residual.layer2[0].downsample[1], XAN2d)
    assert type(residual.layer3[0].bn1) is nn.BatchNorm2d


SIDES = {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"}


@pytest.mark.parametrize("logit", [True, False])
@pytest.mark.parametrize("plain", [True, False])
def test_what_is_personal(federation, logit, plain):
    ours = gperxan(
        federation, xan_stages="block1/block2", xan_personal_logit=logit, xan_keep_plain=plain
    )
    expected = {f"block{k}.1.batch.{key}" for k in (1, 2) for key in SIDES}
    if logit:
        expected |= {"block1.1.batch_logit", "block2.1.batch_logit"}
    if plain:
        expected |= {f"block{k}.1.{key}" for k in (3, 4) for key in SIDES}
    assert ours.method.keeps(ours.server.model) == expected


def test_after_receiving_batch_sides_are_own_and_the_rest_is_the_broadcast(federation):
    ours = gperxan(federation)
    run_rounds(ours, 1)
    client = ours.clients[1]
    own = copy_of(client.memory["kept"])
    assert any(not torch.equal(own[key], ours.server.state[key]) for key in own)
    client.round = ours.server.round = 1
    before = ours.server.traffic.counts["down/weights"]
    ours.method.receive(ours.server, client)
    for key, value in client.state.items():
        assert torch.equal(value, own[key] if key in own else ours.server.state[key])
    assert set(own) == batchnorm_keys(client.model).all | {
        f"block{k}.1.batch_logit" for k in (1, 2, 3, 4)
    }
    assert "block1.1.instance_weight" not in own
    sent = ours.server.traffic.counts["down/weights"] - before
    assert sent == bytes_of(ours.server.state) - bytes_of(own)


def test_the_global_model_averages_batch_sides_too(federation):
    ours = gperxan(federation)
    updates = [visit(ours.method, ours.server, client)[0] for client in ours.clients]
    for update in updates:
        update.weight = 1 / 3
    ours.method.aggregate(ours.server, updates)
    for key in ("block1.1.batch.weight", "block1.1.batch.running_var", "block1.1.batch_logit"):
        mean = sum(update.state[key] for update in updates) / 3
        assert torch.allclose(ours.server.state[key], mean, atol=1e-6)
        assert not torch.equal(updates[0].state[key], updates[1].state[key])
    assert ours.server.traffic.counts["up/weights"] == 3 * bytes_of(ours.server.state)
    assert not ours.server.state["block1.1.batch.num_batches_tracked"].is_floating_point()


def test_it_has_the_guidance_and_without_it_is_perxan(federation):
    ours, without = gperxan(federation), gperxan(federation, guide_lambda=0.0)
    losses = []
    for side in (ours, without):
        client = side.clients[0]
        side.method.receive(side.server, client)
        client.model.train()
        losses.append(side.method.loss(client, next(side.method.batches(client))).item())
    assert losses[0] == pytest.approx(1.5 * losses[1], rel=1e-6)
    assert equal(run_rounds(gperxan(federation, "gperxan+guide")), run_rounds(ours))
    assert not equal(run_rounds(without), ours.server.state)


def test_leaning_on_the_batch_without_guidance_it_is_fedbn(federation):
    ours, fedbn = gperxan(federation, guide_lambda=0.0), federation(toy_spec("fedbn"))
    for model in (ours.server.model, ours.clients[0].model):
        for layer in model.modules():
            if isinstance(layer, XAN2d):
                lean(layer, -50.0, 50.0)
    one, other = run_rounds(ours), run_rounds(fedbn)
    for key, value in other.items():
        path, _, name = key.rpartition(".")
        assert torch.equal(one.get(f"{path}.batch.{name}", one.get(key)), value)


def test_it_trains_instance_sides_and_weights_and_shares_what_it_declares(federation):
    ours = gperxan(federation)
    state = run_rounds(ours)
    assert not torch.equal(state["block1.1.instance_weight"], torch.ones(16))
    assert state["block1.1.instance_logit"].item() != 1
    assert set(ours.server.traffic.counts) == {"up/weights", "down/weights"}
    assert compose("gperxan").info.shares == ()
    assert list(ours.method.predictors(ours.server, ours.clients)) == ["global"]


def test_a_prediction_depends_on_no_other_sample(federation):
    ours = gperxan(federation)
    run_rounds(ours)
    model, x = ours.server.model.eval(), torch.randn(8, 3, 32, 32)
    with torch.inference_mode():
        alone = torch.cat([model(x[k : k + 1]) for k in range(8)])
        assert torch.allclose(model(x), alone, atol=1e-5)


def test_errors_are_one_clear_line(federation):
    with pytest.raises(UserError, match="unknown stage of DigitCNN 'block9'"):
        gperxan(federation, xan_stages="block1/block9")
    for expression in ("tbn+gperxan", "gperxan+iabn"):
        ours = federation(toy_spec(expression))
        with pytest.raises(UserError, match="leave out one of the two methods"):
            next(rounds(ours.method, ours.server, ours.clients))
    with pytest.raises(UserError, match="leave out one of the two methods"):
        federation(toy_spec("gperxan+bin"))
