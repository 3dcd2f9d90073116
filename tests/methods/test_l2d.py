"""L2D: the augmenter, the stochastic head, the loss terms, the two stages."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmark.backbones.base import backbones
from benchmark.errors import UserError
from benchmark.federation import rounds, visit
from benchmark.method import Method, make_method
from benchmark.state import copy_of
from methods.ops.diversify import (
    KERNELS,
    GaussianHead,
    RandomBranches,
    StyleComplement,
    class_mmd,
    contrast,
    correlate,
    information_bound,
    spread_out,
    surprise,
)
from tests.conftest import TRAINING, toy_spec
from tests.test_federation import equal, run_rounds


@pytest.fixture
def ready(federation):
    """A method with settings, a client in the middle of a visit, and a batch for it."""

    def make(**settings):
        ours = federation(toy_spec("l2d", overrides={"l2d": settings}))
        client = ours.clients[0]
        ours.method.receive(ours.server, client)
        client.model.train()
        client.optimizer = ours.method.optimizer(client)
        return ours.method, client, client.train.training_batch(np.arange(8), torch.Generator())

    return make


@pytest.mark.parametrize("side", [18, 32, 33, 224])
@pytest.mark.parametrize("size", KERNELS)
def test_convolutions_through_frequencies_are_convolutions(side, size):
    torch.manual_seed(0)
    images, kernels = torch.randn(2, 3, side, side), torch.randn(3, 3, size, size) / size
    shrunk = correlate(torch.fft.rfft2(images), kernels, side)
    assert torch.allclose(shrunk, F.conv2d(images, kernels), atol=1e-4)
    restored = spread_out(shrunk, kernels, side)
    assert restored.shape == images.shape
    assert torch.allclose(restored, F.conv_transpose2d(shrunk, kernels), atol=1e-3)


def test_branches_are_those_of_the_code():
    torch.manual_seed(0)
    images, augmenter = torch.randn(2, 3, 32, 32), StyleComplement(32)
    with torch.no_grad():
        output = augmenter(images, fresh=False)
        branches = augmenter.fixed
        expected = branches.colour(images).tanh()
        for k in range(4):
            maps = F.instance_norm(branches.shrink[k](images))
            maps = branches.restore[k](augmenter.scales[k] * maps + augmenter.shifts[k])
            expected = expected + maps.tanh()
    assert torch.allclose(output, expected / 5, atol=1e-5)


def test_the_augmenter_has_the_codes_parameters_at_224_pixels():
    augmenter = StyleComplement(224)
    assert sum(p.numel() for p in augmenter.learnt()) == 1_099_584 + 1
    assert [scale.shape[-1] for scale in augmenter.scales] == [216, 212, 208, 220]
    assert not any(p.requires_grad for p in augmenter.fixed.parameters())
    assert augmenter.noise.item() == 0
    assert augmenter.scales[0].mean().item() == pytest.approx(1, abs=0.01)
    assert augmenter.shifts[0].std().item() == pytest.approx(0.1, abs=0.01)


def test_images_that_are_too_small_are_refused():
    with pytest.raises(UserError, match="larger than 17 pixels, not 17"):
        StyleComplement(17)


def test_fresh_branches_differ_from_call_to_call_and_fixed_ones_do_not():
    augmenter, images = StyleComplement(32), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(augmenter(images, fresh=False), augmenter(images, fresh=False))
        assert not torch.equal(augmenter(images, fresh=True), augmenter(images, fresh=True))
        augmenter.noise += 1
        moved = augmenter(images, fresh=False) - augmenter(images, fresh=False)
    assert 0 < moved.abs().max() < 0.5


def test_branch_weights_that_sum_to_zero_give_numbers(monkeypatch):
    augmenter, images = StyleComplement(32), torch.randn(1, 3, 32, 32)
    real = torch.randn
    weights = torch.tensor([1.0, -1.0, 2.0, -2.0, 0.0])
    monkeypatch.setattr(
        torch, "randn", lambda *shape, **o: weights if shape == (5,) else real(*shape, **o)
    )
    assert torch.isfinite(augmenter(images, fresh=True)).all()


def test_a_blend_of_nothing_is_the_image(ready):
    method, client, batch = ready(l2d_blend=0.0)
    assert torch.equal(method.augment(client, batch).extras["l2d"], batch.images)


def test_changed_images_are_in_range_and_need_no_gradient(ready):
    method, client, batch = ready(l2d_blend=1.0)
    changed = method.augment(client, batch).extras["l2d"]
    pixels = client.train.transform.to_pixels(changed)
    assert 0 <= pixels.min() < pixels.max() <= 1
    assert not changed.requires_grad


def test_the_head_draws_in_training_and_gives_the_mean_in_tests():
    torch.manual_seed(0)
    head, features = GaussianHead(6, 4), torch.randn(1, 6)
    mean = F.leaky_relu(head.mean[0](features))
    deviation = F.relu(head.log_variance[0](features)).div(2).exp()
    draws = head(features.expand(20_000, 6))
    assert torch.allclose(draws.mean(0), mean[0], atol=0.01)
    assert torch.allclose(draws.std(0), 0.2 * deviation[0], rtol=0.03)
    assert torch.equal(head.eval()(features), head.mean(features))


def test_the_head_adds_525312_parameters_to_a_resnet18():
    with torch.device("meta"):
        plain = backbones["resnet18"].make(7)
        model = make_method("l2d", {}).build(lambda: backbones["resnet18"].make(7))
        wide = make_method("l2d", {}).build(lambda: backbones["resnet50"].make(7))
    count = [sum(p.numel() for p in network.parameters()) for network in (plain, model)]
    assert count[1] - count[0] == 525_312
    assert (wide.taps["features"][0].mean[0].in_features, wide.feature_size) == (2048, 512)


def test_scalar_values_of_the_likelihood_and_the_bound():
    mean, log_variance = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 2.0]])
    samples = torch.tensor([[2.0, 1.0]])
    assert surprise(mean, log_variance, samples).item() == pytest.approx((4 + 0 + 0 + 2) / 2)
    means, zeros = torch.tensor([[0.0], [4.0]]), torch.zeros(2, 1)
    samples, swapped = torch.tensor([[1.0], [3.0]]), torch.tensor([1, 0])
    # own: 1, 1; others: 9, 9 → ½ · (8 + 8) / 2
    assert information_bound(means, zeros, samples, swapped).item() == pytest.approx(4)
    half = torch.full((2, 1), 2.0).log()
    assert information_bound(means, half, samples, swapped).item() == pytest.approx(2)
    same = torch.ones(5, 3)
    bound = information_bound(torch.randn(5, 3), torch.rand(5, 3), same, torch.randperm(5))
    assert bound.item() == 0


def code_mmd(source, target):
    """As the public code has it, for one class."""
    total = torch.cat([source, target])
    distance = (total[None] - total[:, None]).square().sum(2)
    n = len(total)
    width = distance.sum() / (n * n - n) / 4
    kernels = sum(torch.exp(-distance / (width * 2**k)) for k in range(5))
    half = len(source)
    blocks = kernels[:half, :half] + kernels[half:, half:]
    return (blocks - kernels[:half, half:] - kernels[half:, :half]).mean()


def test_mmd_is_the_mean_over_the_classes_present():
    torch.manual_seed(0)
    one, other = torch.randn(9, 4), torch.randn(9, 4) + 1
    labels = torch.tensor([0, 3, 0, 3, 3, 7, 0, 7, 3])
    expected = sum(code_mmd(one[labels == k], other[labels == k]) for k in (0, 3, 7)) / 3
    assert class_mmd(one, other, labels).item() == pytest.approx(expected.item(), rel=1e-5)


def test_mmd_of_a_set_with_itself_is_zero_also_for_single_samples():
    features = torch.randn(6, 4, requires_grad=True)
    for labels in (torch.tensor([0, 0, 1, 1, 2, 2]), torch.arange(6)):
        loss = class_mmd(features, features.detach(), labels)
        assert loss.item() == pytest.approx(0, abs=1e-6)
        assert torch.isfinite(torch.autograd.grad(loss, features)[0]).all()


def test_contrast_against_the_definition():
    torch.manual_seed(0)
    one, other, labels = torch.randn(4, 5), torch.randn(4, 5), torch.tensor([0, 1, 0, 2])
    total, classes = F.normalize(torch.cat([one, other])), labels.repeat(2)
    losses = []
    for i in range(8):
        rest = [j for j in range(8) if j != i]
        scores = {j: (total[i] @ total[j] / 0.07).exp() for j in rest}
        positives = [j for j in rest if classes[j] == classes[i]]
        terms = [-(scores[j] / sum(scores.values())).log() for j in positives]
        losses.append(sum(terms) / len(terms))
    expected = (sum(losses) / 8).item()
    assert contrast(one, other, labels).item() == pytest.approx(expected, rel=1e-4)
    # two samples of one class, all four vectors equal: each of three others has share ⅓
    equal_vectors = torch.ones(2, 3)
    value = contrast(equal_vectors, equal_vectors, torch.tensor([0, 0])).item()
    assert value == pytest.approx(1.098612, abs=1e-5)


def test_the_networks_loss_is_the_sum_of_its_terms(ready):
    method, client, batch = ready(l2d_contrast=0.7, l2d_likelihood=0.3)
    torch.manual_seed(0)
    batch = method.augment(client, batch)
    (head,) = (part for part in client.model.modules() if isinstance(part, GaussianHead))
    torch.manual_seed(5)
    loss = method.loss(client, batch)
    inputs = []
    handle = head.register_forward_hook(lambda part, given, out: inputs.append((given[0], out)))
    torch.manual_seed(5)
    logits = client.model(torch.cat([batch.extras["l2d"], batch.images]))
    handle.remove()
    features, samples = inputs[0]
    expected = F.cross_entropy(logits, batch.labels.repeat(2))
    mean, log_variance = head.mean(features)[8:], head.log_variance(features)[8:]
    expected = expected + 0.3 * surprise(mean, log_variance, samples[:8])
    expected = expected + 0.7 * contrast(samples[:8], samples[8:], batch.labels)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_second_stage_trains_the_augmenter_alone(ready):
    method, client, batch = ready()
    batch = method.augment(client, batch)
    augmenter = client.scratch["l2d"]
    parameters = copy_of(dict(client.model.named_parameters()))
    before = copy_of(augmenter.state_dict())
    method._train_augmenter(client, batch)
    assert equal(dict(client.model.named_parameters()), parameters)
    assert all(p.grad is None for p in client.model.parameters())
    moved = {key for key, value in augmenter.state_dict().items() if not value.equal(before[key])}
    assert {f"scales.{k}" for k in range(4)} | {f"shifts.{k}" for k in range(4)} <= moved
    assert not any(key.startswith("fixed") for key in moved)


def test_the_augmenter_takes_a_plain_step_down_discrepancy_plus_bound(ready):
    method, client, batch = ready(l2d_lr=0.5, l2d_beta=0.3)
    augmenter = client.scratch["l2d"]
    (head,) = (part for part in client.model.modules() if isinstance(part, GaussianHead))
    torch.manual_seed(3)
    changed = method._changed(client, batch.images, fresh=False)
    vectors = client.model.squeeze(client.model.maps(torch.cat([changed, batch.images])))
    z, order = head(vectors), torch.randperm(8)
    loss = class_mmd(z[:8], z[8:], batch.labels)
    mean, log_variance = head.mean(vectors)[8:], head.log_variance(vectors)[8:]
    loss = loss + 0.3 * information_bound(mean, log_variance, z[:8], order)
    gradients = torch.autograd.grad(loss, augmenter.learnt())
    wanted = [p.detach() - 0.5 * g for p, g in zip(augmenter.learnt(), gradients, strict=True)]
    torch.manual_seed(3)
    method._train_augmenter(client, batch)
    for parameter, value in zip(augmenter.learnt(), wanted, strict=True):
        assert torch.allclose(parameter, value, atol=1e-6)
    assert all(gradient.abs().max() > 0 for gradient in gradients)


def test_without_a_rate_there_is_no_second_stage(federation):
    spec = toy_spec("l2d", overrides={"l2d": {"l2d_lr": 0.0}})
    ours = federation(spec)
    visit(ours.method, ours.server, ours.clients[0])
    once = ours.clients[0].model.block1[1].num_batches_tracked.item()
    both = federation(toy_spec("l2d"))
    visit(both.method, both.server, both.clients[0])
    assert (once, both.clients[0].model.block1[1].num_batches_tracked.item()) == (2, 4)


def test_the_first_network_step_does_not_depend_on_the_augmenters_training(federation):
    training = TRAINING.changed({"rounds": 1, "local_steps": 1})
    states = []
    for settings in ({"l2d_beta": 0.1}, {"l2d_beta": 5.0}, {"l2d_lr": 0.0}):
        ours = federation(toy_spec("l2d", training=training, overrides={"l2d": settings}))
        state = run_rounds(ours)
        states.append({name: state[name] for name, _ in ours.server.model.named_parameters()})
    assert equal(states[0], states[1])
    assert equal(states[0], states[2])


def test_the_augmenter_stays_with_its_client_from_visit_to_visit(federation):
    training = TRAINING.changed({"clients_per_round": 1, "rounds": 6})
    ours = federation(toy_spec("l2d", training=training))
    last = {}
    for round in rounds(ours.method, ours.server, ours.clients):
        for client in ours.clients:
            memory = client.memory.get("l2d")
            if client.id in last and client not in round.chosen:
                assert equal(memory, last[client.id])
            if client.id in last and client in round.chosen:
                assert not equal(memory, last[client.id])
                fixed = [key for key in memory if key.startswith("fixed")]
                assert all(torch.equal(memory[key], last[client.id][key]) for key in fixed)
            if memory is not None:
                last[client.id] = copy_of(memory)
    assert len(last) > 1
    assert not any("fixed" in key or "shifts" in key for key in ours.server.state)
    assert not equal(*list(last.values())[:2])


def test_only_the_heads_are_added_to_what_travels(federation):
    ours, fedavg = federation(toy_spec("l2d")), federation(toy_spec("fedavg"))
    run_rounds(ours, 1)
    run_rounds(fedavg, 1)
    extra = 3 * 4 * 2 * (256 * 256 + 256)  # clients, bytes, heads
    for direction in ("up", "down"):
        key = f"{direction}/weights"
        assert ours.server.traffic.counts[key] == fedavg.server.traffic.counts[key] + extra


def test_random_branches_start_as_pytorch_initialises_them():
    torch.manual_seed(0)
    weights = torch.cat([RandomBranches().shrink[0].weight.flatten() for _ in range(20)])
    bound = (3 * 9 * 9) ** -0.5
    assert weights.abs().max().item() <= bound
    assert weights.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)


def test_cross_entropy_is_asked_of_the_methods_to_the_right(ready, monkeypatch):
    method, client, batch = ready(l2d_contrast=0.0, l2d_likelihood=0.0)
    batch, seen = method.augment(client, batch), []
    plain = Method.loss

    def watch(self, client, batch):
        seen.append((len(batch.images), batch.labels.tolist()))
        return plain(self, client, batch)

    monkeypatch.setattr(Method, "loss", watch)
    method.loss(client, batch)
    assert seen == [(16, batch.labels.tolist() * 2)]
