"""From stored uint8 images to what a network sees, whole batches at a time.

Every recipe is named after the paper or code it comes from. All of them evaluate the same way:
resized to exactly size × size (the aspect ratio is not kept), then normalised. Training draws
parameters for each sample from the generator it is given and from nothing else.

Differences from the sources that all recipes share: random crops are taken from the stored image,
which for pictures of varying shape is already square, so a crop's aspect ratio is relative to the
picture's; and colours are changed on float pixels, where Pillow and OpenCV round to 8 bits after
each step (a difference of about one level of 255).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch

from benchmark.registry import Registry
from datasets import augment


class Transform:
    """A recipe: how training and evaluation images are prepared at one image size."""

    mean: ClassVar[tuple[float, float, float]] = (0.5, 0.5, 0.5)
    std: ClassVar[tuple[float, float, float]] = (0.5, 0.5, 0.5)

    def __init__(self, size: int, device: torch.device | str = "cpu"):
        self.size = size
        scale = torch.tensor(self.std, device=device).view(1, 3, 1, 1)
        shift = torch.tensor(self.mean, device=device).view(1, 3, 1, 1)
        self._factor = 1 / (255 * scale)
        self._offset = -shift / scale

    @property
    def stored_size(self) -> int:
        """The side at which images of varying size are stored.

        The network's own size, for the crop recipes too: evaluation then sees exactly what a
        direct resize of the file gives. Measured on photographs of 640 × 427: storing 256 for 224
        puts evaluation images 40 dB from the direct resize, and brings training crops of 70 % to
        100 % only from 35.6 to 36.4 dB of crops of the file, for 31 % more bytes.
        """
        return self.size

    def train(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """A training batch from uint8 (B, 3, H, W) images; draws come from `generator` alone."""
        return self.evaluate(images)

    def evaluate(self, images: torch.Tensor) -> torch.Tensor:
        """A test batch: no randomness."""
        return self.normalise(augment.resize(images, self.size, self.size))

    def normalise(self, images: torch.Tensor) -> torch.Tensor:
        """Pixels 0..255 to the network's scale, in the memory layout they come in."""
        if not images.is_contiguous(memory_format=torch.channels_last):
            return torch.addcmul(self._offset, images, self._factor)
        # Rows of width × 3 numbers: a pass over an innermost axis of 3 is nine times slower.
        width = images.shape[-1]
        offset, factor = self._offset.flatten().repeat(width), self._factor.flatten().repeat(width)
        rows = torch.addcmul(offset, images.permute(0, 2, 3, 1).flatten(2), factor)
        return rows.unflatten(2, (width, 3)).permute(0, 3, 1, 2)

    def to_pixels(self, inputs: torch.Tensor) -> torch.Tensor:
        """Back from the network's scale to [0, 1]."""
        return (inputs - self._offset) / (self._factor * 255)

    def from_pixels(self, pixels: torch.Tensor) -> torch.Tensor:
        """From [0, 1] to the network's scale."""
        return pixels * (self._factor * 255) + self._offset


transforms: Registry[type[Transform]] = Registry("transform", "datasets")


def register(name: str) -> Callable[[type[Transform]], type[Transform]]:
    return transforms.register(name)


@register("digits")
class Digits(Transform):
    """Digits: normalise to [-1, 1], nothing else."""


@register("imagenet")
class ImageNet(Transform):
    """No augmentation: resize, normalise as networks pretrained on ImageNet expect."""

    mean = (0.485, 0.456, 0.406)
    std = (0.229, 0.224, 0.225)


class Augmented(ImageNet):
    """Crop and resize, mirror, change colours, turn grey: each step as a recipe sets it."""

    crop: ClassVar[tuple[float, float] | None] = None
    """Share of the area that a random resized crop keeps, aspect 3/4 to 4/3; None: no crop."""
    flip: ClassVar[float] = 0.5
    """Probability of a mirrored image."""
    jitter: ClassVar[augment.ColourJitter | None] = None
    """Ranges of the colour changes; None: none."""
    grayscale: ClassVar[float] = 0.0
    """Probability of a grey image."""

    def train(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        count, (height, width) = len(images), images.shape[-2:]
        boxes = torch.tensor((0, 0, height, width)).expand(count, 4)
        if self.crop is not None:
            boxes = augment.draw_crops(generator, count, height, width, self.crop)
        flipped = augment.draw_chosen(generator, count, self.flip)
        colours = self.jitter and self.jitter.draw(generator, count, images.device)
        greyed = augment.draw_chosen(generator, count, self.grayscale)
        outputs = torch.empty((count, self.size, self.size, 3), device=images.device)
        outputs = outputs.permute(0, 3, 1, 2)
        # One image at a time stays in the processor's cache and allocates little; elsewhere the
        # whole batch, for few calls.
        step = 1 if images.device.type == "cpu" else max(1, count)
        for start in range(0, count, step):
            part = slice(start, start + step)
            planes = augment.crop_and_resize(images[part], boxes[part], flipped[part], self.size)
            if colours is not None:
                augment.adjust_colours(planes, colours.part(part))
            augment.grayscale(planes, greyed[part])
            outputs[part] = planes.mul_(self._factor).add_(self._offset)
        return outputs


@register("domainbed")
class DomainBed(Augmented):
    """DomainBed: crop 70-100 %, flip, colour jitter 0.3, grayscale 10 %.

    facebookresearch/DomainBed `domainbed/datasets.py`. There the images of source domains that are
    held out for validation are augmented too; here validation always uses `evaluate`.
    """

    crop = (0.7, 1.0)
    jitter = augment.ColourJitter.of(0.3, hue=0.3)
    grayscale = 0.1


@register("jigen")
class JiGen(Augmented):
    """JiGen: crop 80-100 %, flip, colour jitter 0.4, grayscale 10 %.

    fmcarlucci/JigenDG: the ResNet-18 command of `run_PACS_photo.sh` (the arguments' own defaults
    have no flip and no jitter). JiGen turns each of its nine tiles grey on its own; here the whole
    image, as the codes built on JiGen's do (DeLightCMU/RSC `data_helper.py`). FedADG's paper names
    this protocol, its code another one: see `fedadg`.
    """

    crop = (0.8, 1.0)
    jitter = augment.ColourJitter.of(0.4, hue=0.4)
    grayscale = 0.1


@register("csac")
class CSAC(JiGen):
    """CSAC: crop 80-100 %, flip, colour jitter 0.4, grayscale 10 %, as `jigen`.

    junkunyuan/CSAC `utils/transformers.py`; its PACS configuration crops 90-100 % instead.
    """


@register("fedadg")
class FedADG(Augmented):
    """FedADG's code: crop 70-100 %, flip, grayscale 10 %, no colour jitter.

    Haoxiang-Wang/FedADG `pacs-ours/data_loader.py`, at 222 pixels. The paper says it uses JiGen's
    augmentation: that is `jigen`.
    """

    crop = (0.7, 1.0)
    grayscale = 0.1


@register("gperxan")
class GPerXAN(Augmented):
    """gPerXAN: flip, and for half of the images colour jitter 0.2.

    lhkhiem28/gPerXAN `source/data.py` calls albumentations' ColorJitter with its defaults, which
    were 0.2 each, hue ± 0.2, in its releases until 2024; later ones have hue ± 0.5. The code
    changes colours before it resizes, and resizes without antialiasing.
    """

    jitter = augment.ColourJitter.of(0.2, hue=0.2, probability=0.5)


@register("dassl")
class Dassl(ImageNet):
    """Dassl, StableFDG: flip, random translation of half of the images.

    KaiyangZhou/Dassl.pytorch `random_flip`, `random_translation`: a translated image is enlarged
    by 1/8 and a window of the old size is kept, at an offset rounded from a uniform one.
    """

    flip: ClassVar[float] = 0.5
    translation: ClassVar[float] = 0.5

    def train(self, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        count, enlarged = len(images), round(self.size * 1.125)
        flipped = augment.draw_chosen(generator, count, self.flip)
        chosen = augment.draw_chosen(generator, count, self.translation)
        offsets = augment.uniforms(generator, count, 2) * (enlarged - self.size)
        images = augment.mirror(augment.resize(images, self.size, self.size), flipped)
        images = augment.translate(images, offsets.round().long(), chosen, enlarged)
        return self.normalise(images.contiguous(memory_format=torch.channels_last))
