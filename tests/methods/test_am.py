"""Amplitude mix and the Fourier operations: identities, windows, oracles."""

import numpy as np
import pytest
import torch

from methods.ops.fourier import amplitudes, mix_amplitude
from tests.conftest import toy_spec

SIZES = [(32, 32), (31, 31), (16, 20), (15, 8)]


def images(count: int, height: int, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(height * 100 + width)
    return torch.rand(count, 3, height, width, generator=generator)


def full_spectrum(own, other, ratio, half):
    """The definition: shifted full spectrum, square window cut off at the border, real part."""
    height, width = own.shape[-2:]
    spectrum = torch.fft.fftshift(torch.fft.fft2(own.double()), dim=(-2, -1))
    amplitude, phase = spectrum.abs(), spectrum.angle()
    others = torch.fft.fftshift(torch.fft.fft2(other.double()), dim=(-2, -1)).abs()
    rows = slice(max(0, height // 2 - half), min(height, height // 2 + half + 1))
    columns = slice(max(0, width // 2 - half), min(width, width // 2 + half + 1))
    mixed = ratio * amplitude + (1 - ratio) * others
    amplitude[..., rows, columns] = mixed[..., rows, columns]
    out = torch.fft.ifft2(torch.fft.ifftshift(torch.polar(amplitude, phase), dim=(-2, -1)))
    return out.real, out.imag.abs().max().item()


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("window", [None, 0.0, 0.1, 0.3, 0.6])
def test_ratio_one_gives_the_image_back(height, width, window):
    own, other = images(2, height, width), 1 - images(2, height, width)
    mixed = mix_amplitude(own, amplitudes(other, window), 1.0, window)
    assert mixed.shape == own.shape
    assert torch.allclose(mixed, own, atol=1e-5)


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_the_zero_frequency_alone_exchanges_channel_means(height, width):
    own, other = images(2, height, width), images(2, height, width).flip(0) ** 2
    mixed = mix_amplitude(own, amplitudes(other, 0.0), 0.0, 0.0)
    assert torch.allclose(mixed.mean((2, 3)), other.mean((2, 3)), atol=1e-6)
    centred = mixed - mixed.mean((2, 3), keepdim=True)
    assert torch.allclose(centred, own - own.mean((2, 3), keepdim=True), atol=1e-6)


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("window", [0.0, 0.07, 0.2, 0.45, 0.5, 0.6, 1.0])
def test_a_window_is_the_square_of_the_definition(height, width, window):
    own, other = images(3, height, width), images(3, height, width).flip(0)
    half = int(window * min(height, width))
    expected, residue = full_spectrum(own, other, 0.3, half)
    mixed = mix_amplitude(own, amplitudes(other, window), 0.3, window)
    assert residue < 1e-6
    assert torch.allclose(mixed, expected.float(), atol=1e-5)


def test_the_whole_spectrum_is_the_widest_window_and_nothing_wraps_around():
    own, other = images(2, 32, 32), images(2, 32, 32).flip(0)
    whole = mix_amplitude(own, amplitudes(other), 0.25)
    expected, _ = full_spectrum(own, other, 0.25, 32)
    assert torch.allclose(whole, expected.float(), atol=1e-5)
    for window in (0.5, 0.6, 1.0):
        wide = mix_amplitude(own, amplitudes(other, window), 0.25, window)
        assert torch.allclose(wide, whole, atol=1e-6)


@pytest.mark.parametrize(
    ("window", "shape"), [(0.0, (1, 1)), (0.01, (5, 3)), (0.6, (224, 113)), (None, (224, 113))]
)
def test_how_much_a_window_holds_at_224_pixels(window, shape):
    assert amplitudes(torch.rand(1, 3, 224, 224), window).shape == (1, 3, *shape)


def test_ratios_are_per_image_and_the_phase_stays():
    own, other = images(3, 16, 16), images(3, 16, 16).flip(0)
    ratio = torch.tensor([1.0, 0.0, 0.5])
    mixed = mix_amplitude(own, amplitudes(other), ratio)
    assert torch.allclose(mixed[0], own[0], atol=1e-5)
    assert torch.allclose(amplitudes(mixed)[1], amplitudes(other)[1], atol=1e-3)
    middle = (amplitudes(own)[2] + amplitudes(other)[2]) / 2
    assert torch.allclose(amplitudes(mixed)[2], middle, atol=1e-3)
    before, after = torch.fft.rfft2(own), torch.fft.rfft2(mixed)
    assert torch.allclose(torch.sgn(before), torch.sgn(after), atol=1e-3)


def test_a_black_image_takes_the_amplitude_with_phase_zero():
    mixed = mix_amplitude(torch.zeros(1, 3, 8, 8), torch.ones(1, 3, 8, 5), 0.0)
    expected = torch.zeros(1, 3, 8, 8)
    expected[..., 0, 0] = 1
    assert torch.allclose(mixed, expected, atol=1e-6)


def test_a_batch_mixes_with_itself_in_half_of_the_cases(federation):
    ours = federation(toy_spec("am"))
    client = ours.clients[0]
    batch = client.train.training_batch(np.arange(8), torch.Generator())
    torch.manual_seed(0)
    outs = [ours.method.augment(client, batch) for _ in range(200)]
    assert 60 < sum(out is batch for out in outs) < 140
    mixed = next(out for out in outs if out is not batch)
    assert torch.equal(mixed.labels, batch.labels)
    assert mixed.images.shape == batch.images.shape
    assert not torch.allclose(mixed.images, batch.images, atol=1e-3)


def test_draws_follow_the_definition(federation):
    ours = federation(toy_spec("am", overrides={"am": {"am_p": 1.0}}))
    client = ours.clients[0]
    batch = client.train.training_batch(np.arange(8), torch.Generator())
    torch.manual_seed(4)
    mixed = ours.method.augment(client, batch).images
    torch.manual_seed(4)
    torch.rand(())
    order, ratio = torch.randperm(8), torch.rand(8)
    for k in range(8):
        expected, _ = full_spectrum(batch.images[[k]], batch.images[order[[k]]], ratio[k], 32)
        assert torch.allclose(mixed[k], expected[0].float(), atol=1e-4)
