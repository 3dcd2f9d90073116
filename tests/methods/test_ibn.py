"""IBN-a: where it goes and what it does there."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmark.backbones.base import make_backbone
from benchmark.costs import parameter_count
from benchmark.errors import UserError
from benchmark.method import compose, make_method
from methods.ibn import IBN2d, early_norms
from tests.conftest import toy_spec
from tests.methods.parts import trained_norm
from tests.test_federation import equal, run_rounds


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("first", "instance", "batch"),
    [(True, slice(0, 3), slice(3, 7)), (False, slice(4, 7), slice(0, 4))],
)
def test_some_channels_are_instance_the_others_batch_normalised(training, first, instance, batch):
    old = trained_norm(7)
    new = IBN2d(old, 3, instance_first=first).train(training)
    old.train(training)
    x = torch.randn(4, 7, 5, 5)
    output, plain = new(x), old(x)
    own = F.instance_norm(x, weight=old.weight, bias=old.bias)
    assert torch.allclose(output[:, instance], own[:, instance], atol=1e-5)
    assert torch.allclose(output[:, batch], plain[:, batch], atol=1e-5)
    assert torch.allclose(new.batch.running_mean, old.running_mean[batch])
    assert parameter_count(new) == parameter_count(old) == 14


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_the_layout_of_the_maps_stays_and_gradients_are_those_of_the_two_layers(layout):
    layer = IBN2d(trained_norm(6), 3).double()
    x = torch.randn(4, 6, 3, 3, dtype=torch.double).contiguous(memory_format=layout)
    x.requires_grad_()
    output = layer(x)
    assert output.is_contiguous(memory_format=layout)
    parts = layer.instance(x[:, :3]), layer.batch(x[:, 3:])
    direction = torch.randn_like(output)
    wanted = [(part * d).sum() for part, d in zip(parts, direction.split(3, 1), strict=True)]
    (found,) = torch.autograd.grad((output * direction).sum(), x)
    (expected,) = torch.autograd.grad(sum(wanted), x)
    assert torch.allclose(found, expected, atol=1e-10)
    assert torch.autograd.gradgradcheck(layer, x)


@pytest.mark.parametrize(
    ("backbone", "count", "examples"),
    [
        ("resnet18", 6, ("layer1.0.bn1", "layer3.1.bn1")),
        ("resnet50", 13, ("layer2.3.bn1", "layer3.5.bn1")),
        ("densenet121", 14, ("denseblock1.denselayer1.norm1", "denseblock3.denselayer22.norm1")),
        ("alexnet_bn", 3, ("conv1.norm", "conv3.norm")),
        ("cnn_tiny_bn", 3, ("block1.1", "block3.1")),
    ],
)
def test_where_it_goes(backbone, count, examples):
    with torch.device("meta"):
        paths = early_norms(make_backbone(backbone, 5, "none"))
    assert len(paths) == count
    assert set(examples) <= paths


def test_a_resnet_has_it_first_in_early_blocks_only_and_as_many_parameters():
    model = make_method("ibn", {}).build(lambda: make_backbone("resnet18", 7, "none"))
    assert parameter_count(model) == 11_180_103
    assert isinstance(model.bn1, nn.BatchNorm2d)
    assert isinstance(model.layer1[0].bn1, IBN2d)
    assert isinstance(model.layer1[0].bn2, nn.BatchNorm2d)
    assert isinstance(model.layer2[0].downsample[1], nn.BatchNorm2d)
    assert isinstance(model.layer4[0].bn1, nn.BatchNorm2d)
    assert model.layer3[0].bn1.sizes == (128, 128)
    with torch.inference_mode():
        assert torch.isfinite(model.eval()(torch.randn(1, 3, 16, 16))).all()  # maps of one position


def test_a_densenet_has_four_tenths_and_batch_normalised_channels_first():
    model = make_method("ibn", {}).build(lambda: make_backbone("densenet121", 7, "none"))
    layer = model.denseblock1.denselayer1.norm1
    assert layer.sizes == (38, 26)
    assert layer.batch.num_features == 38
    assert not layer.instance_first
    assert isinstance(model.denseblock1.denselayer2.norm1, nn.BatchNorm2d)


def test_the_network_starts_from_the_same_weights():
    def make():
        torch.manual_seed(3)
        return make_backbone("cnn_tiny_bn", 4, "none")

    plain, model = make(), make_method("ibn", {}).build(make)
    assert torch.equal(plain.block2[0].weight, model.block2[0].weight)
    assert torch.equal(plain.head.weight, model.head.weight)


def test_without_instance_channels_it_is_fedavg_bit_for_bit(federation):
    fedavg = run_rounds(federation(toy_spec("fedavg")))
    without = toy_spec("ibn", overrides={"ibn": {"ibn_ratio": 0.0}})
    assert equal(run_rounds(federation(without)), fedavg)
    ours = federation(toy_spec("ibn"))
    with_it = run_rounds(ours)
    assert not torch.equal(with_it["head.weight"], fedavg["head.weight"])
    assert compose("ibn").info.shares == ()
    assert set(ours.server.traffic.counts) == {"up/weights", "down/weights"}


def test_early_features_of_instance_channels_forget_the_style_of_a_sample(federation):
    ours = federation(toy_spec("ibn"))
    run_rounds(ours)
    model = ours.server.model.eval()
    convolved = torch.randn(2, 16, 8, 8)
    styled = 2 * convolved + 3
    layer = model.block1[1]
    with torch.inference_mode():
        one, other = layer(convolved), layer(styled)
    assert torch.allclose(one[:, :8], other[:, :8], atol=1e-3)
    assert not torch.allclose(one[:, 8:], other[:, 8:], atol=1e-1)


def test_fedbn_keeps_the_batch_part_only(federation):
    ours = federation(toy_spec("ibn+fedbn"))
    run_rounds(ours, 1)
    kept = ours.clients[0].memory["kept"]
    assert "block1.1.batch.weight" in kept
    assert "block4.1.running_var" in kept
    assert not any(".instance." in key for key in kept)


def test_it_composes_with_gates_only_where_no_gate_is_lost(federation):
    assert federation(toy_spec("bin+ibn"))
    with pytest.raises(UserError, match="leave out one of the two methods"):
        federation(toy_spec("ibn+bin"))
