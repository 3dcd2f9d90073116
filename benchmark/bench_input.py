"""`python -m benchmark.bench_input --root FOLDER_OF_CLASS_FOLDERS`: what the input pipeline costs.

The same images, one thread, one process, a batch at a time: decoded from files, read from the
decoded cache, prepared for training by the suite, prepared by torchvision's ImageFolder and
DataLoader with DomainBed's transform, and for scale a training step of ResNet-18. Repeats take
turns, so that all meet the same machine; the table shows medians. Files and cache are read before
the clock starts: the numbers are of processor work, not of the disk.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import torchvision
from PIL import Image
from tabulate import tabulate
from torchvision import transforms as reference

from benchmark.errors import ArgumentParser, UserError, command_line
from datasets.base import DomainData
from datasets.cache import Place, decoded
from datasets.layouts import Listing, class_names, read_domain
from datasets.partition import Shard
from datasets.samples import Samples
from datasets.transforms import DomainBed

Task = Callable[[], object]
OURS, THEIRS, STEP = "cache + `domainbed`", "ImageFolder + DataLoader", "ResNet-18 training step"


@command_line
def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="python -m benchmark.bench_input", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="a folder of class folders")
    parser.add_argument("--size", type=int, default=224, help="side of the network's input")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=11, help="batches timed of each kind")
    options = parser.parse_args(arguments)
    for name in ("size", "batch_size", "repeats"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        work = tasks(options.root, options.size, options.batch_size, Path(folder))
        print(table(measure(work, options.repeats), options.batch_size))
    return 0


def tasks(root: Path, size: int, batch_size: int, folder: Path) -> dict[str, Task]:
    """One batch of each kind per call; the cache is made in `folder`."""
    classes = sorted(class_names(root))
    if not classes:
        raise UserError(f"{root} holds no class folders; give --root a folder of them")
    listing = read_domain(root, classes, root)
    images = decoded(listing, Place((folder,), "bench"), size, [listing])
    rng = np.random.default_rng(0)
    return {
        "decode files (Pillow)": decode_batch(listing, batch_size, rng),
        "read cache": lambda: torch.from_numpy(images[rng.integers(len(listing), size=batch_size)]),
        OURS: cached_batch(images, listing.labels, size, batch_size, rng),
        THEIRS: image_folder_batch(root, size, batch_size),
        STEP: training_step(size, batch_size, len(classes)),
    }


def decode_batch(listing: Listing, batch_size: int, rng: np.random.Generator) -> Task:
    def once() -> list[np.ndarray]:
        rows = rng.integers(len(listing), size=batch_size)
        paths = [listing.home / listing.files[row] for row in rows]
        return [np.asarray(Image.open(path).convert("RGB")) for path in paths]

    return once


def cached_batch(
    images: np.ndarray, labels: np.ndarray, size: int, batch_size: int, rng: np.random.Generator
) -> Task:
    """What a client's training loop does to get a batch."""
    data = DomainData(images, labels)
    samples = Samples(Shard.of(0, np.arange(len(labels))), [data], DomainBed(size))
    generator = torch.Generator().manual_seed(0)
    return lambda: samples.training_batch(rng.integers(len(labels), size=batch_size), generator)


def image_folder_batch(root: Path, size: int, batch_size: int) -> Task:
    """DomainBed's transform, as its `datasets.py` writes it, on torchvision's own loader."""
    transform = reference.Compose(
        [
            reference.RandomResizedCrop(size, scale=(0.7, 1.0)),
            reference.RandomHorizontalFlip(),
            reference.ColorJitter(0.3, 0.3, 0.3, 0.3),
            reference.RandomGrayscale(),
            reference.ToTensor(),
            reference.Normalize(DomainBed.mean, DomainBed.std),
        ]
    )
    dataset = torchvision.datasets.ImageFolder(str(root), transform)
    sampler = torch.utils.data.RandomSampler(dataset, replacement=True, num_samples=10**9)
    loader = torch.utils.data.DataLoader(dataset, batch_size, sampler=sampler, num_workers=0)
    running = iter(loader)
    return lambda: next(running)


def training_step(size: int, batch_size: int, classes: int) -> Task:
    model = torchvision.models.resnet18(num_classes=classes)
    model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.rand(batch_size, 3, size, size).to(memory_format=torch.channels_last)
    labels = torch.arange(batch_size) % classes

    def once() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return once


def measure(work: dict[str, Task], repeats: int) -> dict[str, float]:
    """Median seconds of one call of each, taking turns; the first turn is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for repeat in range(repeats + 1):
        for name, task in work.items():
            start = time.perf_counter()
            task()
            if repeat:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def table(seconds: dict[str, float], batch_size: int) -> str:
    rows = []
    for name, value in seconds.items():
        speed = "" if name == STEP else f"{seconds[THEIRS] / value:.2f}x"
        share = f"{value / seconds[STEP]:.1%}"
        rows.append((name, f"{batch_size / value:,.0f}", f"{1e3 * value / batch_size:.3f}"))
        rows[-1] += (speed, share)
    headers = ("one thread", "images/s", "ms/image", f"against {THEIRS}", "of a training step")
    return tabulate(rows, headers, "pipe", disable_numparse=True)


if __name__ == "__main__":
    main()
