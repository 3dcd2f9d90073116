"""What cannot be submitted is one clear line, with the scheduler simulated."""

import pytest

from tests.slurm.sweeps import left_behind, mounted, sweep_on_slurm

BAD = {
    "bad profile": (["--profile", "cpuu"], "unknown SLURM profile 'cpuu', did you mean 'cpu'?"),
    "bad key": (["--slurm", "partitoin=x"], "did you mean 'partition'?"),
    "profile here": (["--launcher", "local", "--profile", "cpu"], "need --launcher slurm"),
    "workers there": (["--workers", "2"], "use --slurm array_parallelism=N"),
    "device": (["--device", "tpu"], "--device 'tpu': write auto, cpu or cuda"),
    "no gpu": (["--device", "cuda"], "this profile asks for no GPU; add --slurm gpus=1"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_flags_are_one_line(case, scheduler, root, capsys):
    arguments, message = BAD[case]
    one_line(sweep_on_slurm(root, *arguments), message, capsys)
    assert scheduler.queue() == []


def one_line(code: int, message: str, capsys) -> None:
    shown = capsys.readouterr()
    assert code == 2
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""


def test_no_sbatch_is_one_line(root, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    one_line(sweep_on_slurm(root), "no sbatch on this machine: submit from a login node", capsys)
    assert left_behind(root) == []


def test_no_answer_from_the_queue_is_one_line(scheduler, root, capsys):
    scheduler.write("down", "")
    one_line(sweep_on_slurm(root), "squeue gave no answer: squeue: error: connect failure", capsys)
    assert scheduler.queue() == []
    assert left_behind(root) == []


def test_an_unwritable_log_folder_is_one_line(scheduler, root, capsys):
    root.mkdir()
    (root / ".slurm").write_text("a file")
    one_line(sweep_on_slurm(root), f"cannot write to {str(root / '.slurm')!r}: ", capsys)
    assert scheduler.queue() == []


def test_a_full_disk_is_one_line_and_nothing_is_submitted(scheduler, root, capsys):
    with mounted(root, "size=64k"):
        code = sweep_on_slurm(root, "--seeds", *range(200), "--slurm", "pack_minutes=0")
        one_line(code, "No space left on device; nothing was submitted", capsys)
        assert left_behind(root) == []
    assert scheduler.queue() == []
