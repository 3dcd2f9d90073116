"""Amplitude and phase of images: the amplitude carries style, the phase carries content.

Images are real, so half of each spectrum says it all: amplitudes are (B, C, rows, columns) over the
frequencies of `torch.fft.rfft2`, whole or only those of a low-frequency window. A window is given
as the share L of FDA and ELCFS: after shifting the zero frequency to the centre, a square of half
width b = ⌊L · min(H, W)⌋ around it, cut off at the border of the spectrum. L = 0 is the zero
frequency alone, the channel means; L ≥ 0.5 is everything. (A public port of ELCFS lets the start of
the window become negative and wrap around, so that L = 0.6 exchanges fewer frequencies than 0.5.)
"""

from __future__ import annotations

import torch


def amplitudes(images: torch.Tensor, window: float | None = None) -> torch.Tensor:
    """Amplitude spectra, of all frequencies or of those in a window, which is what a client that
    shares them sends: (2b + 1) · (b + 1) numbers a channel, half of the square and its axis."""
    spectrum = torch.fft.rfft2(images)
    if window is not None:
        rows, columns = _frequencies(images, window)
        spectrum = spectrum[..., rows[:, None], columns]
    return spectrum.abs()


def mix_amplitude(
    images: torch.Tensor,
    other_amplitude: torch.Tensor,
    ratio: torch.Tensor | float,
    window: float | None = None,
) -> torch.Tensor:
    """Images with amplitude ratio · own + (1 − ratio) · other in the window and their own phase.

    `other_amplitude` comes from `amplitudes` with the same window; `ratio` is a number or one per
    image. Ratio 1 gives the images back, up to rounding.
    """
    ratio = torch.as_tensor(ratio, dtype=images.dtype, device=images.device).view(-1, 1, 1, 1)
    spectrum = torch.fft.rfft2(images)
    if window is None:
        changed = _mixed(spectrum, other_amplitude, ratio)
    else:
        rows, columns = _frequencies(images, window)
        inside = (..., rows[:, None], columns)
        changed = spectrum.clone()
        changed[inside] = _mixed(spectrum[inside], other_amplitude, ratio)
    return torch.fft.irfft2(changed, s=images.shape[-2:])


def _mixed(own: torch.Tensor, other: torch.Tensor, ratio: torch.Tensor) -> torch.Tensor:
    """The same phase, of a zero 0, with the amplitudes mixed."""
    direction = torch.where(own == 0, 1, torch.sgn(own))
    return direction * (ratio * own.abs() + (1 - ratio) * other)


def _frequencies(images: torch.Tensor, window: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and columns of the half spectrum in the window: −b … b and 0 … b."""
    height, width = images.shape[-2:]
    half = int(window * min(height, width))
    rows = torch.arange(height, device=images.device)
    if 2 * half + 1 < height:
        rows = torch.arange(-half, half + 1, device=images.device) % height
    return rows, torch.arange(min(half, width // 2) + 1, device=images.device)
