"""SFA-S and SFA-A: the noise has the mean, width and covariance that are promised."""

from types import SimpleNamespace

import pytest
import torch

from benchmark.errors import UserError
from benchmark.federation import visit
from benchmark.method import Method, compose, make_method
from methods.sfa_a import ClassNoise, class_noise
from methods.sfa_s import FeatureNoise
from tests.conftest import TRAINING, toy_spec

DRAWS = 10_000


def test_noise_without_width_is_the_identity():
    features = torch.randn(4, 6)
    assert FeatureNoise(0.0, 0.0)(features) is features
    assert FeatureNoise(0.5, 0.5).eval()(features) is features


@pytest.mark.parametrize(("scale", "shift"), [(0.5, 0.0), (0.0, 0.5), (0.3, 0.7)])
def test_noise_is_unbiased_with_the_widths_given(scale, shift):
    torch.manual_seed(0)
    features = torch.tensor([[1.0, -2.0, 0.0]])
    draws = FeatureNoise(scale, shift)(features.expand(DRAWS, 3))
    variance = (scale * features[0]) ** 2 + shift**2
    error = (variance / DRAWS).sqrt()
    assert ((draws.mean(0) - features[0]).abs() <= 3 * error + 1e-6).all()
    assert torch.allclose(draws.var(0), variance, rtol=0.06, atol=1e-9)


def test_class_noise_has_the_covariance_of_its_class():
    torch.manual_seed(0)
    shape = torch.tensor([[1.0, 0.0, 0.0], [2.0, 0.5, 0.0], [0.0, -1.0, 0.2]])
    features = torch.randn(60, 3) @ shape.T + 5
    features[30:] *= 3
    classes = torch.arange(2).repeat_interleave(30)
    for label in (0, 1):
        labels = torch.full((DRAWS,), label)
        noise = class_noise(features, classes, labels, 2)
        expected = torch.cov(features[classes == label].T)
        assert torch.allclose(torch.cov(noise.T), expected, atol=0.06 * expected.max().item())
        assert (noise.mean(0).abs() < 4 * (expected.diag() / DRAWS).sqrt()).all()
    pair = class_noise(features, classes, torch.zeros(DRAWS, dtype=torch.long), 2)
    assert torch.corrcoef(torch.stack([pair[::2, 0], pair[1::2, 0]]))[0, 1].abs() < 0.06


def test_two_features_of_a_class_give_noise_along_their_difference():
    torch.manual_seed(0)
    features = torch.tensor([[0.0, 0.0], [2.0, 4.0], [9.0, 9.0]])
    noise = class_noise(features, torch.tensor([0, 0, 1]), torch.tensor([0, 1]), 3)
    assert noise[0, 1] == pytest.approx(2 * noise[0, 0].item(), rel=1e-5)
    assert noise[0, 0] != 0
    assert noise[1].tolist() == [0, 0]  # one feature has no covariance
    many = class_noise(features, torch.tensor([0, 0, 1]), torch.zeros(DRAWS, dtype=torch.long), 3)
    assert many.var(0).tolist() == pytest.approx([2, 8], rel=0.08)  # unbiased, of 0, 2 and of 0, 4


def test_the_window_moves_on():
    layer = ClassNoise(0.0, 1.0, window=2, class_count=2)
    layer.labels = torch.tensor([0, 1])
    for value in (1.0, 2.0, 3.0):
        layer(torch.full((2, 4), value, requires_grad=True))
    assert [features[0, 0].item() for features, _ in layer.recent] == [2.0, 3.0]
    assert not any(features.requires_grad for features, _ in layer.recent)


def test_class_noise_is_inert_in_tests_and_without_labels():
    layer, features = ClassNoise(0.5, 1.0, 8, 2), torch.randn(4, 3)
    assert layer(features) is features
    layer.labels = torch.tensor([0, 0, 1, 1])
    assert layer(features) is not features
    assert layer.eval()(features) is features


def test_labels_reach_the_noise_and_every_visit_starts_with_an_empty_window(federation):
    ours = federation(toy_spec("sfa_a", training=TRAINING.changed({"local_steps": 3})))
    (noise,) = (m for m in ours.server.model.modules() if isinstance(m, ClassNoise))
    (working,) = (m for m in ours.clients[0].model.modules() if isinstance(m, ClassNoise))
    for client in ours.clients[:2]:
        visit(ours.method, ours.server, client)
        assert len(working.recent) == 3
        assert working.labels is None
    assert noise.recent == []
    assert not any("sfa" in key for key in ours.clients[0].memory)


def test_labels_are_taken_away_when_a_loss_fails(monkeypatch):
    layer = ClassNoise(0.5, 1.0, 8, 2)
    client = SimpleNamespace(model=torch.nn.Sequential(layer))

    def fail(self, client, batch):
        raise ValueError

    monkeypatch.setattr(Method, "loss", fail)
    with pytest.raises(ValueError):
        make_method("sfa_a", {}).loss(client, SimpleNamespace(labels=torch.tensor([0])))
    assert layer.labels is None


def test_compositions_that_cannot_work_say_so(federation):
    with pytest.raises(UserError, match="both have a hyper-parameter 'sfa_scale'"):
        compose("sfa_s+sfa_a")
    ours = federation(toy_spec("sfa_a+l2d"))
    with pytest.raises(UserError, match="write it last"):
        visit(ours.method, ours.server, ours.clients[0])
    visit(compose("l2d+sfa_a")(), *_parts(federation(toy_spec("l2d+sfa_a"))))


def _parts(federation):
    return federation.server, federation.clients[0]
