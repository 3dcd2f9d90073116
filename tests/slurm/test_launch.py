"""Submission, with the scheduler simulated: what is submitted, what is not, and what is said."""

import json
import subprocess

import pytest

from benchmark.errors import UserError
from benchmark.protocol import plan
from slurm import unclaimed
from slurm.executor import Executor
from slurm.launch import submit
from slurm.ledger import Ledger
from slurm.status import status
from tests.conftest import toy_protocol
from tests.slurm.sweeps import expected, left_behind, request, seeds, sweep_on_slurm


def test_what_is_live_is_not_submitted_again(scheduler, root):
    first = submit(seeds(3), request(root), expected)
    assert (first.runs, first.tasks, first.live) == (3, 1, 0)
    again = submit(seeds(5), request(root), expected)
    assert (again.runs, again.tasks, again.live) == (2, 1, 3)
    assert submit(seeds(5), request(root), expected).runs == 0
    assert len(scheduler.queue()) == 2
    assert len(left_behind(root)) == 2


def test_what_is_gone_is_submitted_again_with_the_next_claim(scheduler, root):
    specs = seeds(3)
    submit(specs, request(root, pack_minutes=0), expected)
    name = scheduler.queue()[0][0]
    scheduler.write("queue", f"{name}|101|1|RUNNING|None\n")
    done = submit(specs, request(root), expected)
    assert (done.runs, done.live) == (2, 1)
    numbers = {run: claim.number for run, claim in Ledger(root).claims().items()}
    assert sorted(numbers.values()) == [1, 2, 2]


def test_a_task_that_is_just_ending_is_waited_for(scheduler, root, monkeypatch, capsys):
    specs = seeds(2)
    submit(specs, request(root, pack_minutes=0), expected)
    scheduler.set_state("COMPLETING")
    with monkeypatch.context() as patch:
        patch.setattr(unclaimed, "sleep", lambda seconds: scheduler.write("queue", ""))
        done = submit(specs, request(root), expected)
    assert (done.runs, done.live) == (2, 0)
    assert "waiting for 2 ending tasks" in capsys.readouterr().err
    scheduler.set_state("COMPLETING")
    monkeypatch.setattr(unclaimed, "ENDING_SECONDS", -1.0)
    assert submit(specs, request(root), expected).live == 2


def test_a_shell_that_died_between_claim_and_job_blocks_nobody(scheduler, root, monkeypatch):
    specs = seeds(2)
    ledger = Ledger(root)
    submission = ledger.open_submission()
    assert ledger.take(specs[0].id, 1, submission)
    assert submit(specs, request(root), expected).runs == 1  # it may still be at work
    marker = ledger.submission_folder(submission) / "submitting"
    process = subprocess.Popen(["true"])
    process.wait()
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "pid": process.pid}))
    done = submit(specs, request(root), expected)
    assert (done.runs, done.live) == (1, 1)


def test_jobs_whose_manifest_cannot_be_read_keep_their_claims(scheduler, root):
    specs = seeds(2)
    submit(specs, request(root), expected)
    (folder,) = left_behind(root)
    (folder / "manifest.json").write_text("{")
    assert submit(specs, request(root), expected).live == 2


def test_arrays_keep_to_the_clusters_size_and_share_the_parallelism(scheduler, root):
    scheduler.write("largest", "3")
    done = submit(seeds(7), request(root, pack_minutes=0, array_parallelism=7), expected)
    assert (done.runs, done.tasks, len(done.jobs)) == (7, 7, 3)
    scripts = sorted(root.rglob("*_submission.sh"))
    arrays = [line for s in scripts for line in s.read_text().splitlines() if "--array=" in line]
    assert sorted(arrays) == [
        "#SBATCH --array=0-1%2",
        "#SBATCH --array=0-1%2",
        "#SBATCH --array=0-2%2",
    ]


def test_a_busy_controller_is_asked_again(scheduler, root):
    scheduler.write("answers", "Unable to contact slurm controller (connect failure)\nok\n")
    assert submit(seeds(2), request(root), expected).runs == 2
    assert len(scheduler.queue()) == 1
    assert len(scheduler.calls("sbatch")) == 3  # one only tested


def test_an_array_that_was_accepted_unheard_is_cancelled(scheduler, root):
    body = scheduler.folder.joinpath("sbatch").read_text()
    lost = body.replace(
        'echo "Submitted batch job $number"',
        '[ $number = 101 ] && { echo "sbatch: error: Socket timed out" >&2; exit 1; }\n'
        'echo "Submitted batch job $number"',
    )
    scheduler.folder.joinpath("sbatch").write_text(lost)
    done = submit(seeds(2), request(root, pack_minutes=0), expected)
    assert done.jobs == ["102"]
    assert {row[1] for row in scheduler.queue()} == {"102"}


def test_a_refusal_half_way_takes_everything_back(scheduler, root):
    scheduler.write("largest", "1")
    scheduler.write("answers", "ok\nInvalid account or account/partition combination specified\n")
    with pytest.raises(UserError, match="sbatch refused: Invalid account"):
        submit(seeds(3), request(root, pack_minutes=0), expected)
    assert scheduler.queue() == []
    assert left_behind(root) == []
    scheduler.write("answers", "")
    assert submit(seeds(3), request(root, pack_minutes=0), expected).runs == 3


def test_an_interruption_takes_back_what_was_accepted_unheard(scheduler, root, monkeypatch):
    submit_array = Executor.submit_array

    def interrupted(self, jobs):
        submit_array(self, jobs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Executor, "submit_array", interrupted)
        submit(seeds(3), request(root, pack_minutes=0), expected)
    assert scheduler.queue() == []
    assert left_behind(root) == []
    assert submit(seeds(3), request(root), expected).runs == 3


def test_at_the_limit_of_submitted_jobs_a_part_is_submitted(scheduler, root):
    limit = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    scheduler.write("largest", "1")
    scheduler.write("answers", f"ok\nok\n{limit}\n")
    done = submit(seeds(4), request(root, pack_minutes=0), expected)
    assert (done.runs, done.tasks) == (2, 2)
    assert "job submit limit" in done.refused
    assert status(Ledger(root)).counts()["pending"] == 2
    scheduler.write("answers", "")
    assert submit(seeds(4), request(root, pack_minutes=0), expected).runs == 2
    scheduler.write("answers", f"{limit}\n")
    with pytest.raises(UserError, match=r"job submit limit.*nothing was submitted"):
        submit(seeds(1, start=9), request(root), expected)


def test_a_dry_run_shows_everything_and_writes_nothing(scheduler, root, capsys):
    arguments = ["--methods", "fedavg", "fedprox", "--dry-run", "--slurm", "partition=a100"]
    arguments += ["modules=cuda/12", "setup=source activate", "pack_minutes=1", "sbatch=exclusive"]
    assert sweep_on_slurm(root, *arguments) == 0
    shown = capsys.readouterr().out
    assert "8 runs in 3 tasks in 1 array, about 0.0" in shown
    for line in (
        "#SBATCH --partition=a100",
        "#SBATCH --array=0-2%3",
        "#SBATCH --signal=USR2@90",
        "#SBATCH --requeue",
        "#SBATCH --exclusive",
        "module load cuda/12 || exit 1",
        "source activate",
    ):
        assert line in shown.splitlines()
    assert not root.exists()
    assert scheduler.calls("sbatch") == []


def test_a_dry_run_works_where_there_is_no_slurm(root, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sweep_on_slurm(root, "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "no scontrol on this machine" in shown
    assert "4 runs in 1 task in 1 array" in shown


def test_runs_longer_than_the_limit_are_announced(scheduler, root, capsys):
    flags = ["--dry-run", "--slurm", "time=2"]
    assert sweep_on_slurm(root, *flags) == 0
    assert "longer than the time limit" not in capsys.readouterr().out
    assert sweep_on_slurm(root, *flags, "--set", "training.rounds=4000") == 0
    assert "4 runs are longer than the time limit of 2" in capsys.readouterr().out


def test_ten_thousand_runs(scheduler, root):
    specs = plan(toy_protocol(seeds=tuple(range(2500))), ["fedavg"]).specs
    assert len(specs) == 10_000
    done = submit(specs, request(root, pack_minutes=5), expected)
    assert (done.runs, len(done.jobs)) == (10_000, 1)
    assert done.tasks == pytest.approx(sum(expected(specs)) / 300, rel=0.05)
    scheduler.set_state("RUNNING", "0")
    found = status(Ledger(root))
    assert found.counts()["pending"] == 10_000
    assert len(scheduler.calls("squeue")) == 2
    assert submit(specs, request(root), expected).live == 10_000
