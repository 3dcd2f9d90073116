"""Mixed statistics: the functions and the layer that FedFD's and the inference rules stand on."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from methods.ops.batchnorm import frozen_statistics
from methods.ops.normalisation import (
    MixedNorm2d,
    Statistics,
    converted,
    instance_moments,
    mixed_statistics,
    normalise_with,
    pooled_moments,
)


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


@pytest.mark.parametrize("unbiased", [False, True])
def test_moments_are_pytorchs(maps, unbiased):
    mean, variance = instance_moments(maps, unbiased)
    expected, expected_mean = torch.var_mean(maps, (2, 3), correction=int(unbiased))
    assert torch.allclose(mean, expected_mean, atol=1e-6)
    assert torch.allclose(variance, expected, rtol=1e-5)


def test_moments_of_one_position():
    single = torch.full((2, 3, 1, 1), 5.0)
    assert instance_moments(single)[1].tolist() == [[0.0] * 3] * 2
    assert instance_moments(single, unbiased=True)[1].isnan().all()


def test_pooled_moments_are_those_of_all_positions_of_the_group(maps):
    mean, variance = pooled_moments(*instance_moments(maps), copies=2)
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
    mean, variance = instance_moments(maps[:1])
    layer.running_mean.copy_(mean[0])
    layer.running_var.copy_(variance[0])
    outputs = [with_weight(layer, weight)(maps[:1]) for weight in (0.0, 0.3, 1.0, torch.rand(6))]
    for output in outputs[1:]:
        assert torch.allclose(output, outputs[0], atol=1e-5)


def test_half_and_half_by_hand():
    """Map 0, 2, 4, 6 (mean 3, variance 5), global mean 1 and variance 4, no eps."""
    own = Statistics.of(*instance_moments(torch.tensor([[[[0.0, 2], [4, 6]]]])), 0.0)
    reference = Statistics.of(torch.tensor([1.0]), torch.tensor([4.0]), 0.0)
    mean, std = mixed_statistics(0.5, own, reference)
    assert mean.item() == 2
    assert std.item() == pytest.approx(2.118034, abs=1e-6)
    output = normalise_with(torch.tensor([[[[0.0, 2], [4, 6]]]]), mean, std)
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
