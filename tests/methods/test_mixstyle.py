"""MixStyle and the style operations: the oracles of its definition, gradients, places."""

import pytest
import torch

from benchmark.backbones.base import backbones
from benchmark.errors import UserError
from benchmark.method import make_method
from methods.mixstyle import StyleMixing
from methods.ops.style import blend, mix_styles, recolour, spread, style_of
from tests.conftest import toy_spec


def maps(*shape) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3 + 1


def two_samples() -> torch.Tensor:
    """One channel of two pixels each: [0, 2] and [10, 14]."""
    return torch.tensor([[0.0, 2.0], [10.0, 14.0]]).view(2, 1, 1, 2)


def test_style_is_mean_and_unbiased_deviation():
    mean, std = style_of(two_samples())
    assert mean.flatten().tolist() == [1, 12]
    assert std.flatten().tolist() == pytest.approx([2**0.5, 8**0.5], abs=1e-6)
    features = maps(3, 5, 4, 6)
    variance, expected = torch.var_mean(features, (2, 3), keepdim=True)
    mean, std = style_of(features, epsilon=1e-5)
    assert torch.allclose(mean, expected, atol=1e-6)
    assert torch.allclose(std, (variance + 1e-5).sqrt(), atol=1e-6)


def test_a_map_of_one_pixel_has_a_style():
    mean, std = style_of(torch.full((2, 3, 1, 1), 5.0))
    assert (mean == 5).all()
    assert std.flatten().tolist() == pytest.approx([1e-3] * 6)


def test_spread_over_a_batch():
    assert spread(torch.tensor([[0.0], [2.0]])).item() == pytest.approx((2 + 1e-6) ** 0.5)
    assert spread(torch.ones(4, 1)).item() == pytest.approx(1e-3)


def test_half_of_each_others_style_makes_both_samples_the_same():
    mixed = mix_styles(two_samples(), torch.tensor([1, 0]), torch.full((2, 1, 1, 1), 0.5))
    assert mixed.flatten().tolist() == pytest.approx([5, 8, 5, 8], abs=1e-4)


def test_own_style_is_the_identity_and_the_partners_is_swapped():
    features, order = maps(4, 3, 5, 5), torch.tensor([1, 2, 3, 0])
    ones = torch.ones(4, 1, 1, 1)
    assert torch.allclose(mix_styles(features, order, ones), features, atol=1e-5)
    mean, std = style_of(mix_styles(features, order, 0 * ones))
    own_mean, own_std = style_of(features)
    assert torch.allclose(mean, own_mean[order], atol=1e-5)
    assert torch.allclose(std, own_std[order], atol=1e-5)


def test_recolouring_is_adaptive_instance_normalisation():
    features = maps(2, 3, 8, 8)
    wanted = torch.rand(2, 3, 1, 1), torch.rand(2, 3, 1, 1) + 0.5
    mean, std = style_of(recolour(features, style_of(features), wanted))
    assert torch.allclose(mean, wanted[0], atol=1e-4)
    assert torch.allclose(std, wanted[1], atol=1e-3)
    mean, std = blend(wanted, (wanted[0] + 1, wanted[1] + 1), 0.25)
    assert torch.allclose(mean, wanted[0] + 0.75)
    assert torch.allclose(std, wanted[1] + 0.75)


def test_no_gradient_goes_through_the_statistics():
    features = maps(4, 2, 3, 3).requires_grad_()
    order, share = torch.tensor([2, 3, 1, 0]), torch.tensor([0.2, 0.4, 0.9, 0.5]).view(4, 1, 1, 1)
    (gradient,) = torch.autograd.grad(mix_styles(features, order, share).sum(), features)
    std = style_of(features.detach())[1]
    expected = (share * std + (1 - share) * std[order]) / std
    assert torch.allclose(gradient, expected.expand_as(gradient), atol=1e-6)


def test_it_acts_in_training_with_its_probability_and_never_in_tests():
    torch.manual_seed(0)
    features = maps(6, 2, 4, 4)
    layer = StyleMixing(0.5, 0.1)
    changed = sum(layer(features) is not features for _ in range(400))
    assert 150 < changed < 250  # binomial(400, ½): five deviations
    assert all(layer.eval()(features) is features for _ in range(20))
    assert StyleMixing(1.0, 0.1)(features[:1]) is not features[:1]
    assert torch.equal(StyleMixing(1.0, 0.1)(features[:1]), features[:1])


def test_shares_are_per_sample_and_from_the_beta_distribution():
    torch.manual_seed(0)
    drawn = StyleMixing(1.0, 0.1).shares.sample((20_000,))
    assert drawn.mean().item() == pytest.approx(0.5, abs=0.02)
    assert drawn.var().item() == pytest.approx(0.25 / 1.2, abs=0.01)  # of Beta(0.1, 0.1)


def test_places_are_the_first_three_stages(federation):
    model = federation(toy_spec("mixstyle")).server.model
    assert list(model.taps) == ["block1", "block2", "block3"]
    two = toy_spec("mixstyle", overrides={"mixstyle": {"mixstyle_stages": 2}})
    assert list(federation(two).server.model.taps) == ["block1", "block2"]
    with torch.device("meta"):
        resnet = make_method("mixstyle", {}).build(lambda: backbones["resnet18"].make(7))
    assert list(resnet.taps) == ["layer1", "layer2", "layer3"]


@pytest.mark.parametrize("name", ["mixstyle", "dsu"])
def test_a_transformer_has_no_such_places(name):
    with pytest.raises(UserError, match=r"no . convolutional stages"), torch.device("meta"):
        make_method(name, {}).build(lambda: backbones["vit_b16"].make(7))


def test_more_stages_than_there_are_is_an_error(federation):
    spec = toy_spec("mixstyle", overrides={"mixstyle": {"mixstyle_stages": 9}})
    with pytest.raises(UserError, match="no 9 convolutional stages"):
        federation(spec)
