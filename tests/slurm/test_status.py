"""Status, with the scheduler simulated: every state, with and without squeue and sacct."""

import io
import json
import time

import pytest

from benchmark.results import ResultStore
from slurm import __main__ as program
from slurm.display import render, use_colour
from slurm.launch import submit
from slurm.ledger import Ledger
from slurm.scheduler import expand
from slurm.status import RunStatus, Status, status
from tests.slurm.conftest import expected, request, seeds


def call(capsys, *arguments) -> str:
    with pytest.raises(SystemExit) as end:
        program.main([str(argument) for argument in arguments])
    shown = capsys.readouterr()
    assert end.value.code == 0, shown.err
    return shown.out


@pytest.fixture
def submitted(scheduler, root):
    """Six runs in six tasks of one array."""
    specs = seeds(6)
    submit(specs, request(root, pack_minutes=0), expected)
    return specs


def note(ledger: Ledger, spec, **changes) -> None:
    now = time.time()
    entry = {"submission": ledger.submissions()[-1], "state": "running", "round": 2, "rounds": 3}
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
        shown = call(capsys, "status", "--out", root)
        assert "6 runs: 0 done, 0 running, 0 pending, 0 failed, 6 lost" in shown


def test_without_the_queue_what_is_stored_is_shown(scheduler, root, submitted, capsys):
    store = ResultStore(root)
    store.path(submitted[0]).parent.mkdir(parents=True)
    store.path(submitted[0]).write_text("{}")
    scheduler.write("down", "")
    shown = call(capsys, "status", "--out", root)
    assert "1 done" in shown
    assert "5 unknown" in shown
    assert "note: squeue gave no answer" in shown


def test_json_has_counts_grid_and_runs(scheduler, root, submitted, capsys):
    found = json.loads(call(capsys, "status", "--json", "--out", root))
    assert found["counts"]["pending"] == 6
    (cell,) = found["grid"]
    assert (cell["dataset"], cell["method"], cell["target"]) == ("Toy", "fedavg", "grey")
    assert cell["pending"] == 6
    assert {run["run"] for run in found["runs"]} == {spec.id for spec in submitted}


def test_watching_ends_when_nothing_is_left_to_happen(scheduler, root, submitted, capsys):
    scheduler.write("queue", "")
    assert "6 lost" in call(capsys, "status", "--watch", "--out", root)


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
    assert "\033[31m" in render(Status(runs), colour=True)
    assert "\033" not in render(Status(runs), colour=False)


def test_long_lists_are_cut_unless_asked_for():
    runs = [RunStatus(f"r{k}", "Toy", "red", "fedavg", k, "lost") for k in range(30)]
    assert "… and 18 more lost" in render(Status(runs), colour=False)
    assert "more" not in render(Status(runs), colour=False, everything=True)


def test_retry_takes_what_is_asked_for(scheduler, root, submitted, capsys):
    scheduler.write("queue", "")
    ResultStore(root).put_failure(submitted[0], "not today", "")
    shown = call(capsys, "retry", "--failed", "--out", root)
    assert "submitted 1 runs in 1 tasks" in shown
    shown = call(capsys, "retry", "--out", root, "--slurm", "pack_minutes=30", "time=60")
    assert "submitted 5 runs in 1 tasks" in shown
    assert Ledger(root).owners()[submitted[1].id].profile["time"] == "60"
    assert "no run is failed or lost" in call(capsys, "retry", "--out", root)


def test_cancel_takes_only_the_tasks_of_this_store(scheduler, root, submitted, capsys):
    scheduler.write("queue", "fdb-other-0|7|0|RUNNING|1|n|None\n" + _text(scheduler))
    assert "cancelled 6 tasks" in call(capsys, "cancel", "--out", root)
    assert [row[0] for row in scheduler.queue()] == ["fdb-other-0"]


def _text(scheduler) -> str:
    return (scheduler.folder / "queue").read_text()


def test_logs_before_a_run_has_begun(scheduler, root, submitted, capsys):
    assert "has not begun" in call(capsys, "logs", submitted[0].id, "--out", root)


def test_nothing_submitted_and_no_store(root, capsys):
    root.mkdir()
    assert "no run was submitted from here" in call(capsys, "status", "--out", root)
    with pytest.raises(SystemExit) as end:
        program.main(["status", "--out", str(root / "none")])
    assert end.value.code == 2
    assert "name it with --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "indices"),
    [("3", ["3"]), ("[0-2]", ["0", "1", "2"]), ("[1,4-5%2]", ["1", "4", "5"]), ("", [""])],
)
def test_array_indices_are_expanded(text, indices):
    assert list(expand(text)) == indices
