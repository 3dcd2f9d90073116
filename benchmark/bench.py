"""`python -m benchmark.bench`: what the harness costs, against a bare PyTorch loop, in one process.

One FedAvg round is timed twice on the same samples, model, batch order and memory format: as the
suite does it, and as one would write it by hand with nothing but PyTorch. Repeats alternate, so
that both meet the same machine; the table shows medians and the ratio.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tabulate import tabulate

from benchmark.backbones.base import make_backbone
from benchmark.errors import ArgumentParser, command_line
from benchmark.federation import Client, Server, rounds
from benchmark.method import make_method
from benchmark.spec import Training
from datasets.base import DomainData
from datasets.partition import Shard
from datasets.samples import Samples, batch_order
from datasets.transforms import transforms

CLASSES = 7


def case(backbone: str, size: int, clients: int, steps: int, batch: int) -> tuple:
    """A federation on random images, and the arrays it is made of."""
    rng = np.random.default_rng(0)
    count = steps * batch
    domains = [
        DomainData(
            rng.integers(0, 256, (count, size, size, 3), dtype=np.uint8),
            rng.integers(0, CLASSES, count),
        )
        for _ in range(clients)
    ]
    training = Training(rounds=10**6, local_steps=steps, batch_size=batch, lr=0.01, momentum=0.9)
    model = make_backbone(backbone, CLASSES, "none")
    server = Server(model, training, seed=0, client_count=clients)
    working = copy.deepcopy(model)
    transform = transforms["digits"](size)
    crew = []
    for k in range(clients):
        samples = Samples(Shard.of(k, np.arange(count)), domains, transform)
        crew.append(Client(k, str(k), samples, samples, server, working))
    return server, crew, domains, training


def harness_round(server: Server, crew: Sequence[Client]) -> Callable[[], None]:
    """One round of the suite's loop per call."""
    running = rounds(make_method("fedavg", {}), server, crew)
    return lambda: next(running) and None


def bare_round(
    model: torch.nn.Module, domains: Sequence[DomainData], training: Training
) -> Callable[[], None]:
    """The same round as plain PyTorch: copy, train, average."""
    working = copy.deepcopy(model)
    offset = torch.full((1, 3, 1, 1), -1.0)

    def once() -> None:
        states = []
        for data in domains:
            working.load_state_dict(model.state_dict())
            working.train()
            optimizer = torch.optim.SGD(
                working.parameters(), lr=training.lr, momentum=training.momentum
            )
            rng = np.random.default_rng(0)
            for rows in batch_order(
                len(data), training.batch_size, rng, training.local_steps, None
            ):
                pixels = torch.from_numpy(data.images[rows]).permute(0, 3, 1, 2)
                images = pixels * (2 / 255) + offset
                loss = F.cross_entropy(working(images), torch.from_numpy(data.labels[rows]))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            states.append({k: v.clone() for k, v in working.state_dict().items()})
        mean = {
            key: sum(state[key] for state in states) / len(states)
            if states[0][key].is_floating_point()
            else states[0][key]
            for key in states[0]
        }
        model.load_state_dict(mean)

    return once


def compare(
    contenders: dict[str, Callable[[], None]], repeats: int
) -> dict[str, tuple[float, float]]:
    """Median and spread of the seconds of each, their repeats alternating."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for run in contenders.values():
        run()  # warm
    for _ in range(repeats):
        for name, run in contenders.items():
            began = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - began)
    return {
        name: (statistics.median(values), statistics.pstdev(values))
        for name, values in times.items()
    }


CASES = {
    "small CNN, 32 px, 3 clients × 20 steps of 32": ("cnn_small_bn", 32, 3, 20, 32),
    "tiny CNN, 32 px, 3 clients × 20 steps of 32": ("cnn_tiny_bn", 32, 3, 20, 32),
    "ResNet-18, 64 px, 3 clients × 4 steps of 32": ("resnet18", 64, 3, 4, 32),
}


@command_line
def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="python -m benchmark.bench", description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--to", type=Path, help="also write the table here")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = []
    for name, parts in CASES.items():
        if options.only.lower() not in name.lower():
            continue
        server, crew, domains, training = case(*parts)
        contenders = {
            "bare": bare_round(copy.deepcopy(server.model), domains, training),
            "harness": harness_round(server, crew),
        }
        measured = compare(contenders, options.repeats)
        bare, harness = measured["bare"], measured["harness"]
        rows.append(
            (
                name,
                f"{1000 * bare[0]:.0f} ± {1000 * bare[1]:.0f}",
                f"{1000 * harness[0]:.0f} ± {1000 * harness[1]:.0f}",
                f"{harness[0] / bare[0]:.3f}",
            )
        )
    header = ("one FedAvg round, one thread", "bare loop, ms", "harness, ms", "ratio")
    table = tabulate(rows, header, "github", disable_numparse=True)
    print(table)
    if options.to:
        options.to.write_text(table + "\n")
    return 0


if __name__ == "__main__":
    main()
