"""RandConv: kernels, views and the consistency loss."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import methods.randconv as module
from benchmark.errors import UserError
from benchmark.federation import visit
from benchmark.method import Method
from methods.randconv import consistency, random_convolution
from tests.conftest import toy_spec


@pytest.fixture
def ready(federation):
    """A method with settings, a client that has received the model, and one of its batches."""

    def make(**settings):
        ours = federation(toy_spec("randconv", overrides={"randconv": settings}))
        client = ours.clients[0]
        ours.method.receive(ours.server, client)
        client.model.train()
        return ours.method, client, client.train.training_batch(np.arange(8), torch.Generator())

    return make


def test_an_identity_kernel_leaves_the_image(monkeypatch):
    images = torch.rand(2, 3, 9, 9)
    identity = torch.eye(3).view(3, 3, 1, 1) * 3**0.5  # what is divided by √(3k²)
    monkeypatch.setattr(torch, "randn", lambda *shape, **options: identity)
    assert torch.allclose(random_convolution(images, 1), images, atol=1e-6)


def test_kernels_have_odd_sizes_and_the_width_of_he_initialisation(monkeypatch):
    kernels = []
    monkeypatch.setattr(
        F, "conv2d", lambda images, kernel, padding: kernels.append((kernel, padding)) or images
    )
    torch.manual_seed(0)
    for _ in range(400):
        random_convolution(torch.rand(1, 3, 8, 8), 7)
    sizes = [kernel.shape[-1] for kernel, _ in kernels]
    assert set(sizes) == {1, 3, 5, 7}
    assert all(60 < sizes.count(size) < 140 for size in (1, 3, 5, 7))  # 100 ± 4.6 deviations
    assert all(padding == kernel.shape[-1] // 2 for kernel, padding in kernels)
    threes = torch.cat([kernel.flatten() for kernel, _ in kernels if kernel.shape[-1] == 3])
    assert threes.std().item() == pytest.approx(0.19245, abs=0.01)


def test_sizes_stay_and_one_kernel_serves_the_batch():
    torch.manual_seed(0)
    image = torch.rand(1, 3, 20, 24)
    for _ in range(8):
        out = random_convolution(image.repeat(3, 1, 1, 1), 7)
        assert out.shape == (3, 3, 20, 24)
        assert torch.allclose(out[0], out[2], atol=1e-6)


def test_equal_predictions_are_consistent_and_disjoint_ones_cost_log_three():
    logits = torch.randn(5, 4)
    assert consistency([logits, logits, logits]).item() == pytest.approx(0, abs=1e-6)
    disjoint = [200 * torch.eye(3)[[k]] for k in range(3)]
    assert consistency(disjoint).item() == pytest.approx(1.098612, abs=1e-5)


def test_consistency_is_the_mean_divergence_from_the_average_with_a_gradient_everywhere():
    torch.manual_seed(0)
    views = [torch.randn(6, 4, requires_grad=True) for _ in range(3)]
    predictions = [view.softmax(1) for view in views]
    average = (sum(predictions) / 3).log()
    expected = sum(F.kl_div(average, p, reduction="batchmean") for p in predictions) / 3
    assert consistency(views).item() == pytest.approx(expected.item(), rel=1e-5)
    for gradient in torch.autograd.grad(consistency(views), views):
        assert torch.isfinite(gradient).all()
        assert gradient.abs().sum() > 0
    sure = [torch.tensor([[500.0, 0.0]], requires_grad=True), torch.tensor([[0.0, 500.0]])]
    assert torch.isfinite(torch.autograd.grad(consistency(sure), sure[:1])[0]).all()


def test_three_views_are_fresh_convolutions_of_the_image(ready, monkeypatch):
    method, client, batch = ready(randconv_p=0.0)
    given = []

    def convolve(images, largest):
        given.append(images)
        return images + len(given)

    monkeypatch.setattr(module, "random_convolution", convolve)
    out = method.augment(client, batch)
    assert all(images is batch.images for images in given)
    assert torch.equal(out.images, batch.images + 1)
    assert torch.equal(out.extras["randconv"][1], batch.images + 3)
    method, client, batch = ready(randconv_p=0.0, randconv_weight=0.0)
    assert method.augment(client, batch).extras["randconv"] == []


def test_with_probability_p_a_view_is_the_image(ready):
    method, client, batch = ready(randconv_p=0.5, randconv_weight=0.0)
    torch.manual_seed(0)
    same = sum(method.augment(client, batch).images is batch.images for _ in range(400))
    assert 150 < same < 250


def test_a_mixture_lies_between_image_and_convolution(ready, monkeypatch):
    method, client, batch = ready(randconv_kind="mix", randconv_weight=0.0)
    monkeypatch.setattr(module, "random_convolution", lambda images, largest: images + 1)
    torch.manual_seed(0)
    shares = [
        (method.augment(client, batch).images - batch.images).mean().item() for _ in range(99)
    ]
    assert 0 <= min(shares) < 0.1 < 0.9 < max(shares) <= 1
    monkeypatch.setattr(torch, "rand", lambda *shape: torch.zeros(()))
    assert torch.equal(method.augment(client, batch).images, batch.images)


def test_clamped_views_stay_in_the_range_of_images(ready):
    method, client, batch = ready(randconv_p=0.0, randconv_clamp=True)
    torch.manual_seed(0)
    for _ in range(10):
        pixels = client.train.transform.to_pixels(method.augment(client, batch).images)
        assert pixels.min() > -1e-5
        assert pixels.max() < 1 + 1e-5
    free, client, batch = ready(randconv_p=0.0)
    pixels = client.train.transform.to_pixels(free.augment(client, batch).images)
    assert pixels.min() < 0


def test_the_loss_is_cross_entropy_plus_the_weighted_consistency(ready):
    method, client, batch = ready(randconv_p=0.0, randconv_weight=7.0)
    torch.manual_seed(0)
    views = method.augment(client, batch)
    client.model.eval()  # fixed statistics, so that passes can be repeated
    with torch.no_grad():
        loss = method.loss(client, views)
        plain = Method().loss(client, views)
        logits = [client.model(view) for view in (views.images, *views.extras["randconv"])]
        expected = plain + 7 * consistency(logits)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert loss > plain


def test_it_takes_three_passes_and_all_move_the_statistics(ready):
    method, client, batch = ready()
    before = client.model.block1[1].num_batches_tracked.item()
    method.loss(client, method.augment(client, batch))
    assert client.model.block1[1].num_batches_tracked.item() == before + 3


@pytest.mark.parametrize("name", ["randconv+l2d", "l2d+randconv"])
def test_a_method_that_enlarges_the_batch_is_refused(federation, name):
    ours = federation(toy_spec(name))
    with pytest.raises(UserError, match="randconv cannot be combined"):
        visit(ours.method, ours.server, ours.clients[0])


def test_consistency_never_exceeds_the_log_of_the_views():
    torch.manual_seed(0)
    for _ in range(20):
        assert 0 <= consistency([30 * torch.randn(4, 5) for _ in range(3)]) <= math.log(3) + 1e-5
