"""How long runs may take: from stored runs of the same kind, else from one timed step or, where
nothing can be computed, from the size of the network."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchmark.results import Collection
from benchmark.spec import RunSpec
from datasets.base import open_dataset
from datasets.partition import make_partition

if TYPE_CHECKING:
    from benchmark.execute import Place

IMAGES_PER_CLIENT = 1500
"""Assumed where local work is counted in epochs and the data has not been read."""


GIGAFLOPS = {
    "cnn_tiny": 0.15,
    "cnn": 1.5,
    "alexnet": 0.7,
    "resnet18": 1.8,
    "densenet121": 2.9,
    "resnet50": 4.1,
    "vit": 17.6,
}
"""Of one forward pass at 224 × 224, by the beginning of the backbone's name."""
SPEED = {"cpu": 25.0, "cuda": 4000.0}
"""GFLOP per second that training reaches on one core and on one GPU, roughly."""
STEP_SECONDS, RUN_SECONDS = 0.01, 5.0
"""What a step costs besides arithmetic; what a run costs before its first round."""


def estimate(todo: Sequence[RunSpec], found: Collection, place: Place, workers: int) -> str:
    """One line: the expected time of all runs together and on these workers."""
    measured = measured_seconds(found)
    steps: dict[tuple, float] = {}
    total = 0.0
    for spec in todo:
        if _kind(spec) in measured:
            total += measured[_kind(spec)]
        else:
            key = (spec.backbone, spec.image_size, spec.dataset, spec.training.batch_size)
            if key not in steps:
                steps[key] = time_step(spec, place)
            total += steps[key] * steps_of(spec)
    basis = (
        f"stored runs and timed steps of {', '.join(dict.fromkeys(k[0] for k in steps))}"
        if steps
        else "stored runs"
    )
    wall = max(total / workers, total / len(todo))
    return (
        f"estimate: {duration(total)} of work, about {duration(wall)} on {workers} workers "
        f"(from {basis})"
    )


def measured_seconds(found: Collection, device: str | None = None) -> dict[tuple, float]:
    """What stored runs took, by kind; `device` (cpu or cuda) counts only runs on such a one."""
    measured: dict[tuple, list[float]] = {}
    for result in found.results:
        where = "cpu" if result.environment.get("device") == "cpu" else "cuda"
        if device in (None, where):
            seconds = result.costs["train_seconds"] + result.costs["evaluation_seconds"]
            measured.setdefault(_kind(result.spec), []).append(seconds)
    return {kind: statistics.median(times) for kind, times in measured.items()}


def expected_seconds(specs: Sequence[RunSpec], found: Collection, device: str) -> list[float]:
    """Seconds of each run on one `cpu` core or `cuda` device, to pack them by; needs no torch."""
    measured = measured_seconds(found, device)
    return [
        measured[_kind(spec)] + RUN_SECONDS if _kind(spec) in measured else guess(spec, device)
        for spec in specs
    ]


def guess(spec: RunSpec, device: str) -> float:
    """Seconds of a run of which nothing is known but its spec."""
    names = [name for name in GIGAFLOPS if spec.backbone.startswith(name)]
    forward = GIGAFLOPS[max(names, key=len)] if names else GIGAFLOPS["resnet18"]
    work = 3 * forward * spec.training.batch_size * (spec.image_size / 224) ** 2
    return RUN_SECONDS + steps_of(spec) * (STEP_SECONDS + work / SPEED[device])


def time_step(spec: RunSpec, place: Place) -> float:
    """Seconds of one FedAvg training step, measured now on a small batch and scaled up."""
    import torch
    import torch.nn.functional as F

    from benchmark.backbones.base import make_backbone

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
    clients = _client_count(spec.dataset, spec.partition)
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


@functools.cache
def _client_count(dataset: str, partition: str) -> int:
    return make_partition(partition).client_count(len(open_dataset(dataset).domains) - 1)


def _kind(spec: RunSpec) -> tuple:
    return (spec.dataset, spec.method, spec.setting)
