"""One FedAvg round: the suite's loop, alone and with parallel clients, against bare PyTorch."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F

from benchmark.backbones.base import make_backbone
from benchmark.bench.timing import Table, compare
from benchmark.crew import Crew
from benchmark.execute import Federation
from benchmark.federation import Client, Server, one_by_one, rounds
from benchmark.method import make_method
from benchmark.spec import Training
from datasets.base import DomainData
from datasets.partition import Shard
from datasets.samples import Samples, batch_order
from datasets.transforms import transforms

CLASSES = 7
WORKERS = 2


def random_images(count: int, size: int) -> DomainData:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    return DomainData(pixels, rng.integers(0, CLASSES, count))


def federation(
    backbone: str, size: int, clients: int, chosen: int, steps: int, batch: int = 32
) -> Federation:
    """FedAvg on random images, the same ones for every client."""
    data = random_images(steps * batch, size)
    training = Training(
        rounds=10**6,
        local_steps=steps,
        clients_per_round=chosen,
        batch_size=batch,
        lr=0.01,
        momentum=0.9,
    )
    model = make_backbone(backbone, CLASSES, "none")
    server = Server(model, training, seed=0, client_count=clients)
    working = copy.deepcopy(model)
    samples = Samples(Shard.of(0, np.arange(len(data))), [data], transforms["digits"](size))
    crew = [Client(k, str(k), samples, samples, server, working) for k in range(clients)]
    return Federation(make_method("fedavg", {}), server, crew, None, "", [])


def harness_round(ours: Federation, visits: Callable = one_by_one) -> Callable[[], object]:
    """One round of the suite's loop per call."""
    running = rounds(ours.method, ours.server, ours.clients, 0, visits)
    return lambda: next(running)


def bare_round(ours: Federation, usual: bool = False) -> Callable[[], object]:
    """The same round as plain PyTorch: copy, train, average. `usual`: in the memory layout that
    PyTorch has by default, which is slower on processors than the one the suite takes."""
    training, samples = ours.server.training, ours.clients[0].train
    data, count = samples._domains[0], training.clients_per_round
    model = copy.deepcopy(ours.server.model)
    if usual:
        model = model.to(memory_format=torch.contiguous_format)
    working = copy.deepcopy(model)

    def once() -> None:
        states = []
        for _ in range(count):
            working.load_state_dict(model.state_dict())
            local_training(working, data, training, usual)
            states.append({k: v.clone() for k, v in working.state_dict().items()})
        mean = {
            key: sum(state[key] for state in states) / len(states)
            if states[0][key].is_floating_point()
            else states[0][key]
            for key in states[0]
        }
        model.load_state_dict(mean)

    return once


def local_training(
    model: torch.nn.Module, data: DomainData, training: Training, usual: bool = False
) -> None:
    """A client's work as one writes it by hand."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=training.lr, momentum=training.momentum)
    rng = np.random.default_rng(0)
    for rows in batch_order(len(data), training.batch_size, rng, training.local_steps, None):
        pixels = torch.from_numpy(data.images[rows]).permute(0, 3, 1, 2)
        images = (pixels.contiguous() if usual else pixels) * (2 / 255) - 1
        loss = F.cross_entropy(model(images), torch.from_numpy(data.labels[rows]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@contextlib.contextmanager
def contenders(case: tuple) -> Iterator[dict[str, Callable[[], object]]]:
    """All ways to do one round of a case, each on its own copy of the model."""
    make = functools.partial(federation, *case)
    ours = make()

    def on(threads: int, run: Callable[[], object]) -> Callable[[], object]:
        def once() -> None:
            torch.set_num_threads(threads)
            run()

        return once

    torch.set_num_threads(1)
    with contextlib.closing(Crew(make, WORKERS)) as crew:
        yield {
            "bare, 1 thread": on(1, bare_round(ours)),
            "bare, 2 threads": on(2, bare_round(ours)),
            "bare, 2 threads, default layout": on(2, bare_round(ours, usual=True)),
            "harness, 1 thread": on(1, harness_round(ours)),
            f"harness, {WORKERS} client workers": on(1, harness_round(make(), crew.visits)),
        }


SMALL = ("cnn_small_bn", 32, 30, 10, 17)
CASES: dict[str, tuple] = {
    "small CNN, 32 px, 10 of 30 clients × 17 steps of 32": SMALL,
    "tiny CNN, 32 px, 3 clients × 20 steps of 32": ("cnn_tiny_bn", 32, 3, 3, 20),
    "ResNet-18, 64 px, 3 clients × 4 steps of 32": ("resnet18", 64, 3, 3, 4),
    "ResNet-18, 224 px, 3 clients × 1 step of 32": ("resnet18", 224, 3, 3, 1),
}


def measure(repeats: int) -> Sequence[Table]:
    rows, names = [], []
    for title, case in CASES.items():
        with contenders(case) as ways:
            names = list(ways)
            times = compare(ways, repeats)
        alone, both = times[names[0]].median, times[names[1]].median
        harness, parallel = times[names[3]].median, times[names[4]].median
        rows.append(
            (
                title,
                *(str(times[name]) for name in names),
                f"{harness / alone:.3f}",
                f"{parallel / both:.3f}",
            )
        )
    header = ["one round", *names, "harness / bare, 1 thread", "client workers / bare, 2 threads"]
    note = (
        "Same samples, model and batch order; bare loops are in the suite's memory layout "
        "(channels last) unless said otherwise."
    )
    transposed = list(zip(header, *rows, strict=True))
    return [Table("One FedAvg round", transposed[0], transposed[1:], note)]
