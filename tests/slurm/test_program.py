"""`python -m slurm`, with the scheduler simulated: watching, trying again, cancelling, logs."""

import pytest

from benchmark.results import ResultStore
from slurm import __main__ as program
from slurm.launch import submit
from slurm.ledger import Ledger
from tests.slurm.sweeps import expected, request, run_program, seeds


def test_ctrl_c_is_how_one_stops_watching(scheduler, root, submitted, capsys, monkeypatch):
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(program, "sleep", interrupt)
    assert "6 pending" in run_program(capsys, "status", "--watch", "--out", root)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "flags",
    [
        ("status", "--every", "0"),
        ("status", "--every", "inf"),
        ("status", "--every", "nan"),
        ("logs", "x", "--lines", "0"),
        ("logs", "x", "--lines", "some"),
    ],
    ids=" ".join,
)
def test_bad_numbers_are_one_line(flags, capsys):
    with pytest.raises(SystemExit) as end:
        program.main(flags)
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert f"error: argument {flags[-2]}: " in said
    assert said.count("\n") == 1


def test_retry_takes_what_is_asked_for(scheduler, root, submitted, capsys):
    scheduler.write("queue", "")
    ResultStore(root).put_failure(submitted[0], "not today", "")
    shown = run_program(capsys, "retry", "--failed", "--out", root)
    assert "submitted 1 run in 1 task" in shown
    shown = run_program(capsys, "retry", "--out", root, "--slurm", "pack_minutes=30", "time=60")
    assert "submitted 5 runs in 1 task" in shown
    assert Ledger(root).owners()[submitted[1].id].profile["time"] == "60"
    assert "no run is failed or lost" in run_program(capsys, "retry", "--out", root)


def test_cancel_takes_only_the_tasks_of_this_store(scheduler, root, submitted, capsys):
    scheduler.write("queue", "fdb-other-0|7|0|RUNNING|None\n" + _text(scheduler))
    assert "cancelled 6 tasks" in run_program(capsys, "cancel", "--out", root)
    assert [row[0] for row in scheduler.queue()] == ["fdb-other-0"]
    assert "nothing to cancel" in run_program(capsys, "cancel", "--out", root)


def _text(scheduler) -> str:
    return (scheduler.folder / "queue").read_text()


def test_logs_before_a_run_has_begun(scheduler, root, submitted, capsys):
    assert "has not begun" in run_program(capsys, "logs", submitted[0].id, "--out", root)


def test_logs_say_why_a_run_failed(scheduler, root, submitted, capsys):
    store = ResultStore(root)
    store.put_failure(submitted[0], "not today", "Traceback: …")
    _, *shown = run_program(capsys, "logs", submitted[0].id, "--out", root).splitlines()
    assert shown == ["not today", "Traceback: …"]
    store.failure_path(submitted[0]).write_text("{")
    _, *shown = run_program(capsys, "logs", submitted[0].id, "--out", root).splitlines()
    assert shown == ["the note about the failure is damaged"]


def test_logs_of_a_pack_show_what_is_about_the_run(scheduler, root, capsys):
    first, second, third = seeds(3)
    submit([first, second, third], request(root), expected)
    lines = [
        "submitit INFO starts",
        f"{first} begins",
        "a warning",
        f"{first} is done",
        f"{second} begins",
        "Killed",
        "submitit INFO starts again",
        f"{second} continues after round 1",
        "submitit INFO ends",
    ]
    (script,) = root.rglob("*_submission.sh")
    script.with_name("101_0_log.out").write_text("\n".join(lines))
    script.with_name("101_0_log.err").write_text("")
    _, *shown = run_program(capsys, "logs", first.id, "--out", root).splitlines()
    assert shown == lines[1:4]
    _, *shown = run_program(capsys, "logs", second.id, "--out", root).splitlines()
    assert shown == [lines[4], lines[5], lines[7]]
    _, *shown = run_program(capsys, "logs", third.id, "--lines", "2", "--out", root).splitlines()
    assert shown == lines[-2:]


def test_nothing_submitted_and_no_store(root, capsys):
    root.mkdir()
    assert "no run was submitted from here" in run_program(capsys, "status", "--out", root)
    with pytest.raises(SystemExit) as end:
        program.main(["status", "--out", str(root / "none")])
    assert end.value.code == 2
    assert "name it with --out" in capsys.readouterr().err
