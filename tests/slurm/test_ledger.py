"""Claims: of many who want a run, one gets it, whenever anybody dies."""

import json
import os
import socket
import threading
import time

import pytest

from benchmark.errors import UserError
from slurm.ledger import MARKER_SECONDS, Ledger
from slurm.manifest import Manifest
from tests.conftest import toy_spec


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    return Ledger(tmp_path)


def manifest_of(ledger: Ledger, submission: str, numbers: dict):
    specs = [toy_spec(seeds=(seed,)) for seed in range(len(numbers))]
    runs = [spec.id for spec in specs]
    manifest = Manifest.new(
        submission,
        specs,
        profile={},
        place={},
        plugins=[],
        arrays=[[runs]],
        claims=dict(zip(runs, numbers.values(), strict=True)),
    )
    ledger.write(manifest)
    return manifest


def test_of_many_who_want_a_run_one_gets_it(ledger):
    ledger.open_submission()
    runs = [f"run{k}" for k in range(20)]
    won: dict[str, list[str]] = {run: [] for run in runs}
    barrier = threading.Barrier(8)

    def shell(name: str) -> None:
        barrier.wait()
        for run in runs:
            if ledger.take(run, 1, name):
                won[run].append(name)

    threads = [threading.Thread(target=shell, args=(f"shell{k}",)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(winners) == 1 for winners in won.values())
    claims = ledger.claims()
    assert {run: claims[run].submission for run in runs} == {r: w[0] for r, w in won.items()}


def test_a_claim_is_taken_over_by_the_next_and_never_twice(ledger):
    ledger.open_submission()
    assert ledger.take("run", 1, "first")
    assert not ledger.taken_over("run", 1)
    assert ledger.take("run", 2, "second")
    assert not ledger.take("run", 2, "third")
    assert ledger.taken_over("run", 1)
    assert not ledger.taken_over("run", 2)
    assert (ledger.claims()["run"].number, ledger.claims()["run"].submission) == (2, "second")


def test_a_shell_is_alive_by_its_process_or_elsewhere_by_its_sign(ledger):
    ours = ledger.open_submission()
    dead, far, silent, reused = (ledger.open_submission() for _ in range(4))
    process = os.fork()
    if process == 0:
        os._exit(0)
    os.waitpid(process, 0)

    def mark(submission: str, host: str, pid: int, age: float) -> None:
        path = ledger.submission_folder(submission) / "submitting"
        path.write_text(json.dumps({"host": host, "pid": pid}))
        os.utime(path, (time.time() - age,) * 2)

    mark(dead, socket.gethostname(), process, 0)
    mark(far, "elsewhere", 1, MARKER_SECONDS / 2)
    mark(silent, "elsewhere", 1, MARKER_SECONDS * 2)
    mark(reused, socket.gethostname(), os.getpid(), MARKER_SECONDS * 2)  # by another process
    assert ledger.being_submitted(ours) == {ours, far}
    ledger.close_submission(far)
    assert ledger.being_submitted(ours) == {ours}


def test_the_owner_is_the_last_to_claim_whatever_the_clocks_say(ledger):
    later = manifest_of(ledger, "20300101-000000-aaaaaa", {0: 1, 1: 1})
    earlier = manifest_of(ledger, "20200101-000000-bbbbbb", {0: 2})
    first, second = later.runs
    assert ledger.owners() == {first: earlier, second: later}
    assert ledger.find_run(first[:10]) == (earlier, first)
    with pytest.raises(UserError, match="no run 'zz' was submitted"):
        ledger.find_run("zz")
    with pytest.raises(UserError, match="write more of it"):
        ledger.find_run("")


def test_a_damaged_manifest_or_note_is_as_if_it_were_not_there(ledger):
    manifest = manifest_of(ledger, "20300101-000000-aaaaaa", {0: 1})
    path = ledger.submission_folder(manifest.submission) / "manifest.json"
    path.write_text(path.read_text()[:50])
    assert Ledger(ledger.folder.parent).manifests() == []
    (run,) = manifest.runs
    ledger.put_progress(run, {"state": "running"})
    assert ledger.progress(run) == {"state": "running"}
    (ledger.folder / "progress" / run).write_text("{")
    assert ledger.progress(run) is None


def test_the_ledger_does_not_look_like_results(ledger, store):
    ours = Ledger(store.root)
    manifest = manifest_of(ours, ours.open_submission(), {0: 1})
    ours.put_progress(next(iter(manifest.runs)), {})
    assert list(store.paths()) == []
    assert store.collect().damaged == {}
