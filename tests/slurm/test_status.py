"""Status, with the scheduler simulated: every state, with and without squeue and sacct."""

import io
import json
import time

import pytest

from benchmark.results import ResultStore
from slurm.display import render, use_colour
from slurm.launch import submit
from slurm.ledger import Ledger
from slurm.scheduler import expand
from slurm.status import RunStatus, Status, status
from tests.slurm.sweeps import expected, request, run_program, seeds


def note(ledger: Ledger, spec, **changes) -> None:
    now = time.time()
    submission = ledger.owners()[spec.id].submission
    entry = {"submission": submission, "state": "running", "round": 2, "rounds": 3}
    entry |= {"first": 0, "began": now - 10, "updated": now}
    ledger.put_progress(spec.id, {**entry, **changes})


def test_every_state(scheduler, root, submitted):
    ledger, store = Ledger(root), ResultStore(root)
    done, running, waiting, failed, lost, failing = submitted
    store.path(done).parent.mkdir(parents=True)
    store.path(done).write_text("{}")
    note(ledger, running)
    store.put_failure(failed, "not today", "")
    note(ledger, failing, state="failed")
    order = list(ledger.manifests()[0].places)
    scheduler.set_state("RUNNING", str(order.index(running.id)))
    scheduler.set_state("RUNNING", str(order.index(failing.id)))
    gone = {str(order.index(failed.id)), str(order.index(lost.id)), str(order.index(done.id))}
    rows = [row for row in scheduler.queue() if row[2] not in gone]
    scheduler.write("queue", "".join("|".join(row) + "\n" for row in rows))
    found = {run.run: run for run in status(ledger).runs}
    states = [found[spec.id].state for spec in submitted]
    assert states == ["done", "running", "pending", "failed", "lost", "failed"]
    assert (found[running.id].round, found[running.id].rounds) == (2, 3)
    assert found[running.id].seconds_left == pytest.approx(5)
    assert found[waiting.id].reason == "Priority"
    assert found[failed.id].reason == "not today"


def test_why_a_run_is_pending(scheduler, root, submitted):
    for state, reason in (
        ("PENDING", "Priority"),
        ("RUNNING", "starting"),
        ("COMPLETING", "its task is just ending"),
    ):
        scheduler.set_state(state)
        assert {run.reason for run in status(Ledger(root)).runs} == {reason}
    pack = seeds(3, start=10)
    submit(pack, request(root), expected)
    scheduler.set_state("RUNNING")
    note(Ledger(root), pack[0])
    found = {run.run: run.reason for run in status(Ledger(root)).runs}
    assert [found[spec.id] for spec in pack] == [None, "later in its pack", "later in its pack"]


def test_an_old_note_says_nothing_of_a_new_submission(scheduler, root, submitted):
    ledger = Ledger(root)
    for spec in submitted:
        note(ledger, spec, state="failed")
        ResultStore(root).put_failure(spec, "not today", "")
    scheduler.write("queue", "")
    assert status(ledger).counts()["failed"] == 6
    submit(submitted, request(root), expected)
    assert status(Ledger(root)).counts()["pending"] == 6


def test_one_call_of_each_command(scheduler, root, submitted):
    scheduler.command("sacct", "true")
    before = len(scheduler.calls("squeue"))
    scheduler.write("queue", "")
    assert status(Ledger(root)).counts()["lost"] == 6
    assert len(scheduler.calls("squeue")) == before + 1
    assert len(scheduler.calls("sacct")) == 1


def test_accounting_says_how_lost_runs_were_lost(scheduler, root, submitted):
    name = scheduler.queue()[0][0]
    scheduler.write("queue", "")
    lines = [
        f"{name}|101_0|TIMEOUT|0:15",
        f"{name}|101_[1-4%2]|CANCELLED by 0|0:0",
        "other|9|X|0:0",
    ]
    scheduler.command("sacct", "\n".join(f"echo '{line}'" for line in lines))
    found = status(Ledger(root)).runs
    reasons = sorted(str(run.reason) for run in found)
    assert reasons == ["CANCELLED 0:0"] * 4 + ["None", "TIMEOUT 0:15"]


def test_without_accounting_lost_runs_are_still_found(scheduler, root, submitted, capsys):
    scheduler.write("queue", "")
    for body in ("echo 'Slurm accounting storage is disabled' >&2\nexit 1", None):
        if body is None:
            scheduler.remove("sacct")
        else:
            scheduler.command("sacct", body)
        shown = run_program(capsys, "status", "--out", root)
        assert "6 runs: 0 done, 0 running, 0 pending, 0 failed, 6 lost" in shown


def test_without_the_queue_what_is_stored_is_shown(scheduler, root, submitted, capsys):
    store = ResultStore(root)
    store.path(submitted[0]).parent.mkdir(parents=True)
    store.path(submitted[0]).write_text("{}")
    scheduler.write("down", "")
    shown = run_program(capsys, "status", "--out", root)
    assert "1 done" in shown
    assert "5 unknown" in shown
    assert "note: squeue gave no answer" in shown


def test_json_has_counts_grid_and_runs(scheduler, root, submitted, capsys):
    found = json.loads(run_program(capsys, "status", "--json", "--out", root))
    assert found["counts"]["pending"] == 6
    (cell,) = found["grid"]
    assert (cell["dataset"], cell["method"], cell["target"]) == ("Toy", "fedavg", "grey")
    assert cell["pending"] == 6
    assert {run["run"] for run in found["runs"]} == {spec.id for spec in submitted}


def test_watching_ends_when_nothing_is_left_to_happen(scheduler, root, submitted, capsys):
    scheduler.write("queue", "")
    assert "6 lost" in run_program(capsys, "status", "--watch", "--out", root)


def test_colour_only_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert use_colour(Terminal())
    assert not use_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not use_colour(Terminal())
    runs = [RunStatus("r", "Toy", "red", "fedavg", 0, state) for state in ("done", "failed")]
    assert "\033[31m1 failed" in render(Status(runs), colour=True)
    assert "\033[35m0 lost" not in render(Status(runs), colour=True)
    assert "\033" not in render(Status(runs), colour=False)


def test_long_lists_are_cut_unless_asked_for():
    runs = [RunStatus(f"r{k}", "Toy", "red", "fedavg", k, "lost") for k in range(30)]
    assert "… and 18 more lost" in render(Status(runs), colour=False)
    assert "more" not in render(Status(runs), colour=False, everything=True)


@pytest.mark.parametrize(
    ("text", "indices"),
    [("3", ["3"]), ("[0-2]", ["0", "1", "2"]), ("[1,4-5%2]", ["1", "4", "5"]), ("", [""])],
)
def test_array_indices_are_expanded(text, indices):
    assert list(expand(text)) == indices
