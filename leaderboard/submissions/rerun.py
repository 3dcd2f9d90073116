"""Repeating sampled runs of an entry and comparing to the bit: the one place on the reading side
that trains, and only when asked to."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmark.errors import UserError
from benchmark.results import Result, ResultStore
from benchmark.seeds import seed_for
from leaderboard.submissions.entry import Entry

MEASURED = ("records", "train_loss", "partition")
THREADS = 64


def sample(entry: Entry, count: int, seed: int) -> list[Result]:
    """Some runs, drawn from the entry's own hash and the checker's seed."""
    if count < 1:
        raise UserError(f"--rerun {count}: at least 1")
    generator = random.Random(seed_for(seed, "rerun", entry.hash))
    return generator.sample(entry.results, min(count, len(entry.results)))


def rerun(entry: Entry, count: int, data: Path, device: str, seed: int) -> Iterator[str]:
    """Run the sampled specs anew; yields what differs, nothing where all is the same to the bit."""
    from benchmark.execute import Place, attempt, environment, preflight

    chosen = sample(entry, count, seed)
    for claimed in chosen:
        threads = claimed.environment.get("threads")
        threads = threads if isinstance(threads, int) and 1 <= threads <= THREADS else 1
        place = Place(data=data, device=device, threads=threads)
        preflight([claimed.spec], place)
        with tempfile.TemporaryDirectory() as folder:
            store = ResultStore(folder)
            failure = attempt(claimed.spec, store, place)
            if failure is not None:
                yield f"{claimed.spec}: failed here: {failure}"
                continue
            ours = store.get(claimed.spec)
        for difference in differences(claimed, ours):
            here = _differing(claimed.environment, environment(place))
            yield f"{claimed.spec}: {difference}{here}"


def differences(claimed: Result, ours: Result) -> Iterator[str]:
    """What two results of one spec do not share, of all that must be the same to the bit."""
    for key in ("partition", "train_loss"):
        if getattr(claimed, key) != getattr(ours, key):
            yield f"{key} differs"
    for column in ours.records:
        theirs, mine = claimed.records[column], ours.records[column]
        if theirs == mine:
            continue
        gap = ""
        if column in ("accuracy", "loss") and len(theirs) == len(mine):
            largest = max(abs(a - b) for a, b in zip(theirs, mine, strict=True))
            gap = f" (by up to {largest:.3g})"
        yield f"records.{column} differs{gap}"
    for cost in ("parameters", "bytes_per_round", "steps"):
        if claimed.costs[cost] != ours.costs[cost]:
            yield f"costs.{cost} differs"


def _differing(theirs: Any, ours: Any) -> str:
    """The environments' differences, which may explain others."""
    names = [k for k in ("torch", "machine", "device", "threads") if theirs.get(k) != ours.get(k)]
    if not names:
        return ""
    listing = ", ".join(
        f"{name} {theirs.get(name)!s} there, {ours.get(name)!s} here" for name in names
    )
    return f"; note {listing}"
