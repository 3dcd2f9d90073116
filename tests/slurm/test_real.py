"""On a real SLURM: nothing is lost, nothing is done twice, and the numbers are the local ones."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys

import pytest

from benchmark import arguments
from benchmark.execute import Place
from slurm import __main__ as program
from tests.slurm.conftest import PLUGINS, Lab, outcomes, steady_specs

pytestmark = pytest.mark.slurm

SHORT = ["training.rounds=3", "training.local_steps=2", "training.batch_size=8"]
STEADY = [
    "training.rounds=40",
    "training.local_steps=2",
    "training.batch_size=8",
]


@pytest.fixture(scope="module", autouse=True)
def limited(cluster, tmp_path_factory) -> Lab:
    """A pack of about a minute's work whose time limit is one minute, less the warning. SLURM looks
    at the clock twice a minute, so this goes on beside all other tests and is judged by the last.
    """
    lab = Lab(tmp_path_factory.mktemp("limited") / "runs", cluster)
    specs = steady_specs(seeds=(7, 8), rounds=200, pause=0.1)
    lab.submit(specs, lambda specs: [1.0] * len(specs), time="1", warning=50, pack_minutes=60)
    return lab


def call(*flags) -> None:
    with pytest.raises(SystemExit) as end:
        program.main([str(flag) for flag in flags])
    assert end.value.code == 0


def test_two_dozen_runs_come_out_as_they_do_locally(lab, locally, capsys):
    flags = ["--methods", "fedavg", "fedbn", "--seeds", "0", "1", "2", "--set", *SHORT]
    flags += ["--launcher", "slurm", "--slurm", "memory=500MB", "array_parallelism=2"]
    flags += ["pack_minutes=0.8"]
    assert lab.sweep(*flags) == 0
    assert "submitted 24 runs in 4 tasks in 2 arrays" in capsys.readouterr().out
    specs = lab.specs()
    assert len(specs) == 24
    lab.wait_for_results(specs)
    assert outcomes(lab.store, specs) == locally(specs)
    assert all(lab.times(spec, "begins") == 1 for spec in specs)
    assert lab.sweep(*flags) == 0
    assert "results: 24 of 24 runs" in capsys.readouterr().out


def test_requeueing_killing_and_cancelling_lose_nothing(lab, locally, monkeypatch, capsys):
    """One run each: `scontrol requeue`; SIGKILL of the step; `scancel`, then the same command."""
    monkeypatch.setattr(arguments, "Place", functools.partial(Place, checkpoint_seconds=0.0))
    flags = ["--methods", "steady", "--targets", "red", "green", "blue", "--set", *STEADY]
    flags += ["--launcher", "slurm", "--slurm", "memory=500MB", "pack_minutes=0"]
    assert lab.sweep(*flags) == 0
    requeued, killed, cancelled = specs = lab.specs()
    processes = {spec: lab.wait_for_round(spec, 4)["pid"] for spec in specs}
    lab.cluster.run("scontrol", "requeue", lab.find(requeued).job)
    os.kill(processes[killed], signal.SIGKILL)
    lab.cluster.run("scancel", lab.find(cancelled).job)
    lab.hurry()
    capsys.readouterr()
    assert lab.sweep(*flags) == 0
    shown = capsys.readouterr().out
    assert "submitted 1 runs" in shown
    assert "2 runs are in live jobs already" in shown
    lab.wait_for_results(specs)
    assert outcomes(lab.store, specs) == locally(specs)
    for spec in specs:
        assert lab.times(spec, "begins") == 1
        assert lab.times(spec, "continues after round") == 1


def test_the_controller_dies_and_comes_back(lab, locally):
    specs = steady_specs(seeds=(2, 3, 4))
    lab.submit(specs, array_parallelism=2)
    lab.wait_for_round(specs[0], 2)
    lab.cluster.kill_controller()
    try:
        assert lab.find(specs[2]).state == "unknown"
        lab.hurry()
        lab.wait_for_results(specs[:1])
    finally:
        lab.cluster.start_controller()
    lab.wait_for_results(specs)
    assert outcomes(lab.store, specs) == locally(specs)
    assert all(lab.times(spec, "begins") == 1 for spec in specs)


def test_submitting_twice_and_from_two_shells_at_once(lab, locally, capsys):
    what = ["--methods", "steady", "--set", *STEADY, "--launcher", "slurm"]
    what += ["--slurm", "memory=500MB", "pack_minutes=2"]
    flags = ["--datasets", "Toy", "--plugin", *PLUGINS, "--out", lab.root, *what]
    command = [sys.executable, "-m", "benchmark.sweep", *map(str, flags)]
    shells = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = "".join(shell.communicate(timeout=200)[0] for shell in shells)
    assert [shell.returncode for shell in shells] == [0, 0]
    assert sum(map(int, re.findall(r"submitted (\d+) runs", said))) == 4
    assert sum(map(int, re.findall(r"(\d+) runs are in live jobs", said))) == 4
    assert lab.sweep(*what) == 0
    assert "4 runs are in live jobs already" in capsys.readouterr().out
    specs = lab.specs()
    assert len(specs) == 4
    lab.wait_for_round(specs[0], 5)
    call("status", "--json", "--out", lab.root)
    seen = json.loads(capsys.readouterr().out)["runs"][0]
    assert (seen["run"], seen["state"], seen["rounds"]) == (specs[0].id, "running", 40)
    assert 5 <= seen["round"] < 40
    assert seen["seconds_left"] > 0
    lab.hurry()
    call("status", "--watch", "--every", "1", "--out", lab.root)
    shown = capsys.readouterr().out
    assert "4 runs: 4 done, 0 running, 0 pending, 0 failed, 0 lost" in shown
    assert "\033" not in shown
    assert outcomes(lab.store, specs) == locally(specs)
    assert all(lab.times(spec, "begins") == 1 for spec in specs)


def test_a_run_that_fails_or_kills_its_process_does_not_take_its_pack_with_it(lab, locally, capsys):
    raises, dies, well = specs = [
        *steady_specs(rounds=6, fate="raises"),
        *steady_specs(rounds=5, fate="dies"),
        *steady_specs(rounds=4),
    ]
    lab.hurry()
    lab.submit(specs, pack_minutes=10, retries=0)
    lab.wait_for_results([well])
    assert outcomes(lab.store, [well]) == locally([well])
    assert [lab.find(spec).state for spec in specs] == ["failed", "failed", "done"]
    assert lab.times(raises, "begins") == lab.times(dies, "begins") == 1
    failure = json.loads(lab.store.failure_path(raises).read_text())
    assert failure["reason"] == "RuntimeError: not today"
    assert "Traceback" in failure["detail"]
    assert "died 1 times" in json.loads(lab.store.failure_path(dies).read_text())["reason"]
    call("logs", raises.id[:8], "--out", lab.root)
    shown = capsys.readouterr().out
    assert "failed: RuntimeError: not today" in shown
    assert "Traceback" in shown
    lab.wait_for_quiet()
    call("retry", "--failed", "--out", lab.root, "--slurm", "pack_minutes=0", "retries=1")
    assert "submitted 2 runs in 2 tasks in 1 arrays" in capsys.readouterr().out
    call("cancel", "--out", lab.root)
    assert "cancelled 2 tasks" in capsys.readouterr().out
    lab.store.failure_path(raises).unlink()
    lab.wait(lambda: lab.find(raises).state == "lost", "the end of what was cancelled")
    lab.wait(lambda: "CANCELLED" in (lab.find(raises).reason or ""), "accounting")


REFUSED = {
    "unknown partition": (["partition=gpuu"], "this cluster has: debug"),
    "too much memory": (["memory=900GB"], "sbatch refused: Requested node configuration is not"),
    "unknown flag": (["sbatch=no-such-flag=1"], "sbatch refused: "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_sbatch_refuses_is_one_line_and_nothing_is_submitted(case, lab, capsys):
    settings, message = REFUSED[case]
    assert lab.sweep("--launcher", "slurm", "--slurm", *settings) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert list((lab.root / ".slurm" / "submissions").iterdir()) == []
    assert list((lab.root / ".slurm" / "claims").iterdir()) == []


def test_a_time_limit_shorter_than_the_pack(limited, locally):
    specs = limited.specs()
    limited.wait_for_results(specs, patience=300)
    assert outcomes(limited.store, specs) == locally(specs)
    assert sum(limited.times(spec, "continues after round") for spec in specs) >= 1
    assert all(limited.times(spec, "begins") == 1 for spec in specs)
