"""A sweep of 32 short runs: one command on a pool of workers, against one process per run."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmark.bench.timing import Table, shown
from datasets.base import open_dataset

SEEDS = range(8)
ROUNDS = 25
"""Of the demo protocol: about a second of one core."""


def measure(repeats: int) -> Sequence[Table]:
    """Each is measured once: a sweep is long enough to be its own average."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        _command("run", work, "first", "--targets", "print", "--seeds", "99")  # makes the dataset
        times = {
            "pool, 1 worker": _timed(lambda: _sweep(work, 1)),
            "pool, 2 workers": _timed(lambda: _sweep(work, 2)),
            "a process per run, 2 at a time": _timed(lambda: _separately(work, 2)),
        }
    pool = times["pool, 2 workers"]
    count = len(SEEDS) * len(open_dataset("MiniDigits").domains)
    rows = [
        (name, shown(seconds), f"{count / seconds:.2f}", f"{seconds / pool:.2f}")
        for name, seconds in times.items()
    ]
    header = (f"{count} FedAvg runs", "time", "runs per second", "times the pool of 2")
    return [Table("A sweep of short runs", header, rows, "Everything included, from the command.")]


def _sweep(work: Path, workers: int) -> None:
    seeds = [str(seed) for seed in SEEDS]
    _command("sweep", work, f"pool{workers}", "--seeds", *seeds, "--workers", str(workers))


def _separately(work: Path, at_a_time: int) -> None:
    pairs = [(t, str(s)) for t in open_dataset("MiniDigits").domains for s in SEEDS]
    with ThreadPoolExecutor(at_a_time) as threads:
        done = [
            threads.submit(_command, "run", work, "single", "--targets", target, "--seeds", seed)
            for target, seed in pairs
        ]
        for one in done:
            one.result()


def _command(program: str, work: Path, out: str, *flags: str) -> None:
    subprocess.run(
        [
            *(sys.executable, "-m", f"benchmark.{program}", "--methods", "fedavg"),
            *("--set", f"training.rounds={ROUNDS}", "--data", work / "data", "--out", work / out),
            *flags,
        ],
        check=True,
        capture_output=True,
    )


def _timed(run) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began
