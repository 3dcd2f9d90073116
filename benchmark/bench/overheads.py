"""Everything around training: evaluating, checkpoints, reading results, planning."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmark.backbones.base import make_backbone
from benchmark.bench.rounds import CLASSES, random_images
from benchmark.bench.timing import Table, against, compare, shown
from benchmark.evaluation import score
from benchmark.execute import Place, execute
from benchmark.protocol import plan, protocols
from benchmark.results import ResultStore
from benchmark.state import copy_of
from datasets.base import DomainData, write_atomically
from datasets.partition import Shard
from datasets.samples import Samples
from datasets.transforms import transforms
from leaderboard.tables import make_tables

RESULTS, RUNS = 10_000, 100_000


def measure(repeats: int) -> Sequence[Table]:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        rows = [("collect, select and tabulate", f"{RESULTS:,} results", _collection(work))]
        rows.append(("plan", f"{RUNS:,} runs", _planning()))
        rows += _checkpoint(work, repeats)
    header = ("what", "of", "time")
    return [_evaluation(repeats), Table("Around training", header, rows, "One thread.")]


def _evaluation(repeats: int) -> Table:
    """A domain of 1,024 images, against the loop one writes by hand, in both batch sizes."""
    data = random_images(1024, 64)
    samples = Samples(Shard.of(0, np.arange(len(data))), [data], transforms["digits"](64))
    model = make_backbone("resnet18", CLASSES, "none").eval()
    ways: dict[str, Callable[[], object]] = {
        f"bare, batches of {size}": lambda size=size: _by_hand(model, data, size)
        for size in (256, 32)
    }
    ways["harness"] = lambda: score(model, samples)
    rows = against(compare(ways, repeats), "bare, batches of 256")
    return Table("Evaluation of 1,024 images, ResNet-18, 64 px", ("", "time", "ratio"), rows)


@torch.no_grad()
def _by_hand(model: torch.nn.Module, data: DomainData, size: int) -> float:
    right = 0
    for start in range(0, len(data), size):
        pixels = torch.from_numpy(data.images[start : start + size]).permute(0, 3, 1, 2)
        labels = torch.from_numpy(data.labels[start : start + size])
        right += (model(pixels * (2 / 255) - 1).argmax(1) == labels).sum().item()
    return right / len(data)


def _checkpoint(work: Path, repeats: int) -> list[tuple[str, str, str]]:
    """ResNet-18 with what SCAFFOLD keeps for three clients: four more states."""
    state = make_backbone("resnet18", CLASSES, "none").state_dict()
    saved = {"state": state, "memories": [copy_of(state) for _ in range(4)]}
    path = work / "checkpoint.pt"
    times = compare(
        {
            "save": lambda: write_atomically(path, lambda temporary: torch.save(saved, temporary)),
            "load": lambda: torch.load(path, weights_only=True),
        },
        repeats,
    )
    size = f"{path.stat().st_size / 2**20:.0f} MB"
    return [(f"{name} a checkpoint", size, str(timing)) for name, timing in times.items()]


def _collection(work: Path) -> str:
    """One real result stored under many seeds."""
    store = ResultStore(work / "runs")
    specs = plan(protocols["demo"], ["fedavg"], targets=["print"]).specs
    result = execute(specs[0], store, Place(data=work / "data"))
    for seed in range(1, RESULTS):
        spec = dataclasses.replace(result.spec, seed=seed)
        store.put(dataclasses.replace(result, spec=spec))
    times = compare({"": lambda: make_tables(store.collect(), ["training_domain"])}, 1)
    return shown(times[""].median)


def _planning() -> str:
    targets = len(plan(protocols["demo"], ["fedavg"]).specs)
    seeds = tuple(range(RUNS // targets))
    times = compare({"": lambda: plan(protocols["demo"], ["fedavg"], changes={"seeds": seeds})}, 1)
    return shown(times[""].median)
