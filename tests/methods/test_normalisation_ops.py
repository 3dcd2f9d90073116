"""Mixed statistics: the functions and the layer that FedFD's and the inference rules stand on."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from methods.bin import BatchInstanceNorm2d
from methods.dson import OptimisedNorm2d
from methods.gperxan import XAN2d
from methods.ibn import IBN2d
from methods.ops.batchnorm import frozen_statistics
from methods.ops.centred import (
    centred_moments,
    instance_norm,
    joint_moments,
    rescaled,
    unbiased,
)
from methods.ops.normalisation import (
    MixedNorm2d,
    Statistics,
    converted,
    mixed_statistics,
    normalise_with,
    pooled_moments,
)
from tests.methods.parts import trained_norm


def random_layer(channels: int = 6) -> nn.BatchNorm2d:
    layer = nn.BatchNorm2d(channels).eval()
    for tensor in (layer.weight, layer.bias, layer.running_mean):
        tensor.data.normal_()
    layer.running_var.uniform_(0.5, 2)
    return layer


def with_weight(layer: nn.BatchNorm2d, weight) -> MixedNorm2d:
    mixed = converted(MixedNorm2d, layer).train(layer.training)
    mixed.mix = lambda local, reference: weight
    return mixed


@pytest.fixture
def maps() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(4, 6, 5, 7).mul(3).add(1).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("shapes", [((2, 3), (2, 3)), ((2, 3), (3,)), ((3,), (3,))])
def test_rescaling_is_a_product_and_a_sum_and_can_be_differentiated_twice(shapes):
    torch.manual_seed(0)
    centred = torch.randn(2, 3, 3, 2, dtype=torch.double, requires_grad=True)
    scale, shift = (torch.randn(s, dtype=torch.double, requires_grad=True) for s in shapes)
    expected = centred * scale[..., None, None] + shift[..., None, None]
    assert torch.allclose(rescaled(centred, scale, shift), expected)
    assert torch.autograd.gradcheck(rescaled, (centred, scale, shift))
    assert torch.autograd.gradgradcheck(rescaled, (centred, scale, shift))


def test_instance_normalisation_is_pytorchs(maps):
    weight, bias = torch.randn(6), torch.randn(6)
    found = instance_norm(maps, weight, bias, 1e-5)
    assert torch.allclose(found, F.instance_norm(maps, weight=weight, bias=bias), atol=1e-5)
    assert found.is_contiguous(memory_format=torch.channels_last)
    single = torch.randn(2, 6, 1, 1)
    assert torch.equal(
        instance_norm(single, weight, bias, 1e-5), bias.expand(2, 6)[..., None, None]
    )


def test_moments_are_pytorchs(maps):
    centred, mean, variance = centred_moments(maps)
    expected, expected_mean = torch.var_mean(maps, (2, 3), correction=0)
    assert torch.allclose(mean, expected_mean, atol=1e-6)
    assert torch.allclose(variance, expected, rtol=1e-5)
    assert torch.allclose(centred, maps - mean[..., None, None], atol=1e-6)
    assert torch.allclose(unbiased(variance, maps), maps.var((2, 3)), rtol=1e-5)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: converted(BatchInstanceNorm2d, trained_norm()),
        lambda: converted(OptimisedNorm2d, trained_norm()),
        lambda: IBN2d(trained_norm(), 3),
        lambda: XAN2d(trained_norm()),
    ],
)
def test_layers_that_train_a_mix_work_in_reduced_precision(layer, maps):
    """Next to convolutions in bfloat16 they get maps in it; weights and statistics are float32."""
    exact, reduced = layer(), layer()
    x = maps.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = reduced(x)
        found.float().square().sum().backward()
    assert torch.allclose(found.float(), exact(x.float()), atol=0.15)
    for name, value in exact.state_dict().items():
        assert torch.allclose(reduced.state_dict()[name], value, atol=0.02), name
    assert all(torch.isfinite(p.grad).all() for p in reduced.parameters())


def test_moments_of_one_position():
    single = torch.full((2, 3, 1, 1), 5.0)
    variance = centred_moments(single)[2]
    assert variance.tolist() == unbiased(variance, single).tolist() == [[0.0] * 3] * 2


def test_joint_moments_are_those_of_all_positions(maps):
    mean, variance = joint_moments(*centred_moments(maps)[1:], dim=0)
    expected, expected_mean = torch.var_mean(maps, (0, 2, 3), correction=0)
    assert torch.allclose(mean[0], expected_mean, atol=1e-6)
    assert torch.allclose(variance[0], expected, rtol=1e-5)


def test_pooled_moments_are_those_of_all_positions_of_the_group(maps):
    mean, variance = pooled_moments(*centred_moments(maps)[1:], copies=2)
    for start in (0, 2):
        group = maps[start : start + 2]
        expected, expected_mean = torch.var_mean(group, (0, 2, 3), correction=0)
        for member in (start, start + 1):
            assert torch.allclose(mean[member], expected_mean, atol=1e-6)
            assert torch.allclose(variance[member], expected, rtol=1e-5)


def test_the_ends_of_the_mix_are_the_librarys_layers(maps):
    layer = random_layer()
    assert torch.allclose(with_weight(layer, 0.0)(maps), layer(maps), atol=1e-6)
    instance = F.instance_norm(maps, weight=layer.weight, bias=layer.bias)
    assert torch.allclose(with_weight(layer, 1.0)(maps), instance, atol=1e-5)
    layer.weight.data.fill_(1)
    layer.bias.data.zero_()
    instance = F.instance_norm(maps)
    assert torch.allclose(with_weight(layer, 1.0)(maps), instance, atol=1e-6)


def test_the_weight_is_irrelevant_where_both_sides_agree(maps):
    layer = random_layer()
    _, mean, variance = centred_moments(maps[:1])
    layer.running_mean.copy_(mean[0])
    layer.running_var.copy_(variance[0])
    outputs = [with_weight(layer, weight)(maps[:1]) for weight in (0.0, 0.3, 1.0, torch.rand(6))]
    for output in outputs[1:]:
        assert torch.allclose(output, outputs[0], atol=1e-5)


def test_half_and_half_by_hand():
    """Map 0, 2, 4, 6 (mean 3, variance 5), global mean 1 and variance 4, no eps."""
    centred, own_mean, variance = centred_moments(torch.tensor([[[[0.0, 2], [4, 6]]]]))
    own = Statistics.of(own_mean, variance, 0.0)
    reference = Statistics.of(torch.tensor([1.0]), torch.tensor([4.0]), 0.0)
    mean, std = mixed_statistics(0.5, own, reference)
    assert mean.item() == 2
    assert std.item() == pytest.approx(2.118034, abs=1e-6)
    output = normalise_with(centred, own_mean, mean, std, nn.BatchNorm2d(1))
    assert output.flatten().tolist() == pytest.approx([-0.944272, 0, 0.944272, 1.888544], abs=1e-6)
    on_variance = mixed_statistics(0.5, own, reference, on_variance=True)
    assert on_variance.std.item() == pytest.approx(4.5**0.5, abs=1e-6)


def test_weights_per_channel_and_per_sample(maps):
    layer = random_layer()
    zero, one = (with_weight(layer, weight)(maps) for weight in (0.0, 1.0))
    channels = with_weight(layer, torch.tensor([0.0, 1, 0, 1, 1, 0]))(maps)
    samples = with_weight(layer, torch.tensor([0.0, 1, 1, 0])[:, None])(maps)
    for k, ends in enumerate((zero, one, zero, one, one, zero)):
        assert torch.equal(channels[:, k], ends[:, k])
    for k, ends in enumerate((zero, one, one, zero)):
        assert torch.equal(samples[k], ends[k])


def test_a_mixing_layer_never_touches_running_statistics_or_other_samples(maps):
    mixed = with_weight(random_layer().train(), 0.5)
    before = {key: value.clone() for key, value in mixed.state_dict().items()}
    output = mixed(maps)
    assert all(torch.equal(before[key], value) for key, value in mixed.state_dict().items())
    assert torch.allclose(output[1:2], mixed(maps[1:2]), atol=1e-6)


def test_without_a_mix_it_is_batch_normalisation_bit_for_bit(maps):
    plain = random_layer().train()
    mixed = converted(MixedNorm2d, nn.BatchNorm2d(6))
    assert mixed.state_dict().keys() == plain.state_dict().keys()
    mixed.load_state_dict(plain.state_dict())
    assert torch.equal(mixed(maps), plain(maps))
    for key, value in plain.state_dict().items():
        assert torch.equal(mixed.state_dict()[key], value)
    with frozen_statistics(mixed):
        mixed(maps)
    assert torch.equal(mixed.running_mean, plain.running_mean)


def test_gradients_reach_maps_through_their_own_statistics(maps):
    mixed = with_weight(random_layer(), 1.0)
    x = maps.clone().double().requires_grad_()
    mixed.double()(x).square().sum().backward()
    assert x.grad.sum((2, 3)).abs().max() < 1e-9  # a shift of a whole map changes nothing
    assert x.grad.abs().max() > 1e-6
