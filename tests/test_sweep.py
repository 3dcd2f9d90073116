"""The command line: plans, launches, failures, interruptions, bad input."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmark import list as listing
from benchmark import run, sweep
from benchmark.execute import Place
from benchmark.launch import launch
from benchmark.results import ResultStore
from leaderboard import __main__ as leaderboard
from tests.conftest import TOY, TRAINING, toy_spec
from tests.test_every_method import outcome

ROOT = Path(__file__).parent.parent
SMALL = ["--set", "training.rounds=2", "training.local_steps=1", "training.batch_size=8"]
FLAGS = ["--datasets", "Toy", "--plugin", str(TOY), *SMALL]


def call(program, *arguments) -> int:
    with pytest.raises(SystemExit) as exit:
        program([str(argument) for argument in arguments])
    return exit.value.code


def command(*arguments) -> list[str]:
    return [sys.executable, "-m", "benchmark.sweep", *map(str, arguments)]


@pytest.fixture
def out(tmp_path):
    return tmp_path / "runs"


def test_a_sweep_runs_stores_and_shows_a_table(out, capsys):
    arguments = ["--methods", "fedavg", "erm_pool", "--out", out, "--workers", "2", *FLAGS]
    assert call(sweep.main, *arguments) == 0
    shown = capsys.readouterr()
    assert "8 runs to do, 0 stored already, 2 workers" in shown.err
    assert "| FedAvg " in shown.out
    assert "results: 8 of 8 runs" in shown.out
    assert (out / "table.md").exists()
    assert (out / "table.tex").exists()
    assert call(sweep.main, *arguments) == 0
    again = capsys.readouterr()
    assert "to do" not in again.err
    assert again.out == shown.out


def test_a_dry_run_lists_and_does_nothing(out, capsys):
    arguments = ["--methods", "fedprox", "--seeds", "0", "1", "--out", out, *FLAGS]
    assert call(sweep.main, *arguments, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert shown.count("to do\n") == 8 + 1
    assert "mu=0.1" in shown
    assert re.search(r"estimate: \d+ s of work, about \d+ s on \d workers", shown)
    assert not out.exists()
    call(sweep.main, "--methods", "fedprox", "--out", out, *FLAGS)
    capsys.readouterr()
    call(sweep.main, *arguments, "--dry-run")
    shown = capsys.readouterr().out
    assert shown.count("stored\n") == 4
    assert "8 runs, 4 stored, 4 to do" in shown


def test_trials_repeat_each_configuration_over_all_seeds(capsys):
    arguments = ["--methods", "fedprox,fedavg", "--trials", "3", "--targets", "red"]
    call(sweep.main, *arguments, "--seeds", "0", "1", *FLAGS, "--dry-run")
    lines = [line for line in capsys.readouterr().out.splitlines() if "to do" in line]
    values = [re.search(r"mu=([\d.e-]+) +(\d)", line).groups() for line in lines if "mu=" in line]
    assert len(values) == 6
    assert len({mu for mu, _ in values}) == 3
    assert {seed for _, seed in values} == {"0", "1"}
    assert sum(" fedavg " in line for line in lines) == 2  # nothing to search


BAD = {
    "unknown method": (["--methods", "fedprx"], "unknown method 'fedprx', did you mean 'fedprox'?"),
    "unknown part": (["--methods", "fedavg+silbn"], "did you mean 'silobn'?"),
    "no match": (["--methods", "zz*"], "no method matches 'zz*'"),
    "unknown dataset": (["--datasets", "MiniDigit"], "did you mean 'MiniDigits'?"),
    "unknown target": (["--targets", "prnt"], "did you mean 'print'?"),
    "unknown protocol": (["--protocol", "dem"], "did you mean 'demo'?"),
    "unknown backbone": (["--backbone", "cnn_tiny"], "did you mean 'cnn_tiny_bn'?"),
    "unknown partition": (["--partition", "single"], "did you mean 'single_domain'?"),
    "partition setting": (["--partition", "single_domain_k:client=2"], "did you mean 'clients'?"),
    "unknown field": (["--set", "training.round=5"], "did you mean 'rounds'?"),
    "unknown scope": (["--set", "fedprx.mu=1"], "did you mean 'fedprox'?"),
    "unused scope": (["--set", "fedprox.mu=1"], "no planned run uses 'fedprox'"),
    "no value": (["--set", "training.rounds"], "write METHOD.NAME=VALUE"),
    "no rounds": (["--set", "training.rounds=0"], "training.rounds=0 is too small"),
    "zero clients": (["--set", "training.clients_per_round=0"], "too small: at least 1"),
    "eleven of ten": (
        ["--set", "training.clients_per_round=11", "--partition", "single_domain_k:clients=3"],
        "clients_per_round=11, but partition single_domain_k:clients=3 of MiniDigits makes 9",
    ),
    "text for number": (["--set", "training.lr=fast"], "training.lr=fast is not of type float"),
    "no trials": (["--trials", "0"], "at least 1"),
    "seed of text": (["--seeds", "x"], "invalid int value"),
    "unknown flag": (["--method-name", "x"], "unrecognized arguments"),
    "no workers": (["--workers", "0"], "--workers 0: at least 1"),
    "no device": (["--device", "tpu"], "write auto, cpu, cuda or cuda:0,1"),
    "no such gpu": (["--device", "cuda:7"], "this machine has no such GPU"),
    "no plugin": (["--plugin", "/nowhere.py"], "does not exist"),
    "absent data": (
        ["--protocol", "fedfd", "--datasets", "PACS", "--data", "/nowhere"],
        "PACS is not in /nowhere",
    ),
    "absent weights": (["--pretrained", "/nowhere.pth"], "no such file"),
    "no imagenet weights": (["--pretrained", "imagenet"], "cnn_tiny_bn has no ImageNet weights"),
    "unwritable": (["--out", "/proc/runs"], "cannot write to --out '/proc/runs'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_two(case, capsys, tmp_path):
    arguments, message = BAD[case]
    where = [] if "--out" in arguments else ["--out", tmp_path]
    assert call(sweep.main, *arguments, *where) == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert shown.err.startswith("error: ")
    assert shown.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_the_store(tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    assert call(sweep.main, "--out", tmp_path / "file") == 2
    assert "cannot write to --out" in capsys.readouterr().err


def test_a_failing_run_is_recorded_listed_and_retried(out, capsys, tmp_path):
    plugin = tmp_path / "moody_plugin.py"
    plugin.write_text(
        "from pathlib import Path\n"
        "from benchmark.method import Method, register\n"
        "@register('moody', label='Moody', paper='x', venue='x', category='federated')\n"
        "class Moody(Method):\n"
        "    def weigh(self, server, clients):\n"
        f"        if not Path({str(tmp_path / 'well')!r}).exists():\n"
        "            raise RuntimeError('not today')\n"
        "        return super().weigh(server, clients)\n"
    )
    arguments = [*FLAGS, "--plugin", plugin, "--methods", "moody", "fedavg", "--out", out]
    arguments += ["--targets", "red", "--workers", "1"]
    assert call(sweep.main, *arguments) == 1
    shown = capsys.readouterr()
    assert "failed:  moody on Toy/red seed 0" in shown.err
    assert "RuntimeError: not today" in shown.err
    assert "results: 1 of 2 runs" in shown.out
    (failure,) = out.glob("Toy/moody/*.failed.json")
    assert "Traceback" in failure.read_text()
    (tmp_path / "well").touch()
    assert call(sweep.main, *arguments) == 0
    assert "results: 2 of 2 runs" in capsys.readouterr().out
    assert not failure.exists()


def test_a_worker_that_is_killed_costs_only_its_run(out, tmp_path):
    specs = [
        toy_spec(target=target, training=TRAINING.changed({"rounds": 30}))
        for target in ("red", "green", "blue")
    ]
    store, victim = ResultStore(out), None
    kinds = []
    for event in launch(specs, store, [Place(data=tmp_path)], 1, [str(TOY)]):
        kinds.append(event.kind)
        if victim is None and event.kind == "round" and event.round == 2:
            victim = event.spec
            for child in children(os.getpid()):
                os.kill(child, signal.SIGKILL)
        if event.kind == "failed":
            assert event.spec == victim
            assert "died (signal SIGKILL)" in event.text
    assert kinds.count("failed") == 1
    assert kinds.count("done") == 2


def children(parent: int) -> list[int]:
    """Worker processes: grandchildren through the fork server, recognised by their open pipe."""
    import multiprocessing

    return [process.pid for process in multiprocessing.active_children()]


def test_interrupting_stops_cleanly_and_the_next_call_continues(out, tmp_path):
    flags = ["--datasets", "Toy", "--plugin", TOY, "--methods", "fedbn", "--targets", "red"]
    flags += ["--set", "training.rounds=400", "training.local_steps=2", "training.batch_size=8"]
    flags += ["--out", out, "--workers", "1"]
    process = subprocess.Popen(
        command(*flags),
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell may ignore it
    )
    deadline = time.monotonic() + 60
    while process.poll() is None and not workers_of(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(1.0)
    assert process.poll() is None, "it ended before it could be interrupted"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert "the same command continues" in errors
    (checkpoint,) = (out / ".checkpoints").iterdir()
    assert checkpoint.suffix == ".pt"
    finished = subprocess.run(
        command(*flags), cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert finished.returncode == 0
    assert not checkpoint.exists()
    (result,) = ResultStore(out).collect().results
    whole = ResultStore(tmp_path / "whole")
    list(launch([result.spec], whole, [Place()], 1, [str(TOY)]))
    assert outcome(whole.get(result.spec)) == outcome(result)


def workers_of(pid: int) -> list[int]:
    """Children of a process that have children: the fork server with a worker."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    found = []
    for child in path.read_text().split() if path.exists() else []:
        found += Path(f"/proc/{child}/task/{child}/children").read_text().split()
    return [int(child) for child in found]


def test_two_sweeps_over_one_store_lose_nothing(out):
    flags = [*FLAGS, "--methods", "fedavg", "fedbn", "--out", out, "--workers", "1"]
    both = [
        subprocess.Popen(command(*flags), cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in both:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    found = ResultStore(out).collect()
    assert len(found.results) == 8
    assert not found.damaged
    assert not list(out.rglob("*.tmp"))


def test_one_run_alone(out, capsys):
    flags = [*FLAGS, "--methods", "fedavg", "--targets", "red", "--out", out]
    assert call(run.main, *flags) == 0
    shown = capsys.readouterr().out
    assert "test red" in shown
    assert "wrote" in shown
    assert call(run.main, *flags, "--targets", "all") == 2
    assert "these flags describe 4 runs" in capsys.readouterr().err


def test_listing_shows_everything_and_one_thing(capsys):
    assert call(listing.main) == 0
    everything = capsys.readouterr().out
    for name in ("fedprox", "MiniDigits", "single_domain", "demo", "cnn_tiny_bn"):
        assert name in everything
    assert call(listing.main, "fedprox") == 0
    shown = capsys.readouterr().out
    assert "MLSys 2020" in shown
    assert "[0.001, 1] log" in shown
    assert call(listing.main, "fedprox+silobn") == 0
    assert call(listing.main, "MiniDigits") == 0
    assert "handwritten" in capsys.readouterr().out
    assert call(listing.main, "fedprx") == 2


def test_the_board_reads_what_the_sweep_wrote(out, capsys, tmp_path):
    assert call(sweep.main, "--methods", "fedavg", "--out", out, *FLAGS) == 0
    capsys.readouterr()
    for rule in ("training_domain", "last", "oracle"):
        assert call(leaderboard.main, "table", "--runs", out, "--selection", rule) == 0
        shown = capsys.readouterr().out
        assert ("ORACLE" in shown) == (rule == "oracle")
    file = tmp_path / "table.tex"
    assert call(leaderboard.main, "table", "--runs", out, "--format", "latex", "--to", file) == 0
    assert r"\toprule" in file.read_text()
    assert call(leaderboard.main, "table", "--runs", tmp_path / "none") == 2
    assert "run python -m benchmark.sweep first" in capsys.readouterr().err
