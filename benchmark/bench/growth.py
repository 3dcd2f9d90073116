"""How a round's time and the process's memory grow with the number of clients."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence

import torch

from benchmark.bench.rounds import federation, harness_round
from benchmark.bench.timing import Table, shown
from benchmark.costs import peak_memory_mb

COUNTS = (3, 10, 30, 100)


def measure(repeats: int) -> Sequence[Table]:
    """Each count in a process of its own, whose peak memory is then its own."""
    found = {}
    for count in COUNTS:
        code = f"from benchmark.bench.growth import one_round; one_round({count})"
        answer = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
        found[count] = json.loads(answer.stdout)
    least = found[COUNTS[0]]
    rows = [
        (
            str(count),
            shown(seconds),
            f"{seconds / count / (least[0] / COUNTS[0]):.2f}",
            f"{memory:.0f} MB",
            f"{memory / least[1]:.2f}",
        )
        for count, (seconds, memory) in found.items()
    ]
    header = ("clients", "one round", "per client, ratio to 3", "peak memory", "ratio to 3")
    note = "FedAvg, ResNet-18 at 64 px, one step of 32 images per client, full participation."
    return [Table("Growth with the number of clients", header, rows, note)]


def one_round(count: int) -> None:
    """Prints the seconds of a warm round and the most memory the process has held."""
    torch.set_num_threads(1)
    once = harness_round(federation("resnet18", 64, count, count, 1))
    once()
    began = time.perf_counter()
    once()
    seconds = time.perf_counter() - began
    print(json.dumps([seconds, peak_memory_mb(torch.device("cpu"))]))
