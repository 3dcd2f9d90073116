"""On a real SLURM: nothing is lost, nothing is done twice, and the numbers are the local ones.

Runs take their time until a test has seen what it waits for and tells them to hurry, so that no
test depends on how fast the machine is.
"""

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
from tests.slurm.lab import Lab, outcomes
from tests.slurm.sweeps import ROUNDS, on_slurm, run_program, steady_specs

pytestmark = pytest.mark.slurm

SMALL = ["training.local_steps=2", "training.batch_size=8"]
SHORT = ["training.rounds=3", *SMALL]
LONG = [f"training.rounds={ROUNDS}", *SMALL]


@pytest.fixture(scope="module", autouse=True)
def limited(cluster, tmp_path_factory) -> Lab:
    """A pack of minutes whose time limit is one minute, less the warning. SLURM looks at the clock
    twice a minute, so this goes on beside other tests and is judged late."""
    with Lab(tmp_path_factory.mktemp("limited") / "runs", cluster).environment() as lab:
        specs = steady_specs(seeds=(7, 8))
        lab.submit(specs, lambda specs: [1.0] * len(specs), time="1", pack_minutes=60)
    return lab


def test_an_array_of_two_dozen_runs_comes_out_as_it_does_locally(lab, locally, capsys):
    flags = ["--methods", "fedavg", "fedbn", "--seeds", "0", "1", "2", "--set", *SHORT]
    flags += ["--slurm", "memory=500MB", "array_parallelism=2", "pack_minutes=0.5"]
    assert lab.sweep(*flags) == 0
    assert "submitted 24 runs in 6 tasks in 1 array" in capsys.readouterr().out
    specs = lab.specs()
    assert len(specs) == 24
    lab.wait_for_results(specs)
    assert outcomes(lab.store, specs) == locally(specs)
    assert lab.done_once(specs)
    assert lab.sweep(*flags) == 0
    assert "results: 24 of 24 runs" in capsys.readouterr().out


def test_requeueing_killing_and_cancelling_lose_nothing(lab, locally, monkeypatch, capsys):
    """One run each: `scontrol requeue`; SIGKILL of the step; `scancel`, then the same command."""
    monkeypatch.setattr(arguments, "Place", functools.partial(Place, checkpoint_seconds=0.0))
    flags = ["--methods", "steady", "--targets", "red", "green", "blue", "--set", *LONG]
    flags += ["--slurm", "memory=500MB", "pack_minutes=0"]
    assert lab.sweep(*flags) == 0
    requeued, killed, cancelled = specs = lab.specs()
    processes = {spec: lab.wait_for_round(spec, 1)["pid"] for spec in specs}
    lab.cluster.run("scontrol", "requeue", lab.find(requeued).job)
    os.kill(processes[killed], signal.SIGKILL)
    lab.cluster.run("scancel", lab.find(cancelled).job)
    capsys.readouterr()
    assert lab.sweep(*flags) == 0
    shown = capsys.readouterr().out
    assert "submitted 1 run in 1 task" in shown
    assert "2 runs are in live jobs already" in shown
    lab.hurry()
    lab.wait_for_results(specs)
    assert outcomes(lab.store, specs) == locally(specs)
    assert lab.done_once(specs)
    assert all(lab.times(spec, "continues after round") == 1 for spec in specs)


def test_submitting_twice_and_from_two_shells_at_once(lab, locally, capsys):
    what = ["--methods", "steady", "--set", *LONG, "--slurm", "memory=500MB", "pack_minutes=2"]
    command = [sys.executable, "-m", "benchmark.sweep", *on_slurm(lab.root, *what)]
    shells = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = "".join(shell.communicate()[0] for shell in shells)
    assert [shell.returncode for shell in shells] == [0, 0]
    assert sum(map(int, re.findall(r"submitted (\d+) run", said))) == 4
    assert sum(map(int, re.findall(r"(\d+) runs? (?:is|are) in live jobs", said))) == 4
    assert lab.sweep(*what) == 0
    assert "4 runs are in live jobs already" in capsys.readouterr().out
    specs = lab.specs()
    assert len(specs) == 4
    lab.wait_for_round(specs[0], 1)
    seen, *_ = json.loads(run_program(capsys, "status", "--json", "--out", lab.root))["runs"]
    assert (seen["run"], seen["state"], seen["rounds"]) == (specs[0].id, "running", ROUNDS)
    assert 1 <= seen["round"] < ROUNDS
    assert seen["seconds_left"] > 0
    lab.hurry()
    shown = run_program(capsys, "status", "--watch", "--every", "1", "--out", lab.root)
    assert "4 runs: 4 done, 0 running, 0 pending, 0 failed, 0 lost" in shown
    assert "\033" not in shown
    lab.wait_for_results(specs)
    assert outcomes(lab.store, specs) == locally(specs)
    assert lab.done_once(specs)


def test_cancelled_arrays_are_taken_up_by_retry(lab, locally, capsys):
    specs = steady_specs(seeds=range(9), rounds=20, pause=5.0)
    done = lab.submit(specs, array_parallelism=2)
    assert (done.tasks, len(done.jobs)) == (9, 2)
    begun = [specs[0], specs[1]]  # the first of each array
    for spec in begun:
        lab.wait_for_round(spec, 0)
    assert "cancelled 9 tasks" in run_program(capsys, "cancel", "--out", lab.root)
    lab.wait_for_quiet()
    assert [lab.find(spec).state for spec in specs] == ["lost"] * 9
    for spec in begun:
        lab.wait(lambda spec=spec: "CANCELLED" in str(lab.find(spec).reason), "accounting")
    lab.hurry()
    flags = ["--out", lab.root, "--slurm", "pack_minutes=60"]
    shown = run_program(capsys, "retry", "--lost", *flags)
    assert "submitted 9 runs in 1 task in 1 array" in shown
    lab.wait_for_results(specs)
    assert outcomes(lab.store, specs) == locally(specs)
    assert all(lab.times(spec, "is done") == 1 for spec in specs)


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
    assert lab.find(raises).reason == "RuntimeError: not today"
    assert "died 1 times" in lab.find(dies).reason
    shown = run_program(capsys, "logs", raises.id[:8], "--out", lab.root)
    assert "failed: RuntimeError: not today" in shown
    assert "Traceback" in shown
    assert dies.id not in shown
    lab.wait_for_quiet()
    flags = ["--out", lab.root, "--slurm", "pack_minutes=0"]
    shown = run_program(capsys, "retry", "--failed", *flags)
    assert "submitted 2 runs in 2 tasks in 1 array" in shown
    lab.wait(lambda: lab.times(raises, "failed: RuntimeError: not today") == 2, "the retry")
    run_program(capsys, "cancel", "--out", lab.root)


def test_a_time_limit_shorter_than_the_pack(limited, locally):
    specs = limited.specs()
    limited.wait(lambda: limited.times(specs[0], "continues after round"), "the time limit")
    limited.hurry()
    limited.wait_for_results(specs)
    assert outcomes(limited.store, specs) == locally(specs)
    assert limited.times(specs[0], "has saved its place") >= 1
    assert limited.done_once(specs)


def test_the_controller_dies_and_comes_back(lab, locally, capsys):
    """The last test: a controller forgets what it learnt in the seconds before it was killed."""
    specs = steady_specs(seeds=(2, 3, 4))
    done = lab.submit(specs, array_parallelism=2)
    for spec in specs[:2]:
        lab.wait_for_round(spec, 1)
    lab.cluster.save_state(done.jobs[0])
    lab.cluster.kill_controller()
    lab.hurry()
    try:
        assert lab.find(specs[2]).state == "unknown"
        assert lab.sweep("--methods", "fedavg") == 2
        assert "Unable to contact slurm controller" in capsys.readouterr().err
        lab.wait_for_results(specs[:2])
    finally:
        lab.cluster.start_controller()
    lab.wait_for_results(specs)
    assert outcomes(lab.store, specs) == locally(specs)
    assert lab.done_once(specs)
