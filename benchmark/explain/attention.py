"""Where StableFDG's attention looks: images and their score maps (its Fig. 5).

The score map of an image is what its last maps are averaged with when it is tested, by
self-attention; shown as a multiple of equal attention and enlarged to the image. One image of each
domain and class, the first that was judged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure

from benchmark.errors import UserError, unknown
from benchmark.explain.finished import Finished
from benchmark.method import compose
from benchmark.spec import RunSpec
from datasets.base import open_dataset
from leaderboard.figures.theme import WIDTH, new_figure
from methods.stablefdg import StableFDG

MOST_CLASSES = 10
COLOURS = "inferno"
COVER = 0.65
"""How much of the image the scores hide."""


@dataclasses.dataclass(frozen=True)
class Scored:
    """One image (height, width, 3) in [0, 1] and its scores (rows, columns), which sum to 1."""

    domain: str
    label: str
    image: np.ndarray
    scores: np.ndarray

    @property
    def relative(self) -> np.ndarray:
        """Scores as multiples of equal attention."""
        return self.scores * self.scores.size


def misfit(spec: RunSpec) -> str | None:
    """Why a run has no attention to show."""
    if not issubclass(compose(spec.method), StableFDG):
        return f"{spec.method} has no attention; choose a run of stablefdg"
    if spec.hparams["stablefdg_attention"] == "off":
        return "its attention is off (stablefdg_attention=off); choose another run of stablefdg"
    return None


@torch.no_grad()
def score_maps(run: Finished, classes: Sequence[str] | None = None) -> list[Scored]:
    """The first image of each domain and class."""
    names = open_dataset(run.spec.dataset).classes
    for name in classes or ():
        if name not in names:
            raise unknown(f"class of {run.spec.dataset}", name, names)
    wanted = list(classes or names[:MOST_CLASSES])
    if len(wanted) > MOST_CLASSES:
        raise UserError(f"--classes: at most {MOST_CLASSES} fit in a figure")
    found: dict[tuple[str, str], Scored] = {}
    transform = run.federation.evaluator.held_out.transform
    for batch in run.batches():
        maps = run.model.maps(batch.images)
        scores = run.model.pooling.attend(maps).unflatten(1, maps.shape[2:]).cpu().numpy()
        pixels = transform.to_pixels(batch.images).clamp(0, 1).permute(0, 2, 3, 1).cpu().numpy()
        pairs = zip(batch.domains.tolist(), batch.labels.tolist(), strict=True)
        for k, (domain, label) in enumerate(pairs):
            key = run.domains[domain], names[label]
            if key[1] in wanted and key not in found:
                found[key] = Scored(*key, pixels[k], scores[k])
    order = [(domain, label) for domain in run.domains for label in wanted]
    return [found[key] for key in order if key in found]


def attention_figure(cells: Sequence[Scored], unseen: str, title: str) -> Figure:
    """Two lines per domain, the images and the same with their scores over them; one scale."""
    domains = list(dict.fromkeys(cell.domain for cell in cells))
    labels = list(dict.fromkeys(cell.label for cell in cells))
    by_place = {(cell.domain, cell.label): cell for cell in cells}
    grid = Grid(len(domains), len(labels))
    figure = new_figure(*grid.size)
    figure.set_layout_engine("none")
    scale = common_scale(cells)
    for row, domain in enumerate(domains):
        for column, label in enumerate(labels):
            above, below = (figure.add_axes(grid.box(row, half, column)) for half in (0, 1))
            _pair(above, below, by_place.get((domain, label)), scale)
            if row == 0:
                above.set_title(label, fontweight="normal", pad=3)
            if column == 0:
                name = f"{domain}\n(unseen)" if domain == unseen else domain
                above.set_ylabel(name, rotation=0, ha="right", va="center", labelpad=6)
    colours = ScalarMappable(scale, blended(COLOURS))
    bar = figure.colorbar(colours, cax=figure.add_axes(grid.bar, label="<colorbar>"))
    bar.set_label("attention (1: the same everywhere)")
    bar.outline.set_visible(False)
    figure.suptitle(title, y=1, va="bottom")
    return figure


@dataclasses.dataclass(frozen=True)
class Grid:
    """Where things are: two lines of square pictures for each domain, close together."""

    domains: int
    labels: int
    left: float = 0.95
    right: float = 0.75
    top: float = 0.25
    gap: float = 0.03
    between: float = 0.12

    @property
    def side(self) -> float:
        return min(0.8, (WIDTH - self.left - self.right) / self.labels - self.gap)

    @property
    def size(self) -> tuple[float, float]:
        """Of the figure, in inches."""
        lines = self.domains * (2 * self.side + self.gap + self.between) - self.between
        pictures = self.labels * (self.side + self.gap) - self.gap
        return self.left + pictures + self.right, self.top + lines

    def box(self, row: int, half: int, column: int) -> tuple[float, float, float, float]:
        """Left, bottom, width and height of a picture, in shares of the figure."""
        width, height = self.size
        x = self.left + column * (self.side + self.gap)
        down = row * (2 * self.side + self.gap + self.between) + half * (self.side + self.gap)
        y = height - self.top - down - self.side
        return x / width, y / height, self.side / width, self.side / height

    @property
    def bar(self) -> tuple[float, float, float, float]:
        width, height = self.size
        return (width - self.right + 0.15) / width, 0.15, 0.1 / width, 0.7 * (1 - self.top / height)


def common_scale(cells: Sequence[Scored]) -> Normalize:
    """The same colours for all images."""
    values = np.concatenate([cell.relative.ravel() for cell in cells])
    return Normalize(float(values.min()), float(max(values.max(), values.min() + 1e-6)))


def blended(name: str) -> ListedColormap:
    """The colours as they look over mid-grey."""
    colours = matplotlib.colormaps[name](np.linspace(0, 1, 256))[:, :3]
    return ListedColormap(COVER * colours + (1 - COVER) * 0.5)


def _pair(above: Axes, below: Axes, cell: Scored | None, scale: Normalize) -> None:
    for axes in (above, below):
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
        axes.grid(visible=False)
    if cell is None:
        return
    height, width = cell.image.shape[:2]
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    above.imshow(cell.image, extent=extent)
    grey = 0.2 + 0.6 * cell.image.mean(2)  # less contrast, so that colours stay comparable
    below.imshow(grey, cmap="gray", vmin=0, vmax=1, extent=extent)
    look = {"cmap": COLOURS, "norm": scale, "alpha": COVER, "interpolation": "bilinear"}
    below.imshow(cell.relative, extent=extent, **look)


def title_of(run: Finished, rows: int, columns: int) -> str:
    """What a figure of this run is about."""
    spec = run.spec
    about = f"{run.result.about['label']} on {spec.dataset}, {spec.backbone}, seed {spec.seed}"
    return f"{about}: attention over {rows} × {columns} positions"
