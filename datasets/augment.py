"""Image operations on whole batches: each sample has its own parameters, the work is shared.

What torchvision does to one image at a time is done here to a batch, with the same result for the
same parameters. Two layouts are used. Stored images are uint8 (B, 3, H, W), channels-last in
memory, which is what the 8-bit resampling kernel is fastest on. Colours are changed on *planes*:
contiguous float32 (B, 3, H, W) of values 0..255, in place, because there every step is one
vectorised pass.
"""

from __future__ import annotations

import dataclasses
import math

import torch
import torch.nn.functional as F

CROP_ATTEMPTS = 10
"""After so many crops that do not fit, torchvision takes the centre; so do we."""

GREY = (0.2989, 0.587, 0.114)
"""Luma weights as torchvision has them."""


def uniforms(generator: torch.Generator, count: int, columns: int) -> torch.Tensor:
    """Numbers from [0, 1), a row for each sample, on the CPU, where parameters are worked out."""
    shape = (count, columns)
    drawn = torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
    return drawn.cpu()


def draw_chosen(generator: torch.Generator, count: int, probability: float) -> torch.Tensor:
    """True with this probability, for each sample."""
    return uniforms(generator, count, 1)[:, 0] < probability


def draw_crops(
    generator: torch.Generator,
    count: int,
    height: int,
    width: int,
    scale: tuple[float, float],
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> torch.Tensor:
    """Boxes (count, 4) of top, left, height, width as torchvision's RandomResizedCrop draws them.

    Area and aspect are drawn again while the box does not fit; all attempts are drawn at once.
    """
    draws = uniforms(generator, count, 2 * CROP_ATTEMPTS + 2)
    share = scale[0] + (scale[1] - scale[0]) * draws[:, :CROP_ATTEMPTS]
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = torch.exp(low + (high - low) * draws[:, CROP_ATTEMPTS:-2])
    area = height * width * share
    widths, heights = torch.sqrt(area * aspect).round(), torch.sqrt(area / aspect).round()
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first = fits.int().argmax(1, keepdim=True)
    crop_height, crop_width = heights.gather(1, first)[:, 0], widths.gather(1, first)[:, 0]
    top = torch.floor(draws[:, -2] * (height - crop_height + 1))
    left = torch.floor(draws[:, -1] * (width - crop_width + 1))
    boxes = torch.stack((top, left, crop_height, crop_width), 1).long()
    boxes[~fits.any(1)] = torch.tensor(_central_crop(height, width, ratio))
    return boxes


def _central_crop(height: int, width: int, ratio: tuple[float, float]) -> tuple[int, int, int, int]:
    """The largest central box whose aspect is allowed."""
    crop_height, crop_width = height, width
    if width / height < ratio[0]:
        crop_height = round(width / ratio[0])
    elif width / height > ratio[1]:
        crop_width = round(height * ratio[1])
    return (height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width


def resize(images: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """Antialiased bilinear, as torchvision resizes uint8 images; 8-bit on the CPU stays 8-bit."""
    if images.shape[-2:] == (height, width):
        return images
    if images.device.type == "cpu":
        return F.interpolate(images, (height, width), mode="bilinear", antialias=True)
    return F.interpolate(images.float(), (height, width), mode="bilinear", antialias=True).round_()


def crop_and_resize(
    images: torch.Tensor, boxes: torch.Tensor, flipped: torch.Tensor, size: int
) -> torch.Tensor:
    """Planes (B, 3, size, size): each image cut to its box, resized, mirrored where `flipped`.

    On the CPU the 8-bit kernel, called for each image, is some twenty times faster than matrix
    products and four times faster than `grid_sample`, which besides does not antialias. Elsewhere
    calls are dear and arithmetic is cheap: two matrix products for the whole batch.
    """
    if images.device.type != "cpu":
        return resample(images, boxes, flipped, size)
    planes = torch.empty((len(images), 3, size, size))
    for k, (top, left, height, width) in enumerate(boxes.tolist()):
        part = images[k : k + 1, :, top : top + height, left : left + width]
        part = resize(part, size, size)
        planes[k] = part[0].flip(-1) if flipped[k] else part[0]
    return planes


def resample(
    images: torch.Tensor, boxes: torch.Tensor, flipped: torch.Tensor, size: int
) -> torch.Tensor:
    """`crop_and_resize` as rows × image × columns, with each sample's own weights.

    Rounded like 8-bit images, so that devices agree to one level.
    """
    height, width = images.shape[-2:]
    boxes, flipped = boxes.to(images.device), flipped.to(images.device)
    rows = _filter(boxes[:, 0], boxes[:, 2], height, size)
    columns = _filter(boxes[:, 1], boxes[:, 3], width, size)
    columns = torch.where(flipped[:, None, None], columns.flip(1), columns)
    planes = images.to(torch.float32, memory_format=torch.contiguous_format)
    planes = rows[:, None] @ planes @ columns.mT[:, None]
    return planes.round_()


def _filter(start: torch.Tensor, length: torch.Tensor, total: int, size: int) -> torch.Tensor:
    """Triangle-filter weights (B, size, total) that resize [start, start + length) to `size`."""
    step = (length / size)[:, None, None]
    place = torch.arange(total, device=start.device) + 0.5
    centre = step * (torch.arange(size, device=start.device)[:, None] + 0.5)
    centre = centre + start[:, None, None]
    weights = (1 - (place - centre).abs() / step.clamp_min(1)).clamp_min_(0)
    inside = (place > start[:, None]) & (place < (start + length)[:, None])
    weights = weights * inside[:, None]
    return weights / weights.sum(2, keepdim=True)


def mirror(images: torch.Tensor, flipped: torch.Tensor) -> torch.Tensor:
    """Left and right exchanged where `flipped`; a new tensor."""
    mirrored = images.clone()
    for k in flipped.nonzero()[:, 0].tolist():
        mirrored[k] = images[k].flip(-1)
    return mirrored


def translate(
    images: torch.Tensor, offsets: torch.Tensor, chosen: torch.Tensor, enlarged: int
) -> torch.Tensor:
    """Where `chosen`: enlarge to side `enlarged`, keep a window of the old size; a new tensor."""
    height, width = images.shape[-2:]
    moved = images.clone()
    for k in chosen.nonzero()[:, 0].tolist():
        top, left = offsets[k].tolist()
        larger = resize(images[k : k + 1], enlarged, enlarged)
        moved[k] = larger[0, :, top : top + height, left : left + width]
    return moved


@dataclasses.dataclass(frozen=True)
class Colours:
    """Drawn colour changes: factors (B, 4), columns as in CHANGES; each sample's order of them."""

    factors: torch.Tensor
    orders: list[list[int]]

    def part(self, chosen: slice) -> Colours:
        return Colours(self.factors[chosen], self.orders[chosen])


@dataclasses.dataclass(frozen=True)
class ColourJitter:
    """Ranges of the factors, each uniform, applied in random order, to a share of the images."""

    brightness: tuple[float, float]
    contrast: tuple[float, float]
    saturation: tuple[float, float]
    hue: tuple[float, float]
    probability: float = 1.0

    @classmethod
    def of(cls, strength: float, hue: float, probability: float = 1.0) -> ColourJitter:
        """One strength for the first three: factors 1 ± strength; hue ± its own."""
        around = (max(0.0, 1 - strength), 1 + strength)
        return cls(around, around, around, (-hue, hue), probability)

    def draw(
        self, generator: torch.Generator, count: int, device: torch.device | str = "cpu"
    ) -> Colours:
        draws = uniforms(generator, count, 9)
        ranges = (self.brightness, self.contrast, self.saturation, self.hue)
        low, high = torch.tensor(ranges, dtype=draws.dtype).unbind(1)
        factors = (low + (high - low) * draws[:, :4]).to(device, torch.float32)
        orders = draws[:, 4:8].argsort(1).tolist()
        for k in (draws[:, 8] >= self.probability).nonzero()[:, 0].tolist():
            orders[k] = []
        return Colours(factors, orders)


def adjust_colours(planes: torch.Tensor, colours: Colours) -> torch.Tensor:
    """Each sample's colour changes in its own order, in place; an empty order changes nothing."""
    for turn in range(len(CHANGES)):
        turns = [order[turn] if order else None for order in colours.orders]
        for kind, change in enumerate(CHANGES):
            due = [k for k, wanted in enumerate(turns) if wanted == kind]
            if len(due) == len(planes):
                change(planes, colours.factors[:, kind])
            elif due:
                planes[due] = change(planes[due], colours.factors[due, kind])
    return planes


def adjust_brightness(planes: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Blend with black by per-sample factors, in place."""
    return planes.mul_(factors[:, None, None, None]).clamp_(0, 255)


def adjust_contrast(planes: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Blend with the image's mean grey, in place."""
    mean = planes.mean((2, 3)) @ planes.new_tensor(GREY)
    shift = (1 - factors) * mean
    planes.mul_(factors[:, None, None, None]).add_(shift[:, None, None, None])
    return planes.clamp_(0, 255)


def adjust_saturation(planes: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Blend with the grey image, in place."""
    other = grey(planes).mul_((1 - factors)[:, None, None])
    return planes.mul_(factors[:, None, None, None]).add_(other[:, None]).clamp_(0, 255)


def adjust_hue(planes: torch.Tensor, shifts: torch.Tensor) -> torch.Tensor:
    """Turn the hue by `shifts` of a full circle, in place; saturation and value stay.

    Equals the way through HSV and back. The hue is kept in sixths of the circle, in which each
    channel is the lowest one plus the span times a ramp clamped to [0, 1].
    """
    red, green, blue = planes.unbind(1)
    high = torch.maximum(red, green)
    torch.maximum(high, blue, out=high)
    low = torch.minimum(red, green)
    torch.minimum(low, blue, out=low)
    span = high - low
    hue = (red - green).add_(span, alpha=4)
    hue.lerp_((blue - red).add_(span, alpha=2), _same(high, green))
    hue.lerp_(green - blue, _same(high, red))
    hue.div_((span * 6).clamp_min_(1e-5)).add_((shifts + 1)[:, None, None]).frac_().mul_(6)
    for channel, (centre, start, sign) in enumerate(((3, low, 1), (2, high, -1), (4, high, -1))):
        ramp = (hue - centre).abs_().sub_(1).clamp_(0, 1)
        torch.addcmul(start, span, ramp, value=sign, out=planes[:, channel])
    return planes


CHANGES = (adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue)


def _same(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """1.0 where equal, else 0.0: on the CPU five times faster than a boolean mask and `where`."""
    return torch.eq(one, other, out=torch.empty_like(one))


def grey(planes: torch.Tensor) -> torch.Tensor:
    """Luma (B, H, W)."""
    red, green, blue = planes.unbind(1)
    return (red * GREY[0]).add_(green, alpha=GREY[1]).add_(blue, alpha=GREY[2])


def grayscale(planes: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Grey in all three channels where `chosen`, in place."""
    for k in chosen.nonzero()[:, 0].tolist():
        planes[k] = grey(planes[k : k + 1])
    return planes
