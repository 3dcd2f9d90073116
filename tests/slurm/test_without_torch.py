"""The submit host needs no torch: planning, submitting and watching in a process that has none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmark.protocol import plan, protocols
from tests.conftest import TOY
from tests.slurm.simulated import Simulated

ROOT = Path(__file__).parent.parent.parent
BLOCK = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""


@pytest.fixture
def without_torch(tmp_path):
    """Run some code in a process that has no torch; its output."""
    scheduler = Simulated(tmp_path / "commands")
    environment = {**os.environ, "PATH": scheduler.path}

    def run(code: str, succeed: bool = True) -> str:
        answer = subprocess.run(
            [sys.executable, "-c", BLOCK + code],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert (answer.returncode == 0) == succeed, answer.stderr
        return answer.stdout + answer.stderr

    return run


def call(program: str, *arguments) -> str:
    flags = [str(argument) for argument in arguments]
    return f"from {program} import main\nmain({flags!r})"


def test_plans_are_the_same(without_torch):
    """The other side is a process of its own, too: this one may hold other tests' plugins."""
    code = """
from benchmark.protocol import plan, protocols
for name in protocols:
    planned = plan(protocols[name], ["all"], trials=2)
    print(name, len(planned.left_out), *[spec.id for spec in planned.specs])
"""
    found = without_torch("\nimport benchmark.without_torch\n" + code).splitlines()
    planned = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert [line.split()[0] for line in found] == protocols.names()
    assert found == planned


def test_a_sweep_is_planned_shown_submitted_watched_and_cancelled(without_torch, tmp_path):
    flags = ["--methods", "fedavg", "fedprox", "--datasets", "Toy", "--plugin", TOY]
    flags += ["--out", tmp_path / "runs", "--launcher", "slurm"]
    shown = without_torch(call("benchmark.sweep", *flags, "--dry-run"))
    ids = [spec.id for spec in plan(protocols["demo"], ["fedavg"], datasets=["Toy"]).specs]
    assert all(run in shown for run in ids)
    assert "8 runs in 1 task in 1 array" in shown
    assert "submitted 8 runs in 1 task" in without_torch(call("benchmark.sweep", *flags))
    assert "8 runs are in live jobs" in without_torch(call("benchmark.sweep", *flags))
    out = ["--out", tmp_path / "runs"]
    assert "8 runs: 0 done, 0 running, 8 pending" in without_torch(
        call("slurm.__main__", "status", *out)
    )
    assert "cancelled 1 task" in without_torch(call("slurm.__main__", "cancel", *out))
    assert "submitted 8 runs" in without_torch(call("slurm.__main__", "retry", "--lost", *out))


def test_computing_says_what_is_missing(without_torch, tmp_path):
    flags = ["--datasets", "Toy", "--plugin", TOY, "--out", tmp_path / "runs", "--dry-run"]
    said = without_torch(call("benchmark.sweep", *flags), succeed=False)
    assert "needs PyTorch, which is not installed here" in said
    assert "Traceback" not in said
    assert "unknown backbone 'resnet19'" in without_torch(
        call("benchmark.sweep", *flags, "--backbone", "resnet19"), succeed=False
    )


def test_where_torch_is_installed_nothing_changes():
    code = "import sys, benchmark.without_torch, torch; sys.exit(int(torch.zeros(2).sum()))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
