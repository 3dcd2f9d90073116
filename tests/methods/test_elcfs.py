"""ELCFS: amplitude mixing, the episode's gradient, what is shared, partial participation."""

import copy
import types

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmark.errors import UserError
from benchmark.federation import rounds
from benchmark.method import Method, compose, make_method
from benchmark.state import batchnorm_keys, copy_of, parameter_names
from datasets.samples import Batch
from methods.ops.banks import draw_rows, part_of
from methods.ops.displaced import at
from methods.ops.fourier import amplitudes, mix_amplitude
from tests.conftest import TRAINING, toy_spec
from tests.methods.parts import three_of_six
from tests.test_federation import equal, run_rounds

ONE_STEP = TRAINING.changed({"rounds": 1, "local_steps": 1, "momentum": 0.0})
PARTIAL = three_of_six(rounds=4)


def elcfs(federation, training=TRAINING, method="elcfs", **hparams):
    return federation(toy_spec(method, training=training, overrides={"elcfs": hparams}))


def visited(ours, number=0):
    """A client at the start of a visit, with the batch its first step would see."""
    client = ours.clients[number]
    ours.method.prepare(ours.server, ours.clients)
    ours.method.receive(ours.server, client)
    client.model.train()
    client.lr = client.training.lr
    batch = ours.method.augment(client, next(ours.method.batches(client)))
    return client, batch


def gradient(model, loss):
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters()}


@pytest.mark.parametrize("shape", [(8, 8), (9, 9), (8, 11), (13, 6)])
@pytest.mark.parametrize("window", [0.0, 0.1, 0.3])
def test_ratio_one_is_the_identity_and_any_ratio_keeps_the_phase(shape, window):
    torch.manual_seed(0)
    images, others = torch.rand(4, 3, *shape), torch.rand(4, 3, *shape)
    amplitude = amplitudes(others, window)
    assert torch.allclose(mix_amplitude(images, amplitude, 1.0, window), images, atol=1e-5)
    mixed = mix_amplitude(images, amplitude, 0.3, window)
    assert not torch.allclose(mixed, images, atol=1e-3)
    before, after = torch.fft.rfft2(images), torch.fft.rfft2(mixed)
    assert torch.allclose(torch.sgn(before), torch.sgn(after), atol=1e-3)


@pytest.mark.parametrize("shape", [(8, 8), (9, 9), (12, 9)])
def test_it_is_the_published_transform(shape):
    """The code's: shift, replace the centred square, shift back, invert with the own phase."""
    torch.manual_seed(1)
    image, other = torch.rand(1, 3, *shape), torch.rand(1, 3, *shape)
    half, ratio = int(0.2 * min(shape)), 0.4
    own = np.fft.fft2(image[0].numpy().astype(np.float64))
    away = np.abs(np.fft.fft2(other[0].numpy().astype(np.float64)))
    amplitude = np.fft.fftshift(np.abs(own), axes=(1, 2))
    away = np.fft.fftshift(away, axes=(1, 2))
    rows, columns = (slice(n // 2 - half, n // 2 + half + 1) for n in shape)
    square = (slice(None), rows, columns)
    amplitude[square] = ratio * amplitude[square] + (1 - ratio) * away[square]
    amplitude = np.fft.ifftshift(amplitude, axes=(1, 2))
    expected = np.fft.ifft2(amplitude * np.exp(1j * np.angle(own)))
    assert np.abs(expected.imag).max() < 1e-6
    ours = mix_amplitude(image, amplitudes(other, 0.2), ratio, 0.2)[0].numpy()
    assert np.abs(ours - expected.real).max() < 1e-5


@pytest.mark.parametrize("size", [8, 9])
def test_the_zero_frequency_alone_swaps_channel_means(size):
    torch.manual_seed(2)
    images, others = torch.rand(5, 3, size, size), torch.rand(5, 3, size, size)
    mixed = mix_amplitude(images, amplitudes(others, 0.0), 0.0, 0.0)
    assert torch.allclose(mixed.mean((2, 3)), others.mean((2, 3)), atol=1e-6)
    centred = [x - x.mean((2, 3), keepdim=True) for x in (mixed, images)]
    assert torch.allclose(*centred, atol=1e-6)


def test_a_batch_is_mixed_before_normalisation_with_the_others_amplitudes(federation):
    """Zero frequency, full replacement: each image has the channel means of one that another client
    sent, up to what clipping to the pixel range changes."""
    ours = elcfs(federation, elcfs_window=0.0, elcfs_ratio_high=0.0)
    client, batch = visited(ours)
    to_pixels = client.train.transform.to_pixels
    mixed = to_pixels(batch.extras["elcfs"])
    assert mixed.min() >= -1e-6 and mixed.max() <= 1 + 1e-6
    sent = torch.cat([bank[0] for bank in client.memory["elcfs"]]).flatten(1) / 32**2
    own = to_pixels(batch.images)
    for image, before in zip(mixed, own, strict=True):
        unclipped = before - before.mean((1, 2), keepdim=True) + sent[:, :, None, None]
        assert (unclipped.clamp(0, 1) - image).abs().amax((1, 2, 3)).min() < 1e-5
    same = elcfs(federation, elcfs_ratio_low=1.0)
    client, batch = visited(same)
    assert torch.allclose(to_pixels(batch.extras["elcfs"]), to_pixels(batch.images), atol=1e-5)


def test_the_outer_loss_reaches_the_real_models_gradient(federation):
    """∇L(w; x) + ∇L(w'; x'), the second computed in a copy that holds w'."""
    ours = elcfs(federation, elcfs_meta_lr=0.05, elcfs_window=0.1)
    client, batch = visited(ours)
    total = gradient(client.model, ours.method.loss(client, batch))
    inner = gradient(client.model, F.cross_entropy(client.model(batch.images), batch.labels))
    twin = copy.deepcopy(client.model)
    with torch.no_grad():
        for name, weight in twin.named_parameters():
            weight -= 0.05 * inner[name]
    outer = gradient(twin, F.cross_entropy(twin(batch.extras["elcfs"]), batch.labels))
    still = gradient(
        client.model, F.cross_entropy(client.model(batch.extras["elcfs"]), batch.labels)
    )
    assert any(not torch.allclose(total[name], inner[name], atol=1e-4) for name in total)
    assert any(not torch.allclose(outer[name], still[name], atol=1e-4) for name in total)
    for name in total:
        assert torch.allclose(total[name], inner[name] + outer[name], atol=1e-5)


def test_without_a_virtual_step_and_a_transform_the_gradient_is_twice_fedavgs(federation):
    ours = elcfs(federation, elcfs_meta_lr=0.0)
    client, batch = visited(ours)
    batch.extras["elcfs"] = batch.images
    total = gradient(client.model, ours.method.loss(client, batch))
    single = gradient(client.model, F.cross_entropy(client.model(batch.images), batch.labels))
    for name in total:
        assert torch.allclose(total[name], 2 * single[name], atol=1e-6)
    averaged = elcfs(federation, elcfs_meta_lr=0.0, elcfs_mean=True)
    client, batch = visited(averaged)
    batch.extras["elcfs"] = batch.images
    mean = gradient(client.model, averaged.method.loss(client, batch))
    assert all(torch.allclose(mean[name], single[name], atol=1e-6) for name in mean)


def test_ratio_one_without_a_virtual_step_is_fedavg_at_twice_the_rate(federation):
    training = TRAINING.changed({"momentum": 0.0})
    ours = elcfs(federation, training, elcfs_meta_lr=0.0, elcfs_ratio_low=1.0)
    doubled = federation(toy_spec("fedavg", training=training.changed({"lr": 0.1})))
    one, other = run_rounds(ours), run_rounds(doubled)
    assert all(torch.allclose(one[key], other[key], atol=1e-4) for key in one)


@pytest.mark.parametrize(("first_order", "expected"), [(True, -0.5), (False, 0.25)])
def test_scalar_episode(monkeypatch, first_order, expected):
    """L = ½(w − x)², w = 2, x = 1, x' = 3, β = 0.5: w' = 1.5 and w' − x' = −1.5; the total gradient
    is 1 − 1.5, or with the derivative of the step 1 − (1 − β) · 1.5."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, 2.0)
    client = types.SimpleNamespace(model=model, lr=0.5)
    monkeypatch.setattr(
        Method,
        "loss",
        lambda self, client, batch: (client.model.weight - batch.images).square() / 2,
    )
    hparams = {"elcfs_meta_lr": 1.0, "elcfs_first_order": first_order}
    method = make_method("elcfs", hparams)
    batch = Batch(torch.ones(1, 1), torch.zeros(1), torch.zeros(1))
    batch.extras["elcfs"] = torch.full((1, 1), 3.0)
    method.loss(client, batch).sum().backward()
    assert model.weight.grad.item() == pytest.approx(expected, abs=1e-6)


def test_large_inner_gradients_are_clipped(federation):
    ours = elcfs(federation, elcfs_meta_lr=0.05, elcfs_clip=1e-3)
    client, batch = visited(ours)
    moved = ours.method._virtual_step(client, Method.loss(ours.method, client, batch))
    for name, weight in client.model.named_parameters():
        assert (moved[name] - weight).abs().max() <= 0.05 * 1e-3 + 1e-7


def test_displaced_losses_see_the_tensors_everywhere_and_leave_the_model_alone():
    model = torch.nn.Linear(2, 1)
    before = copy_of(model.state_dict())
    other = {name: weight + 1 for name, weight in model.named_parameters()}
    found = at(model, other, lambda: sum(weight.sum() for weight in model.parameters()))
    assert found.item() == pytest.approx(sum(v.sum().item() for v in before.values()) + 3, abs=1e-5)
    assert equal(copy_of(model.state_dict()), before)
    found.backward()
    assert torch.equal(model.weight.grad, torch.ones(1, 2))


def test_without_the_outer_loss_it_is_fedavg_bit_for_bit(federation):
    ours = elcfs(federation, elcfs_outer=0.0)
    assert equal(run_rounds(ours), run_rounds(federation(toy_spec("fedavg"))))
    assert set(ours.server.traffic.counts) == {"up/weights", "down/weights"}
    assert not equal(run_rounds(elcfs(federation)), ours.server.state)


def test_the_outer_pass_leaves_running_statistics_alone(federation):
    plain = federation(toy_spec("fedavg", training=ONE_STEP))
    fedavg, keys = run_rounds(plain), batchnorm_keys(plain.server.model)
    frozen = run_rounds(elcfs(federation, ONE_STEP))
    moving = run_rounds(elcfs(federation, ONE_STEP, elcfs_outer_statistics=True))
    for key in keys.statistics | keys.counters:
        assert torch.equal(frozen[key], fedavg[key])
        assert not torch.equal(moving[key], fedavg[key])


@pytest.mark.parametrize(("window", "numbers"), [(0.01, 1), (0.1, 28)])
def test_what_is_shared_is_the_windows_half_once(federation, window, numbers):
    """b = 0: 12 B an image, the means; b = 3 at 32 pixels: 7 · 4 numbers a channel, no more than
    the whole square of the spec's cost line."""
    ours = elcfs(federation, elcfs_window=window)
    run_rounds(ours, 1)
    early = dict(ours.server.traffic.counts)
    count = sum(max(1, client.size // 8) for client in ours.clients)
    assert early["up/amplitude"] == 4 * 3 * numbers * count
    assert early["down/amplitude"] == 2 * early["up/amplitude"]
    half = int(window * 32)
    assert early["up/amplitude"] <= (2 * half + 1) ** 2 * 3 * 4 * count
    kinds = {kind.split("/")[1] for kind in early} - {"weights"}
    assert kinds == set(compose("elcfs").info.shares)


def test_at_224_pixels_an_image_costs_180_bytes_of_the_602_kilobytes_of_its_spectrum():
    found = amplitudes(torch.rand(1, 3, 224, 224), 0.01)
    assert found.numel() * 4 == 180
    assert amplitudes(torch.rand(1, 3, 224, 224), 0.0).numel() == 3


def test_banks_hold_the_other_clients_images_and_on_request_the_own(federation):
    ours = elcfs(federation)
    ours.method.prepare(ours.server, ours.clients)
    first, second, third = (client.memory["elcfs"] for client in ours.clients)
    assert [len(bank[0]) for bank in first] == [39 // 8] * 2
    assert first[0][0] is third[1][0] and second[0][0] is third[0][0]
    tints = [bank[0].flatten(1).mean(0).argmax().item() for bank in first]
    assert tints == [1, 2]  # green and blue, for the red client
    own = elcfs(federation, elcfs_own=True)
    own.method.prepare(own.server, own.clients)
    assert [len(client.memory["elcfs"]) for client in own.clients] == [3, 3, 3]


def test_clients_count_alike_however_many_amplitudes_they_sent():
    torch.manual_seed(0)
    banks = [[torch.zeros(1, 3)], [torch.zeros(99, 3)]]
    rows = draw_rows(banks, torch.randint(2, (4000,)))
    assert rows.min() == 0 and rows.max() == 99
    assert 0.46 < (rows == 0).float().mean() < 0.54
    later = torch.bincount(rows[rows > 0], minlength=100)[1:]
    assert later.min() > 0


def test_a_part_of_samples_is_those_samples(federation):
    client = federation(toy_spec()).clients[0]
    part = part_of(client.train, np.array([5, 2, 2]))
    whole, chosen = (next(s.evaluation_batches()) for s in (client.train, part))
    assert torch.equal(chosen.images, whole.images[[5, 2, 2]])
    assert torch.equal(chosen.labels, whole.labels[[5, 2, 2]])
    assert len(client.train) == 39


def test_every_client_has_all_amplitudes_before_it_is_first_sampled(federation):
    ours = federation(toy_spec("elcfs", **PARTIAL))
    met, banks = set(), None
    for round in rounds(ours.method, ours.server, ours.clients):
        assert len(round.chosen) == 3
        assert [len(client.memory["elcfs"]) for client in ours.clients] == [5] * 6
        held = {
            (client.id, number): bank[0].clone()
            for client in ours.clients
            for number, bank in enumerate(client.memory["elcfs"])
        }
        if banks is not None:
            assert equal(held, banks)  # sampled or not
        else:
            once = ours.server.traffic.counts["down/amplitude"]
        banks = held
        met |= {client.id for client in round.chosen}
    assert len(met) > 3
    assert ours.server.traffic.counts["down/amplitude"] == once


def test_with_silobn_the_parameters_are_elcfss_and_the_statistics_stay(federation):
    alone, both = elcfs(federation), elcfs(federation, method="elcfs+silobn")
    one, other = run_rounds(alone), run_rounds(both)
    keys = batchnorm_keys(both.server.model)
    assert set(both.clients[0].memory["kept"]) == keys.statistics | keys.counters
    assert all(torch.equal(one[name], other[name]) for name in parameter_names(both.server.model))
    assert not all(torch.equal(one[key], other[key]) for key in keys.statistics)


def test_bad_settings_say_what_to_do(federation):
    alone = federation(toy_spec("elcfs", partition="pooled"))
    with pytest.raises(UserError, match="choose a partition with two clients"):
        run_rounds(alone)
    with pytest.raises(UserError, match=r"elcfs_ratio_low=.* must not exceed"):
        run_rounds(elcfs(federation, elcfs_ratio_low=0.5, elcfs_ratio_high=0.1))
