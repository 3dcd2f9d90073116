"""MiniDigits: a small Digits-DG, made on first use, so that the suite runs without any download.

Ten digits, 32 x 32 RGB, about 900 images in each of four domains modelled on those of Digits-DG:

- `handwritten` (MNIST): one half of scikit-learn's real handwritten digits, white on black;
- `blended` (MNIST-M): the other half, as the absolute difference to a colourful texture;
- `print` (SYN): book faces in varied size, slant, place and colours;
- `street` (SVHN): sans-serif house numbers on stained, unevenly lit walls, blurred and seen askew,
  with pieces of the neighbouring digits at the edges.

No two domains share a source digit or a font face, so nothing learnt by heart in one helps in
another. Digits are mostly dark on light in all domains but the first: where both are as likely, a
small network takes many epochs to learn anything at all.

Every domain draws from a random stream of its own: one machine always makes the same images
(another build of Pillow may rasterise fonts a little differently). Whoever changes a pixel must
raise `VERSION`, or old caches stay in use.

The documentation's figure: `python -m datasets.minidigits ROOT docs/minidigits.png`.
"""

from __future__ import annotations

import functools
import hashlib
import sys
from pathlib import Path

import numpy as np

from benchmark.seeds import seed_for
from datasets.base import Dataset, DomainData, register, write_atomically

# scikit-learn, SciPy, Pillow and matplotlib are imported where they draw: a run that finds its
# domains in the cache, or that uses another dataset, should not wait for them.

Random = np.random.Generator
Painted = tuple[np.ndarray, np.ndarray]  # images in 0..1 and their labels

VERSION = 1
SIZE = 32
RENDERED_LABELS = np.arange(900) % 10  # as many as half of scikit-learn's 1797 digits
# The bundled faces with ordinary digits; the others hold symbols or old-style figures (cmmi10).
BOOK_FACES = [f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")]
BOOK_FACES += [f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")]
BOOK_FACES += ["cmb10", "cmr10", "cmti10", "cmtt10"]
STREET_FACES = [f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")]
STREET_FACES += [f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")]
STREET_FACES += ["cmss10"]


def stream(purpose: str) -> Random:
    return np.random.default_rng(seed_for(0, "MiniDigits", purpose))


def split_sources() -> tuple[np.ndarray, np.ndarray]:
    """Indices of scikit-learn's digits behind `handwritten` and `blended`, half of each class."""
    from sklearn.datasets import load_digits

    labels = load_digits().target
    order = stream("split").permutation(len(labels))
    by_class = order[np.argsort(labels[order], kind="stable")]
    return by_class[0::2], by_class[1::2]


def handwriting(indices: np.ndarray) -> Painted:
    """Strokes in 0..1, (count, SIZE, SIZE, 1), of scikit-learn's 8 x 8 digits, and their labels."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    small = (digits.images[indices] * (255 / 16)).astype(np.uint8)
    small = np.pad(small, ((0, 0), (1, 1), (1, 1)))  # the margin MNIST's digits have
    large = [Image.fromarray(one).resize((SIZE, SIZE), Image.Resampling.BICUBIC) for one in small]
    strokes = np.stack(large).astype(np.float32)[..., None] / 255
    # Enlarging leaves strokes soft: a steeper slope gives them the firm edges of a pen.
    return np.clip((strokes - 0.35) / 0.5, 0, 1), digits.target[indices]


@functools.cache
def font(face: str, size: int):
    import matplotlib
    from PIL import ImageFont

    path = Path(matplotlib.get_data_path(), "fonts", "ttf", f"{face}.ttf")
    return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)


def render(text: str, face: str, size: int, corners: np.ndarray) -> np.ndarray:
    """A mask in 0..1 with the middle character of `text` in its middle, drawn at double size.

    It shows the drawing's quadrilateral `corners` (4, 2), in pixels from the centre: one argument
    for turn, slant, place and perspective.
    """
    from PIL import Image, ImageDraw

    centre, letters = 2 * SIZE, font(face, size)
    canvas = Image.new("L", (2 * centre, 2 * centre))
    _, top, _, bottom = letters.getbbox(text)
    before, middle = text[: len(text) // 2], text[len(text) // 2]
    left = centre - letters.getlength(before) - letters.getlength(middle) / 2
    place = (left, centre - (top + bottom) / 2)
    ImageDraw.Draw(canvas).text(place, text, fill=255, font=letters)
    shown, bilinear = (corners + centre).ravel().tolist(), Image.Resampling.BILINEAR
    seen = canvas.transform((centre, centre), Image.Transform.QUAD, shown, bilinear)
    return np.asarray(seen.resize((SIZE, SIZE), Image.Resampling.BOX), np.float32) / 255


def viewpoints(
    rng: Random, count: int, turn: float, slant: float, shift: float, askew: float
) -> np.ndarray:
    """(count, 4, 2) corners for `render`; the arguments are spreads (radians, shear, pixels)."""
    square = SIZE * np.array([[-1, -1], [-1, 1], [1, 1], [1, -1]])
    angle, shear = rng.normal(0, turn, count), rng.normal(0, slant, count)
    cosine, sine = np.cos(angle), np.sin(angle)
    turned = np.array([[cosine, cosine * shear - sine], [sine, sine * shear + cosine]])
    corners = np.einsum("ijn,kj->nki", turned, square)
    place = rng.uniform(-2 * shift, 2 * shift, (count, 1, 2))
    return corners + place + rng.normal(0, 2 * askew, corners.shape)


def lettering(
    rng: Random, texts: list[str], faces: list[str], sizes: tuple[int, int], **spread
) -> np.ndarray:
    """(count, SIZE, SIZE, 1) masks of the texts, in any of the faces and sizes."""
    count = len(texts)
    how = rng.choice(faces, count), rng.integers(*sizes, count), viewpoints(rng, count, **spread)
    return np.stack([render(*each) for each in zip(texts, *how, strict=True)])[..., None]


def per_image(values: np.ndarray) -> np.ndarray:
    """(count,) or (count, 3) values, shaped to meet (count, SIZE, SIZE, 3) images."""
    return values.reshape(len(values), 1, 1, -1).astype(np.float32)


def coloured(
    rng: Random, masks: np.ndarray, contrast: tuple[float, float], tint: float, light: float
) -> np.ndarray:
    """Masks in two colours, `contrast` apart in brightness; a share `light` is light on dark."""
    count = len(masks)
    gap = rng.uniform(*contrast, (count, 1))
    middle = 0.5 + rng.uniform(-0.4, 0.4, (count, 1)) * (1 - gap)
    half = np.where(rng.random((count, 1)) < light, gap, -gap) / 2
    ground = np.clip(middle - half + rng.normal(0, tint, (count, 3)), 0, 1)
    figure = np.clip(middle + half + rng.normal(0, tint, (count, 3)), 0, 1)
    return per_image(ground) * (1 - masks) + per_image(figure) * masks


def clouds(rng: Random, count: int, octaves: tuple[int, ...]) -> np.ndarray:
    """(count, SIZE, SIZE, 3) smooth noise about 0, from ever finer and fainter grids of cells."""
    total = np.zeros((count, SIZE, SIZE, 3), np.float32)
    for step, cells in enumerate(octaves):
        grid = rng.uniform(-1, 1, (count, cells, cells, 3)).astype(np.float32)
        where = np.linspace(0, cells - 1, SIZE)
        weights = np.array([np.interp(where, range(cells), row) for row in np.eye(cells)], "f4")
        rows = np.einsum("iy,nijc->nyjc", weights, grid)
        total += np.einsum("jx,nyjc->nyxc", weights, rows) / 2**step
    return total


def slopes(rng: Random, count: int) -> np.ndarray:
    """(count, SIZE, SIZE, 1) planes that rise in any direction, -1 to 1 along an axis."""
    angle, axis = rng.uniform(0, 2 * np.pi, count), np.linspace(-1, 1, SIZE)
    along = np.multiply.outer(np.cos(angle), axis)[:, None, :, None]
    across = np.multiply.outer(np.sin(angle), axis)[:, :, None, None]
    return (along + across).astype(np.float32)


# One painter per domain. Their ranges were tuned so that each is a hard but not hopeless target: a
# small CNN trained briefly on any three domains is right on about 85 to 92 % of new images of
# those, and on about 65 to 71 % of the fourth.


def paint_handwritten(rng: Random) -> Painted:
    strokes, labels = handwriting(split_sources()[0])
    return np.repeat(strokes, 3, axis=-1), labels


def paint_blended(rng: Random) -> Painted:
    strokes, labels = handwriting(split_sources()[1])
    count = len(labels)
    # The difference turns mid-grey into mid-grey, so all channels start on one side of it.
    side = np.where(rng.random((count, 1)) < 0.1, -1, 1)
    texture = per_image(0.5 + side * rng.uniform(0, 0.45, (count, 3)))
    strength = per_image(rng.uniform(0.05, 0.25, count))
    texture = texture + strength * clouds(rng, count, (3, 6, 12, 24))
    stripes = np.sin(per_image(rng.uniform(6, 20, count)) * slopes(rng, count))
    texture += per_image(rng.uniform(-0.12, 0.12, (count, 3))) * stripes
    return np.abs(np.clip(texture, 0, 1) - strokes), labels


def paint_print(rng: Random) -> Painted:
    texts = [str(label) for label in RENDERED_LABELS]
    spread = {"turn": 0.15, "slant": 0.15, "shift": 2.5, "askew": 0}
    masks = lettering(rng, texts, BOOK_FACES, (44, 72), **spread)
    return coloured(rng, masks, contrast=(0.45, 0.8), tint=0.2, light=0.1), RENDERED_LABELS


def paint_street(rng: Random) -> Painted:
    from scipy.ndimage import gaussian_filter

    count = len(RENDERED_LABELS)
    neighbours = rng.choice(list("0123456789  "), (count, 2))
    texts = [f"{a}{label}{b}" for label, (a, b) in zip(RENDERED_LABELS, neighbours, strict=True)]
    spread = {"turn": 0.05, "slant": 0.1, "shift": 1.5, "askew": 2}
    masks = lettering(rng, texts, STREET_FACES, (56, 74), **spread)
    images = coloured(rng, masks, contrast=(0.25, 0.55), tint=0.07, light=0.25)
    # Uneven light, then a bar across (a frame, a wire, a shadow), then stains.
    images *= 0.9 + per_image(rng.uniform(0, 0.3, count)) * slopes(rng, count)
    bars = np.abs(slopes(rng, count) + per_image(rng.uniform(-0.8, 0.8, count))) < 0.12
    images += per_image(rng.normal(0, 0.12, count)) * bars
    images += 0.15 * clouds(rng, count, (2, 4, 8)).mean(axis=-1, keepdims=True)
    blur = rng.uniform(0.5, 1.3, count)
    images = [gaussian_filter(one, (s, s, 0)) for one, s in zip(images, blur, strict=True)]
    return images + rng.normal(0, 0.02, (count, SIZE, SIZE, 3)), RENDERED_LABELS


PAINTERS = {
    "handwritten": paint_handwritten,
    "blended": paint_blended,
    "print": paint_print,
    "street": paint_street,
}


def generate(domain: str) -> DomainData:
    """One domain, made from nothing but its own random stream, in shuffled order."""
    rng = stream(domain)
    images, labels = PAINTERS[domain](rng)
    order = rng.permutation(len(labels))
    pixels = (np.clip(images, 0, 1) * 255).round().astype(np.uint8)
    return DomainData(pixels[order], labels[order].astype(np.int64))


def digest(data: DomainData) -> np.ndarray:
    content = hashlib.blake2b(data.labels.tobytes() + data.images.tobytes(), digest_size=16)
    return np.frombuffer(content.digest(), np.uint8)


def write_domain(path: Path, data: DomainData) -> None:
    """All in one record of one file, so that no two writers can mix their images and labels."""
    parts = {"digest": digest(data), "labels": data.labels, "images": data.images}
    layout = [(name, part.dtype, part.shape) for name, part in parts.items()]
    record = np.array([tuple(parts.values())], layout)

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:  # given a path, np.save would add a suffix to it
            np.save(file, record)

    write_atomically(path, write)


def read_domain(path: Path) -> DomainData | None:
    """The stored domain, its images memory-mapped; None if it is missing or damaged."""
    try:
        record = np.load(path, mmap_mode="r")
        data = DomainData(record["images"][0], np.array(record["labels"][0]))
        return data if np.array_equal(digest(data), record["digest"][0]) else None
    except Exception:  # whatever is wrong with the file, the cure is to make it again
        return None


@register("MiniDigits")
class MiniDigits(Dataset):
    """Handwritten, blended, printed and street digits: minutes on one core, not hours on a GPU."""

    domains = tuple(PAINTERS)
    classes = tuple("0123456789")
    citation = (
        "Made by this suite after Digits-DG (Zhou et al., AAAI 2020), from Optical Recognition of "
        "Handwritten Digits (Alpaydin and Kaynak, UCI, 1998; scikit-learn's copy)"
    )
    licence = "made from scikit-learn's digits (UCI, CC BY 4.0) and matplotlib's bundled free fonts"

    def load(self, domain: str, root: Path, size: int = SIZE) -> DomainData:
        """One domain; `size` is for datasets whose images differ in theirs, these are all alike."""
        self.check_domain(domain)
        path = Path(root) / f"MiniDigits-v{VERSION}" / f"{domain}.npy"
        stored = read_domain(path)
        if stored is None:
            write_domain(path, generate(domain))
            stored = read_domain(path)
        if stored is None:
            raise OSError(f"{path} cannot be read back: check the disk or choose another root")
        return stored


def sample_figure(root: Path, path: Path) -> None:
    """Draw the fifth image of every digit in every domain (all of them easy to read) to `path`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 2.6), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)  # not pyplot, which would choose a display for the whole process
    grid = figure.subplots(len(MiniDigits.domains), len(MiniDigits.classes))
    for row, domain in zip(grid, MiniDigits.domains, strict=True):
        data = MiniDigits().load(domain, root)
        for digit, axes in enumerate(row):
            fifth = np.flatnonzero(data.labels == digit)[4]
            axes.imshow(data.images[fifth], interpolation="nearest")
            axes.set(xticks=[], yticks=[])
        row[0].set_ylabel(domain, rotation="horizontal", ha="right", va="center")
    figure.savefig(path)


if __name__ == "__main__":
    sample_figure(Path(sys.argv[1]), Path(sys.argv[2]))
