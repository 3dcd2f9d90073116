"""DSU: the oracles of its definition, its gradient and its places."""

import copy

import pytest
import torch

from benchmark.backbones.base import backbones
from benchmark.method import make_method
from methods.dsu import StyleUncertainty, perturb_style
from methods.ops.style import spread, style_of
from tests.conftest import toy_spec


def maps(*shape) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 2 + 1


def test_factor_zero_is_the_identity():
    features = maps(4, 3, 5, 5)
    assert torch.allclose(perturb_style(features, 0.0), features, atol=1e-5)


def test_statistics_vary_by_their_spread_over_the_batch():
    """Samples with means 0 and 2 have Σ = √(2 + 1e-6); draws of the new mean follow it."""
    torch.manual_seed(0)
    pattern = torch.tensor([-1.0, 1.0]).view(1, 1, 1, 2)
    pair = torch.cat([pattern, pattern + 2])
    assert spread(style_of(pair)[0]).item() == pytest.approx(2.000001**0.5)
    draws = torch.stack([perturb_style(pair, 1.0).mean((1, 2, 3)) for _ in range(20_000)])
    assert draws.mean(0).tolist() == pytest.approx([0, 2], abs=0.04)
    assert draws.std(0).tolist() == pytest.approx([2**0.5] * 2, abs=0.04)
    assert torch.corrcoef(draws.T)[0, 1].abs() < 0.04  # each sample has draws of its own


def test_equal_samples_still_move_a_little():
    torch.manual_seed(0)
    same = maps(1, 8, 4, 4).expand(16, -1, -1, -1)
    moved = (perturb_style(same, 1.0) - same).mean((2, 3))
    assert moved.std().item() == pytest.approx(1e-3, rel=0.2)


def test_the_gradient_goes_through_the_statistics():
    """Finite differences with the same draws see all paths, and so does the gradient."""
    features = maps(4, 2, 3, 3).requires_grad_()
    torch.manual_seed(1)
    attached = perturb_style(features, 1.0)
    (gradient,) = torch.autograd.grad(attached.square().sum(), features)
    step = 1e-3 * torch.randn(features.shape, generator=torch.Generator().manual_seed(3))
    values = []
    for sign in (1, -1):
        torch.manual_seed(1)
        values.append(perturb_style(features.detach() + sign * step, 1.0).square().sum())
    slope = (values[0] - values[1]) / 2
    assert slope.item() == pytest.approx((gradient * step).sum().item(), rel=1e-2)


def test_it_acts_in_training_with_its_probability_and_never_in_tests():
    torch.manual_seed(0)
    features = maps(6, 2, 4, 4)
    layer = StyleUncertainty(0.5, 1.0)
    changed = sum(layer(features) is not features for _ in range(400))
    assert 150 < changed < 250
    assert all(layer.eval()(features) is features for _ in range(20))
    one = features[:1]
    assert StyleUncertainty(1.0, 1.0)(one) is one


def test_places_on_a_resnet_are_the_six_of_the_code():
    with torch.device("meta"):
        model = make_method("dsu", {}).build(lambda: backbones["resnet18"].make(7))
    assert list(model.taps) == ["stem", "layer1", "layer2", "layer3", "layer4"]
    hooked = [name for name, part in model.named_modules() if part._forward_hooks]
    assert hooked == ["conv1"]


def test_the_first_convolution_is_perturbed_in_training_also_in_a_copy(federation):
    spec = toy_spec("dsu", overrides={"dsu": {"dsu_p": 1.0}})
    model = copy.deepcopy(federation(spec).server.model)
    convolution, images = model.block1[0], torch.rand(4, 3, 32, 32)
    model.train()
    assert not torch.equal(convolution(images), convolution(images))
    model.eval()
    assert torch.equal(convolution(images), convolution(images))
    assert model.state_dict().keys() == federation(toy_spec()).server.state.keys()


def test_maps_of_one_pixel_stay_finite():
    assert torch.isfinite(perturb_style(torch.rand(4, 8, 1, 1), 1.0)).all()
