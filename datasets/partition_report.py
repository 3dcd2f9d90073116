"""`python -m datasets.partition DATASET --target DOMAIN`: who holds what, as a table and a figure.

Reads labels only, no image. The fingerprint is the one in the results of runs with the same
dataset, target, split, partition and seed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tabulate import tabulate

from benchmark.errors import ArgumentParser, UserError, command_line
from benchmark.registry import load_plugin
from datasets.base import Dataset, DomainData, open_dataset, write_atomically
from datasets.folders import FolderDataset
from datasets.partition import (
    ClientShards,
    Source,
    canonical_partition,
    divide,
    fingerprint,
)
from datasets.splits import Split, make_split

FORMATS = (".png", ".svg", ".pdf")
NAMED_CELLS = 12  # up to so many columns the cells of the figure show their numbers


@dataclasses.dataclass(frozen=True)
class Census:
    """How many training samples every client holds, by domain and by class."""

    clients: list[str]
    domains: list[str]
    classes: list[str]
    by_domain: np.ndarray
    by_class: np.ndarray
    validation: np.ndarray


@command_line
def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.plot is not None and options.plot.suffix.lower() not in FORMATS:
        raise UserError(f"--plot {options.plot}: name a file that ends in {', '.join(FORMATS)}")
    for path in options.plugin:
        load_plugin(path)
    dataset = open_dataset(options.dataset)
    target = dataset.find_domain(options.target)
    partition, split = canonical_partition(options.partition), make_split(options.split)
    sources = read_sources(dataset, target, options.root, split, options.seed)
    clients = divide(partition, sources, options.seed)
    census = count(clients, sources, dataset.classes)
    print(table(census))
    print(f"\nfingerprint {fingerprint(clients)} of {partition}, seed {options.seed}")
    if options.plot is not None:
        title = f"{dataset.name} without {target}, {partition}, seed {options.seed}"
        draw(census, title, options.plot)
        print(f"figure {options.plot}")
    return 0


def _parser() -> ArgumentParser:
    parser = ArgumentParser(prog="python -m datasets.partition", description=__doc__)
    parser.add_argument("dataset", help="name of a dataset, e.g. PACS")
    parser.add_argument("--target", required=True, help="the domain that no client holds")
    parser.add_argument("--partition", default="single_domain", help="e.g. iid:clients=10")
    parser.add_argument("--split", default="domainbed", help="e.g. random:fraction=0.1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--root", type=Path, default=Path("data"), help="folder of the datasets")
    parser.add_argument("--plot", type=Path, metavar="FILE", help=f"{', '.join(FORMATS)}")
    parser.add_argument("--plugin", nargs="+", default=[], metavar="FILE.py")
    return parser


def read_sources(
    dataset: Dataset, target: str, root: Path, split: Split, seed: int
) -> list[Source]:
    """All domains but the target, split as in a run, without their images."""
    sources = []
    for number, name in enumerate(dataset.domains):
        if name != target:
            data = _without_images(dataset, name, root, split.needs_parts)
            sources.append(Source(number, name, data.labels, *split.cut(data, number, seed)))
    return sources


def _without_images(dataset: Dataset, domain: str, root: Path, with_parts: bool) -> DomainData:
    try:
        labels, parts = np.asarray(dataset.labels(domain, root)), {}
        if with_parts and isinstance(dataset, FolderDataset):
            parts = dataset.listing(domain, root).parts
        elif with_parts:
            parts = dataset.load(domain, root, dataset.image_size).parts
    except OSError as error:
        raise UserError(f"{dataset.name} {domain} cannot be read in {root}: {error}") from error
    return DomainData(np.empty((len(labels), 0, 0, 3), np.uint8), labels, parts)


def count(
    clients: Sequence[ClientShards], sources: Sequence[Source], classes: Sequence[str]
) -> Census:
    by_class = np.zeros((len(clients), len(classes)), dtype=np.int64)
    by_domain = np.zeros((len(clients), len(sources)), dtype=np.int64)
    for k, client in enumerate(clients):
        for column, source in enumerate(sources):
            rows = client.train.rows[client.train.domains == source.domain]
            by_domain[k, column] = len(rows)
            by_class[k] += np.bincount(source.labels[rows], minlength=len(classes))
    return Census(
        [client.name for client in clients],
        [source.name for source in sources],
        list(classes),
        by_domain,
        by_class,
        np.array([len(client.val) for client in clients]),
    )


def table(census: Census) -> str:
    """Training samples of every client by domain, the classes it has, its validation samples."""
    present = (census.by_class > 0).sum(1)
    rows = [
        (name, *domains, domains.sum(), held, classes)
        for name, domains, held, classes in zip(
            census.clients, census.by_domain, census.validation, present, strict=True
        )
    ]
    totals = census.by_domain.sum(0)
    every = (census.by_class.sum(0) > 0).sum()
    rows.append(("total", *totals, totals.sum(), census.validation.sum(), every))
    header = ("client", *census.domains, "train", "validation", "classes")
    return tabulate(rows, header, "simple")


def draw(census: Census, title: str, path: Path) -> None:
    """Clients × classes (as FedFD-A's Fig. 7) above clients × domains, in one figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    clients, classes, domains = (len(x) for x in (census.clients, census.classes, census.domains))
    heights = (min(0.26 * classes + 0.4, 7), 0.3 * domains + 0.4)
    width = float(np.clip(2.6 + 0.3 * clients, 6.5, 16))
    figure = Figure(figsize=(width, sum(heights) + 1.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)  # not pyplot, which would choose a display for the whole process
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=heights)
    _heat(upper, census.by_class, census.classes, census.clients, "class")
    _heat(lower, census.by_domain, census.domains, census.clients, "domain")
    upper.tick_params(axis="x", bottom=False, labelbottom=False)
    lower.set_xlabel("client", fontsize=9)
    figure.suptitle(title, fontsize=10)
    try:
        write_atomically(path, lambda file: figure.savefig(file, format=path.suffix[1:].lower()))
    except OSError as error:
        raise UserError(f"--plot {path} cannot be written: {error}") from error


def _heat(
    axes, counts: np.ndarray, rows: Sequence[str], columns: Sequence[str], label: str
) -> None:
    """One map: white is none; lightness carries the number, so that it reads without colours."""
    import seaborn
    from matplotlib.ticker import MaxNLocator

    seaborn.heatmap(
        counts.T,
        ax=axes,
        mask=counts.T == 0,
        vmin=0,
        cmap=seaborn.color_palette("mako_r", as_cmap=True),
        annot=len(columns) <= NAMED_CELLS and len(rows) <= 40,
        fmt="d",
        annot_kws={"fontsize": 7},
        linewidths=0.4 if len(rows) <= 40 and len(columns) <= 40 else 0,
        linecolor="#dddddd",
        xticklabels=columns if len(columns) <= 40 else "auto",
        yticklabels=rows if len(rows) <= 40 else "auto",
        cbar_kws={"pad": 0.01, "ticks": MaxNLocator(5, integer=True)},
    )
    colours = axes.collections[0].colorbar
    colours.set_label("training samples", fontsize=9)
    colours.ax.tick_params(labelsize=8)
    axes.set_ylabel(label, fontsize=9)
    axes.tick_params(labelsize=8, length=0)
    axes.tick_params(axis="y", rotation=0)
    crowded = sum(len(name) + 2 for name in columns) > 66
    axes.tick_params(axis="x", rotation=90 if crowded else 0)
    for edge in axes.spines.values():
        edge.set(visible=True, linewidth=0.6, color="#888888")
