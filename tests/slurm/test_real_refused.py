"""On a real SLURM: what cannot be submitted is one clear line, and nothing is half-submitted."""

from __future__ import annotations

import pytest

from tests.slurm.lab import Lab
from tests.slurm.sweeps import left_behind, mounted

pytestmark = pytest.mark.slurm

REFUSED = {
    "bad profile": (["--profile", "gpuu"], "unknown SLURM profile 'gpuu', did you mean 'gpu'?"),
    "bad key": (["--slurm", "partitoin=x"], "did you mean 'partition'?"),
    "unknown partition": (["--slurm", "partition=gpuu"], "this cluster has: debug"),
    "too much memory": (["--slurm", "memory=900GB"], "sbatch refused: Requested node config"),
    "unknown flag": (["--slurm", "sbatch=no-such-flag=1"], "sbatch refused: "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_one_line_and_nothing_is_submitted(case, lab, capsys):
    refused(lab, *REFUSED[case], capsys)


def test_without_sbatch_nothing_is_submitted(lab, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    refused(lab, [], "no sbatch on this machine: submit from a login node", capsys)


def test_on_a_full_disk_nothing_is_submitted(lab, capsys):
    with mounted(lab.root, "size=64k"):
        flags = ["--seeds", *range(200), "--slurm", "pack_minutes=0"]
        refused(lab, flags, "No space left on device; nothing was submitted", capsys)


def test_with_an_unwritable_log_folder_nothing_is_submitted(lab, capsys):
    with mounted(lab.root / ".slurm", "ro"):
        refused(lab, [], "/.slurm': Read-only file system; nothing was submitted", capsys)


def refused(lab: Lab, flags: list, message: str, capsys) -> None:
    """A sweep that says one line and leaves nothing, neither with SLURM nor in the store."""
    before = jobs(lab)
    assert lab.sweep(*flags) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert jobs(lab) <= before
    assert left_behind(lab.root) == []


def jobs(lab: Lab) -> set[str]:
    return set(lab.cluster.run("squeue", "--noheader", "--format=%F").split())
