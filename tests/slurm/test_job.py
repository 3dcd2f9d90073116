"""What a task does with its runs: signals, deaths, claims and failures, without a cluster."""

import dataclasses
import pickle
import signal
import time
from pathlib import Path

import pytest

from benchmark.execute import Place, execute
from benchmark.results import ResultStore
from slurm import job as module
from slurm.job import CONTINUE, DEATHS, Job, told_to_go
from slurm.ledger import Ledger
from tests.slurm.sweeps import PLUGINS, steady_specs
from tests.test_every_method import outcome


@pytest.fixture
def job(tmp_path):
    """Make the job of some runs."""

    def make(specs, **changes) -> Job:
        values = {
            "specs": specs,
            "root": tmp_path / "runs",
            "place": Place(tmp_path / "data"),
            "plugins": PLUGINS,
            "submission": "mine",
            "claims": [1] * len(specs),
            "retries": 1,
            "patience": 60.0,
        }
        return Job(**{**values, **changes})

    return make


@pytest.fixture
def deaths(tmp_path, monkeypatch) -> Path:
    path = tmp_path / "0.deaths"
    monkeypatch.setenv(DEATHS, str(path))
    return path


def short(fate: str = "well", seeds=(0,), rounds: int = 4):
    return steady_specs(seeds, rounds=rounds, pause=0.0, fate=fate)


def ends_with(job: Job) -> int | None:
    with pytest.raises(SystemExit) as end:
        job()
    return end.value.code


@pytest.mark.parametrize("fate", ["warned", "terminated"])
def test_a_task_told_to_go_saves_its_place_and_continues(job, fate, tmp_path, monkeypatch):
    specs = short(fate) + short(seeds=(1,))
    ours = job(specs)
    store = ResultStore(ours.root)
    assert ends_with(ours) == CONTINUE
    assert store.checkpoint_path(specs[0]).exists()
    assert Ledger(ours.root).progress(specs[0].id)["state"] == "stopped"
    assert Ledger(ours.root).progress(specs[0].id)["round"] == 3
    ours()
    monkeypatch.setattr(signal, "raise_signal", lambda number: None)
    whole = execute(specs[0], ResultStore(tmp_path / "whole"), ours.place)
    assert outcome(store.get(specs[0])) == outcome(whole)
    assert store.get(specs[1]) is not None
    assert Ledger(ours.root).progress(specs[0].id) is None


def test_handlers_are_put_back(job):
    before = [signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGTERM)]
    job(short())()
    assert [signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGTERM)] == before


def test_a_round_longer_than_the_warning_is_not_waited_for():
    for advanced, code in ((True, CONTINUE), (False, 1)):
        with pytest.raises(SystemExit) as end, told_to_go(patience=0.05) as stop:
            stop.advanced = advanced
            signal.raise_signal(signal.SIGUSR2)
            assert stop()
            time.sleep(10)
        assert end.value.code == code


def test_a_task_that_got_nowhere_counts_as_dead(job, monkeypatch):
    ours = job(short())
    monkeypatch.setattr(module, "load_plugin", lambda path: signal.raise_signal(signal.SIGUSR2))
    assert ends_with(ours) == 1


def test_a_failing_run_is_recorded_once_and_the_pack_goes_on(job, deaths, capsys):
    specs = short("raises") + short(seeds=(1,))
    ours = job(specs)
    store = ResultStore(ours.root)
    deaths.write_text("137\n")
    ours()
    assert "RuntimeError: not today" in store.failure_path(specs[0]).read_text()
    assert store.get(specs[1]) is not None
    assert not deaths.exists()
    capsys.readouterr()
    ours()
    assert f"[{specs[0].id}] has failed already" in capsys.readouterr().out
    later = job(specs, submission="later", claims=[2, 2])
    later()
    assert f"[{specs[0].id}] begins" in capsys.readouterr().out


def test_a_run_that_kills_its_process_too_often_is_recorded_as_failed(job, deaths):
    specs = short(seeds=(0, 1))
    ours = job(specs)
    ledger, store = Ledger(ours.root), ResultStore(ours.root)
    ledger.put_progress(specs[0].id, {"submission": "mine", "state": "running"})
    deaths.write_text("137\n")
    ours()
    assert store.get(specs[0]) is not None  # one retry is allowed
    store.path(specs[0]).unlink()
    ledger.put_progress(specs[0].id, {"submission": "mine", "state": "running"})
    deaths.write_text("137\n137\n")
    ours()
    assert "died 2 times" in store.failure_path(specs[0]).read_text()
    assert store.get(specs[1]) is not None


def test_a_run_that_somebody_claimed_later_is_left_to_them(job, capsys):
    specs = short(seeds=(0, 1))
    ours = job(specs)
    ledger = Ledger(ours.root)
    ledger.open_submission()
    ledger.take(specs[0].id, 2, "later")
    ours()
    assert "left to a later submission" in capsys.readouterr().out
    assert ResultStore(ours.root).get(specs[0]) is None
    assert ResultStore(ours.root).get(specs[1]) is not None


def test_a_stored_run_is_not_done_again(job, capsys):
    ours = job(short())
    ours()
    assert "begins" in capsys.readouterr().out
    ours()
    assert "begins" not in capsys.readouterr().out


def test_progress_is_written_about_once_a_second(job, monkeypatch):
    notes = []
    monkeypatch.setattr(Ledger, "put_progress", lambda self, run, entry: notes.append(entry))
    job(short(rounds=30))()
    assert len(notes) < 10
    monkeypatch.setattr(module, "PROGRESS_SECONDS", 0.0)
    notes.clear()
    job(short(rounds=30, seeds=(1,)))()
    assert [entry["round"] for entry in notes[1:]] == list(range(31))


def test_what_submitit_resubmits_is_the_same_job(job):
    ours = job(short())
    again = ours.checkpoint()
    assert pickle.loads(pickle.dumps(again.function)) == ours
    assert dataclasses.asdict(again.function) == dataclasses.asdict(ours)
