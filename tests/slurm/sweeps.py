"""Runs, requests and command lines that the tests of SLURM share."""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmark import sweep
from benchmark.estimate import expected_seconds
from benchmark.execute import Place
from benchmark.registry import load_plugin
from benchmark.results import Collection
from benchmark.spec import RunSpec
from slurm import __main__ as program
from slurm.profile import Profile
from slurm.request import Request
from tests.conftest import TOY, TRAINING, toy_spec

STEADY = Path(__file__).with_name("steady_plugin.py")
PLUGINS = [str(TOY), str(STEADY)]
NOTHING = Collection([], [], {}, {})
ROUNDS = 60
"""Of runs that take their time: far more than pass before a test has seen what it waits for."""


def request(root: Path, **changes) -> Request:
    """What to submit to the simulated SLURM with."""
    return Request.of(root, Place(), [str(TOY)], Profile(**changes))


def seeds(count: int, start: int = 0) -> list[RunSpec]:
    """Short runs, one per seed."""
    return [toy_spec(seeds=(seed,)) for seed in range(start, start + count)]


def on_slurm(root: Path, *flags) -> list[str]:
    """The flags of a sweep on the toy data."""
    common = ["--datasets", "Toy", "--plugin", *PLUGINS, "--out", root, "--launcher", "slurm"]
    return [str(flag) for flag in (*common, *flags)]


def sweep_on_slurm(root: Path, *flags) -> int:
    """The command line, in this process; its exit code."""
    with pytest.raises(SystemExit) as end:
        sweep.main(on_slurm(root, *flags))
    return end.value.code


def left_behind(root: Path) -> list[Path]:
    """What there is of submissions."""
    return list(root.glob(".slurm/submissions/*"))


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A file system of its own, in memory."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode:
        pytest.skip(f"a file system cannot be mounted here: {answer.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def steady_specs(
    seeds: Sequence[int] = (0,), rounds: int = ROUNDS, pause: float = 2.0, fate: str = "well"
) -> list[RunSpec]:
    """Runs that take their time, one per seed, until they are told to hurry."""
    load_plugin(STEADY)
    training = TRAINING.changed({"rounds": rounds})
    specs = [toy_spec("steady", training=training, seeds=(seed,)) for seed in seeds]
    hparams = {"pause": pause, "fate": fate}
    return [dataclasses.replace(spec, hparams=hparams) for spec in specs]


def expected(specs: Sequence[RunSpec]) -> list[float]:
    return expected_seconds(specs, NOTHING, "cpu")


def run_program(capsys, *arguments) -> str:
    """What `python -m slurm` prints, in this process."""
    with pytest.raises(SystemExit) as end:
        program.main([str(argument) for argument in arguments])
    shown = capsys.readouterr()
    assert end.value.code == 0, shown.err
    return shown.out
