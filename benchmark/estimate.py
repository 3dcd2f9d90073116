"""How long runs may take: from stored runs of the same kind, else from one timed step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from benchmark.backbones.base import make_backbone
from benchmark.execute import Place
from benchmark.results import Collection
from benchmark.spec import RunSpec
from datasets.base import open_dataset
from datasets.partition import make_partition

IMAGES_PER_CLIENT = 1500
"""Assumed where local work is counted in epochs and the data has not been read."""


def estimate(todo: Sequence[RunSpec], found: Collection, place: Place, workers: int) -> str:
    """One line: the expected time of all runs together and on these workers."""
    measured: dict[tuple, list[float]] = {}
    for result in found.results:
        seconds = result.costs["train_seconds"] + result.costs["evaluation_seconds"]
        measured.setdefault(_kind(result.spec), []).append(seconds)
    steps: dict[tuple, float] = {}
    total = 0.0
    for spec in todo:
        if _kind(spec) in measured:
            total += statistics.median(measured[_kind(spec)])
        else:
            key = (spec.backbone, spec.image_size, spec.dataset, spec.training.batch_size)
            if key not in steps:
                steps[key] = time_step(spec, place)
            total += steps[key] * steps_of(spec)
    basis = (
        f"stored runs and timed steps of {', '.join(k[0] for k in steps)}"
        if steps
        else "stored runs"
    )
    wall = max(total / workers, total / len(todo))
    return (
        f"estimate: {duration(total)} of work, about {duration(wall)} on {workers} workers "
        f"(from {basis})"
    )


def time_step(spec: RunSpec, place: Place) -> float:
    """Seconds of one FedAvg training step, measured now on a small batch and scaled up."""
    torch.set_num_threads(place.threads)
    classes = len(open_dataset(spec.dataset).classes)
    model = make_backbone(spec.backbone, classes, "none").to(place.device)
    count = min(8, spec.training.batch_size)
    size = (count, 3, spec.image_size, spec.image_size)
    images = torch.zeros(size, device=place.device).to(memory_format=torch.channels_last)
    labels = torch.zeros(count, dtype=torch.long, device=place.device)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        F.cross_entropy(model(images), labels).backward()
        if place.device != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times) * spec.training.batch_size / count


def steps_of(spec: RunSpec) -> float:
    """Training steps of a run, an evaluated batch counted as a third of a step."""
    sources = len(open_dataset(spec.dataset).domains) - 1
    clients = make_partition(spec.partition).client_count(sources)
    chosen = min(spec.training.clients_per_round or clients, clients)
    if spec.training.local_steps is not None:
        local = spec.training.local_steps
    else:
        local = spec.training.local_epochs * IMAGES_PER_CLIENT / spec.training.batch_size
    evaluated = 1.5 * IMAGES_PER_CLIENT / spec.training.batch_size / 3
    return spec.training.rounds * (chosen * local + evaluated / spec.training.evaluate_every)


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _kind(spec: RunSpec) -> tuple:
    return (spec.dataset, spec.method, spec.setting)
