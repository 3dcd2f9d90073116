"""The input pipeline: decoded from files, read from the decoded cache, prepared for training by the
suite, prepared by torchvision's ImageFolder and DataLoader with DomainBed's transform, and for
scale a training step of ResNet-18. The numbers are of processor work, not of the disk."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import torchvision
from PIL import Image
from torchvision import transforms as reference

from benchmark.bench.timing import Table, compare
from benchmark.errors import UserError
from datasets.base import DomainData
from datasets.cache import Place, decoded
from datasets.layouts import Listing, class_names, read_domain
from datasets.partition import Shard
from datasets.samples import Samples
from datasets.transforms import DomainBed

Task = Callable[[], object]
SIZE, BATCH = 224, 32
OURS, THEIRS, STEP = "cache + `domainbed`", "ImageFolder + DataLoader", "ResNet-18 training step"


def measure(repeats: int, root: Path | None = None) -> Sequence[Table]:
    """On a folder of class folders; without one, on photographs' stand-ins made for the purpose."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        if root is None:
            root = make_images(work / "images")
        times = compare(tasks(root, SIZE, BATCH, work / "cache"), repeats)
    rows = []
    for name, one in times.items():
        speed = "" if name == STEP else f"{times[THEIRS].median / one.median:.2f}×"
        share = f"{one.median / times[STEP].median:.1%}"
        rows.append((name, f"{BATCH / one.median:,.0f}", speed, share))
    header = (f"{SIZE} px, one thread", "images/s", f"against {THEIRS}", "of a training step")
    return [Table("Input pipeline", header, rows, "Files and cache are in memory before.")]


def make_images(root: Path) -> Path:
    """JPEG files of PACS's size with smooth content, as photographs have."""
    rng = np.random.default_rng(0)
    for name in ("one", "two"):
        (root / name).mkdir(parents=True)
        for k in range(64):
            coarse = rng.integers(0, 256, (12, 12, 3), dtype=np.uint8)
            picture = Image.fromarray(coarse).resize((227, 227), Image.Resampling.BICUBIC)
            picture.save(root / name / f"{k}.jpg", quality=90)
    return root


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
