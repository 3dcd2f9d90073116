"""Batched transforms against torchvision's on single images, and against its distributions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision.transforms.v2 as reference
import torchvision.transforms.v2.functional as functional
from PIL import Image
from scipy import stats

from datasets import augment
from datasets.transforms import Dassl, transforms

RECIPES = ("csac", "dassl", "digits", "domainbed", "fedadg", "gperxan", "imagenet", "jigen")
RANDOM = ("csac", "dassl", "domainbed", "fedadg", "gperxan", "jigen")
LEVEL = 1.0 + 1e-3  # one step of 8-bit pixels: where the two sides round at different moments
EXACT = 2e-5 * 255  # float arithmetic in another order


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(count: int, height: int = 40, width: int = 40, seed: int = 0) -> torch.Tensor:
    """uint8 images, smooth with some noise and saturated places, channels-last as stored."""
    source = generator(seed)
    coarse = torch.rand((count, 3, 5, 5), generator=source)
    fine = torch.rand((count, 3, height, width), generator=source)
    smooth = F.interpolate(coarse, (height, width), mode="bicubic") * 1.3 - 0.15
    pixels = ((smooth + 0.1 * fine).clamp(0, 1) * 255).round().byte()
    return pixels.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def planes(count: int, **shape: int) -> torch.Tensor:
    return pictures(count, **shape).float().contiguous()


def each(change, images: torch.Tensor, *parameters) -> torch.Tensor:
    """What torchvision makes of each float image in [0, 1], in pixels 0..255."""
    rows = zip(images / 255, *parameters, strict=True)
    return torch.stack([change(image, *values) for image, *values in rows]) * 255


# --- operations with fixed parameters ------------------------------------------------------------


@pytest.mark.parametrize(("height", "width"), [(40, 40), (57, 33), (20, 90)])
def test_resize_is_torchvisions(height, width):
    images = pictures(4, height=height, width=width)
    ours = augment.resize(images, 32, 32)
    theirs = functional.resize(images, [32, 32], antialias=True)
    assert ours.dtype == torch.uint8
    assert (ours.int() - theirs.int()).abs().max() <= 1


def boxes_and_flips(count: int, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    boxes = augment.draw_crops(generator(3), count, height, width, (0.2, 1.0))
    boxes[0] = torch.tensor((0, 0, height, width))
    return boxes, torch.arange(count) % 2 == 0


@pytest.mark.parametrize(("height", "width", "size"), [(40, 40, 32), (57, 33, 64), (90, 120, 24)])
def test_crop_and_resize_is_torchvisions_on_8_bits(height, width, size):
    images = pictures(8, height=height, width=width)
    boxes, flipped = boxes_and_flips(8, height, width)
    ours = augment.crop_and_resize(images, boxes, flipped, size)
    for k in range(8):
        theirs = functional.resized_crop(images[k], *boxes[k].tolist(), [size, size])
        theirs = functional.horizontal_flip(theirs) if flipped[k] else theirs
        assert (ours[k] - theirs.float()).abs().max() <= LEVEL


@pytest.mark.parametrize(("height", "width", "size"), [(40, 40, 32), (57, 33, 64), (90, 120, 24)])
def test_resampling_by_matrices_is_torchvisions_on_floats(height, width, size):
    images = pictures(8, height=height, width=width)
    boxes, flipped = boxes_and_flips(8, height, width)
    ours = augment.resample(images, boxes, flipped, size)
    for k in range(8):
        theirs = functional.resized_crop(images[k].float(), *boxes[k].tolist(), [size, size])
        theirs = functional.horizontal_flip(theirs) if flipped[k] else theirs
        assert (ours[k] - theirs).abs().max() <= 0.5 + 1e-3  # ours is rounded
    on_cpu = augment.crop_and_resize(images, boxes, flipped, size)
    assert (ours - on_cpu).abs().max() <= LEVEL


FACTORS = torch.tensor([0.0, 0.4, 0.7, 1.0, 1.3, 1.9])


@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation"])
def test_a_blend_is_torchvisions(name):
    images = planes(len(FACTORS))
    theirs = each(getattr(functional, f"adjust_{name}"), images, FACTORS.tolist())
    ours = getattr(augment, f"adjust_{name}")(images, FACTORS)
    torch.testing.assert_close(ours, theirs, atol=EXACT, rtol=0)


def test_hue_is_torchvisions():
    shifts = torch.tensor([-0.5, -0.37, -1 / 6, -0.02, 0.0, 0.1, 1 / 3, 0.5])
    images = planes(len(shifts))
    images[1, :, :5] = (images[1, :, :5] / 255).round() * 255  # ties of two channels
    images[2, :, :5] = images[2, :1, :5]  # greys have no hue
    images[3, :, :5], images[3, :, 5:9] = 0, 255
    theirs = each(functional.adjust_hue, images, shifts.tolist())
    ours = augment.adjust_hue(images, shifts)
    torch.testing.assert_close(ours, theirs, atol=EXACT, rtol=0)


def test_grayscale_is_torchvisions_where_chosen():
    images, chosen = planes(4), torch.tensor([True, False, True, False])
    theirs = each(lambda image: functional.rgb_to_grayscale(image, 3), images)
    ours = augment.grayscale(images.clone(), chosen)
    torch.testing.assert_close(ours[chosen], theirs[chosen], atol=EXACT, rtol=0)
    assert torch.equal(ours[~chosen], images[~chosen])


def test_each_sample_changes_colours_in_its_own_order():
    images = planes(40)
    colours = augment.ColourJitter.of(0.4, hue=0.4, probability=0.8).draw(generator(), 40)
    changes = [
        functional.adjust_brightness,
        functional.adjust_contrast,
        functional.adjust_saturation,
        functional.adjust_hue,
    ]
    assert len({tuple(order) for order in colours.orders}) > 12 and [] in colours.orders
    theirs = images / 255
    for k, order in enumerate(colours.orders):
        for kind in order:
            theirs[k] = changes[kind](theirs[k], colours.factors[k, kind].item())
    together = augment.adjust_colours(images.clone(), colours)
    torch.testing.assert_close(together, theirs * 255, atol=EXACT, rtol=0)
    for k in range(40):
        alone = augment.adjust_colours(images[k : k + 1].clone(), colours.part(slice(k, k + 1)))
        torch.testing.assert_close(alone[0], together[k], atol=EXACT, rtol=0)


def test_translation_is_a_window_of_the_enlarged_image():
    images, offsets = pictures(3, 32, 32), torch.tensor([[0, 4], [1, 2], [3, 3]])
    ours = augment.translate(images, offsets, torch.tensor([True, False, True]), 36)
    assert torch.equal(ours[1], images[1])
    for k in (0, 2):
        picture = Image.fromarray(images[k].permute(1, 2, 0).numpy())
        top, left = offsets[k].tolist()
        window = picture.resize((36, 36), Image.BILINEAR).crop((left, top, left + 32, top + 32))
        difference = ours[k].permute(1, 2, 0).int() - torch.from_numpy(np.array(window)).int()
        assert difference.abs().max() <= 1


def test_mirror_exchanges_left_and_right_where_chosen():
    images = pictures(2)
    ours = augment.mirror(images, torch.tensor([False, True]))
    assert torch.equal(ours[0], images[0]) and torch.equal(ours[1], images[1].flip(-1))
    assert ours.is_contiguous(memory_format=torch.channels_last)


# --- distributions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("height", "width", "scale"),
    [(227, 227, (0.7, 1.0)), (200, 300, (0.8, 1.0)), (100, 400, (0.7, 1.0)), (64, 48, (0.08, 1.0))],
)
def test_crops_are_distributed_as_torchvisions(height, width, scale):
    count = 1500
    ours = augment.draw_crops(generator(), count, height, width, scale).numpy()
    image = torch.empty(3, height, width)
    crop = reference.RandomResizedCrop(8, scale=scale)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        drawn = [crop.make_params([image]) for _ in range(count)]
    theirs = np.array([[one[key] for key in ("top", "left", "height", "width")] for one in drawn])
    assert (ours[:, :2] >= 0).all() and (ours[:, 2:] > 0).all()
    assert (ours[:, :2] + ours[:, 2:] <= (height, width)).all()
    for one, other in zip(ours.T, theirs.T, strict=True):
        assert stats.ks_2samp(one, other).pvalue > 0.001
    areas = (ours[:, 2] * ours[:, 3], theirs[:, 2] * theirs[:, 3])
    assert stats.ks_2samp(*areas).pvalue > 0.001


def test_square_crops_fill_their_range_and_reach_every_edge():
    side, count = 1000, 4000
    boxes = augment.draw_crops(generator(), count, side, side, (0.7, 1.0), ratio=(1.0, 1.0))
    shares = (boxes[:, 2] / side).square().numpy()
    assert stats.kstest(shares, stats.uniform(0.7, 0.3).cdf).pvalue > 0.001
    boxes = augment.draw_crops(generator(), count, 10, 10, (0.7, 1.0)).double()
    room = 10 - boxes[:, 2:]
    for places, most in zip(boxes[:, :2].T, room.T, strict=True):
        for limit in (1, 2):
            drawn = places[most == limit].numpy()
            counts = np.unique(drawn, return_counts=True)[1]
            assert len(counts) == limit + 1 and stats.chisquare(counts).pvalue > 0.001


def test_too_wide_images_are_cropped_in_the_middle():
    boxes = augment.draw_crops(generator(), 5, 100, 400, (0.7, 1.0))
    assert boxes.tolist() == [[0, 133, 100, 133]] * 5


def test_jitter_factors_fill_their_ranges_and_orders_are_uniform():
    jitter = augment.ColourJitter((0.5, 1.0), (0.7, 1.3), (0.0, 2.0), (-0.1, 0.3), 0.5)
    colours = jitter.draw(generator(), 6000)
    ranges = (jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue)
    for column, (low, high) in zip(colours.factors.T, ranges, strict=True):
        assert stats.kstest(column.numpy(), stats.uniform(low, high - low).cdf).pvalue > 0.001
    applied = [tuple(order) for order in colours.orders if order]
    assert abs(len(applied) / 6000 - 0.5) < 0.025
    counts = np.unique(applied, axis=0, return_counts=True)[1]
    assert len(counts) == 24 and stats.chisquare(counts).pvalue > 0.001


def test_recipes_have_the_settings_of_their_sources():
    by_3, by_4, by_2 = ((0.7, 1.3),) * 3, ((0.6, 1.4),) * 3, ((0.8, 1.2),) * 3
    expected = {
        "domainbed": ((0.7, 1.0), 0.5, (*by_3, (-0.3, 0.3), 1.0), 0.1),
        "jigen": ((0.8, 1.0), 0.5, (*by_4, (-0.4, 0.4), 1.0), 0.1),
        "csac": ((0.8, 1.0), 0.5, (*by_4, (-0.4, 0.4), 1.0), 0.1),
        "fedadg": ((0.7, 1.0), 0.5, None, 0.1),
        "gperxan": (None, 0.5, (*by_2, (-0.2, 0.2), 0.5), 0.0),
    }
    for name, (crop, flip, jitter, grayscale) in expected.items():
        recipe = transforms[name]
        assert (recipe.crop, recipe.flip, recipe.grayscale) == (crop, flip, grayscale)
        assert recipe.jitter == (jitter and augment.ColourJitter(*jitter))
        assert recipe(224).stored_size == 224


def test_flips_and_greys_come_at_their_rates():
    transform = transforms["domainbed"](8)
    ramp = torch.arange(8.0).mul(30).expand(8, 8)
    image = torch.stack((ramp, 0.5 * ramp, 0.2 * ramp)).byte()
    images = image.expand(3000, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    pixels = transform.to_pixels(transform.train(images, generator()))
    flipped = pixels[..., 0].sum((1, 2)) > pixels[..., -1].sum((1, 2))
    grey = (pixels.amax(1) - pixels.amin(1)).amax((1, 2)) < 1e-4
    assert abs(flipped.float().mean() - 0.5) < 0.03
    assert abs(grey.float().mean() - 0.1) < 0.02


def theirs_of(name: str, size: int) -> reference.Compose:
    """A recipe as torchvision would write it."""
    jitters = {"domainbed": (0.3,) * 4, "jigen": (0.4,) * 4, "gperxan": (0.2,) * 4}
    jitter = reference.ColorJitter(*jitters[name])
    crop = reference.RandomResizedCrop(size, scale=(0.7 if name == "domainbed" else 0.8, 1.0))
    if name == "gperxan":
        steps = [reference.Resize((size, size)), reference.RandomApply([jitter], p=0.5)]
    else:
        steps = [crop, jitter, reference.RandomGrayscale(0.1)]
    return reference.Compose([reference.RandomHorizontalFlip(), *steps])


@pytest.mark.parametrize("name", ["domainbed", "jigen", "gperxan"])
def test_a_recipe_gives_the_distribution_of_torchvisions(name):
    """Statistics of 600 versions of one image: channel means, contrast, a corner, a border."""
    count, image = 600, pictures(1, 48, 40, seed=2)[0]
    transform = transforms[name](24)
    many = image.expand(count, -1, -1, -1)
    ours = transform.to_pixels(transform.train(many, generator()))
    compose = theirs_of(name, 24)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        theirs = torch.stack([compose(image / 255) for _ in range(count)])

    def statistics(pixels: torch.Tensor) -> list[np.ndarray]:
        found = [*pixels.mean((2, 3)).T, pixels.std((1, 2, 3)), pixels[:, 1, 0, 0]]
        found += [pixels[:, 0, :, :3].mean((1, 2)), (pixels[:, 0] - pixels[:, 2]).mean((1, 2))]
        # to 0.01: images left as they are all share one value, which 8-bit rounding moves a little
        return [values.numpy().round(2) for values in found]

    for one, other in zip(statistics(ours), statistics(theirs), strict=True):
        assert stats.ks_2samp(one, other).pvalue > 0.001


def test_dassl_translates_half_of_the_images_by_rounded_uniform_offsets():
    transform, count = Dassl(16), 4000
    image = pictures(1, 16, 16, seed=1)[0]
    unmoved = transform.evaluate(image[None])[0]
    batch = transform.train(image.expand(count, -1, -1, -1), generator())
    larger = augment.resize(image[None], 18, 18)[0]
    windows = [larger[:, y : y + 16, x : x + 16] for y in range(3) for x in range(3)]
    known = torch.stack([unmoved, *transform.normalise(torch.stack(windows))])
    known = torch.cat((known, known.flip(-1))).flatten(1)
    which = torch.cdist(batch.flatten(1), known).argmin(1)
    assert torch.cdist(batch.flatten(1), known).amin(1).max() < 0.5
    counts = torch.bincount(which, minlength=20).view(2, 10).float() / count
    assert (counts.sum(1) - 0.5).abs().max() < 0.03
    assert (counts[:, 0].sum() - 0.5).abs() < 0.03
    axis = torch.tensor([0.25, 0.5, 0.25])  # round(uniform(0, 2)) is 1 half of the time
    expected = 0.5 * torch.outer(axis, axis).flatten()
    assert (counts[:, 1:].sum(0) - expected).abs().max() < 0.02


# --- the contract of every recipe ----------------------------------------------------------------


def test_the_recipes_are_registered():
    assert set(RECIPES) <= set(transforms.names())


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize(("height", "width"), [(24, 24), (36, 30)])
def test_batches_have_the_right_form(name, height, width):
    transform = transforms[name](24)
    images = pictures(3, height, width)
    before = images.clone()
    for batch in (transform.train(images, generator()), transform.evaluate(images)):
        assert batch.shape == (3, 3, 24, 24) and batch.dtype == torch.float32
        assert batch.is_contiguous(memory_format=torch.channels_last)
        pixels = transform.to_pixels(batch)
        assert pixels.min() > -1e-4 and pixels.max() < 1 + 1e-4
    assert torch.equal(images, before)


@pytest.mark.parametrize("name", RECIPES)
def test_evaluation_is_resize_and_normalise_as_torchvision(name):
    transform = transforms[name](24)
    images = pictures(3, 36, 30)
    resized = functional.resize(images, [24, 24], antialias=True) / 255
    theirs = functional.normalize(resized, transform.mean, transform.std)
    ours = transform.evaluate(images)
    torch.testing.assert_close(ours, theirs, atol=LEVEL / 255 / min(transform.std), rtol=0)
    assert torch.equal(ours, transform.evaluate(images))
    planar = transform.evaluate(images.contiguous())
    torch.testing.assert_close(ours, planar, atol=LEVEL / 255 / min(transform.std), rtol=0)


@pytest.mark.parametrize("name", RANDOM)
def test_draws_are_per_sample_and_come_from_the_generator_alone(name):
    transform = transforms[name](24)
    images = pictures(1, 26, 26).expand(16, -1, -1, -1)
    state = torch.random.get_rng_state()
    numpy_state = np.random.get_state()[1].copy()
    first = transform.train(images, generator(7))
    torch.manual_seed(1234)
    again = transform.train(images, generator(7))
    other = transform.train(images, generator(8))
    torch.random.set_rng_state(state)
    running = generator(7)
    transform.train(images, running)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert (np.random.get_state()[1] == numpy_state).all()
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, transform.train(images, running))
    assert len(torch.unique(first.flatten(1), dim=0)) > 4


@pytest.mark.parametrize("name", RECIPES)
def test_nothing_is_left_on_the_cpu_when_images_are_elsewhere(name):
    """The meta device has no values, but refuses to mix with the CPU as a GPU does."""
    transform = transforms[name](24, device="meta")
    images = pictures(6, 30, 26).to("meta")
    for batch in (transform.train(images, generator()), transform.evaluate(images)):
        assert batch.device.type == "meta" and batch.shape == (6, 3, 24, 24)
        assert batch.is_contiguous(memory_format=torch.channels_last)


def test_whole_batches_give_what_single_images_give():
    """The way of other devices, taken on the CPU: matrix products, colours of all samples."""
    images, flipped = pictures(12, 30, 26), torch.arange(12) % 2 == 0
    boxes = augment.draw_crops(generator(1), 12, 30, 26, (0.7, 1.0))
    colours = augment.ColourJitter.of(0.3, hue=0.3).draw(generator(2), 12)
    whole = augment.adjust_colours(augment.resample(images, boxes, flipped, 24), colours)
    for k in range(12):
        part = slice(k, k + 1)
        single = augment.crop_and_resize(images[part], boxes[part], flipped[part], 24)
        difference = (augment.adjust_colours(single, colours.part(part)) - whole[part]).abs()
        # one level before the colours can be a few after: near grey, hue turns far
        assert difference.mean() < 0.5 and difference.max() < 8


@pytest.mark.parametrize("name", RECIPES)
def test_an_empty_batch_stays_empty(name):
    assert transforms[name](24).train(pictures(2, 24, 24)[:0], generator()).shape == (0, 3, 24, 24)


@pytest.mark.parametrize("name", RECIPES)
def test_pixels_and_back(name):
    transform = transforms[name](24)
    images = pictures(2, 24, 24)
    batch = transform.evaluate(images)
    pixels = transform.to_pixels(batch)
    torch.testing.assert_close(pixels, images / 255, atol=1e-6, rtol=0)
    torch.testing.assert_close(transform.from_pixels(pixels), batch, atol=1e-5, rtol=0)


def test_digits_are_scaled_to_minus_one_and_one():
    images = torch.tensor([0, 51, 255]).byte().view(1, 1, 1, 3).expand(1, 3, 1, 3)
    expected = torch.tensor([-1.0, -0.6, 1.0]).expand(1, 3, 1, 3)
    transform = transforms["digits"](3)
    for batch in (transform.normalise(images), transform.normalise(images.contiguous())):
        torch.testing.assert_close(batch, expected, atol=1e-6, rtol=0)


def test_imagenet_values():
    white = torch.full((1, 3, 8, 8), 255, dtype=torch.uint8)
    expected = torch.tensor([2.2489083, 2.4285715, 2.64]).view(1, 3, 1, 1).expand(1, 3, 8, 8)
    torch.testing.assert_close(transforms["imagenet"](8).evaluate(white), expected)


def test_normalising_does_not_depend_on_the_memory_layout():
    images, transform = pictures(3, 20, 28), transforms["domainbed"](24)
    assert torch.equal(transform.normalise(images), transform.normalise(images.contiguous()))


# --- the benchmark of the input pipeline ---------------------------------------------------------
