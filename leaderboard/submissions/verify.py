"""What must be true of an entry besides its shape: whole grids, sound curves, right arithmetic.
Pure functions that list what is wrong."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from benchmark.results import Result
from benchmark.spec import RunSpec
from leaderboard.submissions.entry import SUMMARY, Entry, summarise

TOLERANCE = 1e-9


@dataclasses.dataclass
class Report:
    """What was checked, what is wrong, and what a reader should know."""

    checked: list[str] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)
    remarks: list[str] = dataclasses.field(default_factory=list)

    def add(self, what: str, problems: list[str]) -> None:
        self.checked.append(f"{what}: {'ok' if not problems else f'{len(problems)} wrong'}")
        self.problems += problems


def examine(entry: Entry) -> Report:
    """Everything that can be checked without running anything and without torch."""
    report = Report()
    report.checked.append(f"schema, types, ranges, ids of {len(entry.results)} runs, hash: ok")
    report.add("curves", [p for result in entry.results for p in curve_problems(result)])
    report.add("arithmetic", arithmetic_problems(entry))
    report.add("one story over all runs", agreement_problems(entry))
    report.add("seeds and targets", grid_problems(entry))
    return report


def curve_problems(result: Result) -> list[str]:
    """Every evaluated round once per predictor, on the right domains, with one test set."""
    spec, columns = result.spec, result.records
    found = []
    rows = list(
        zip(
            *(columns[key] for key in ("round", "predictor", "part", "domain", "client")),
            strict=True,
        )
    )
    tests = Counter((round, predictor) for round, predictor, part, *_ in rows if part == "test")
    predictors = list(dict.fromkeys(columns["predictor"]))
    expected = [r for r in range(spec.training.rounds) if spec.training.evaluates(r)]
    if tests != Counter((round, predictor) for round in expected for predictor in predictors):
        found.append("its tests are not one per evaluated round and predictor")
    if len(set(rows)) != len(rows):
        found.append("a record stands twice")
    if result.about["predictor"] not in predictors:
        found.append(f"its own predictor {result.about['predictor']!r} has no records")
    if {part for _, _, part, *_ in rows} - {"val", "test"}:
        found.append("parts must be val or test")
    if any((domain == spec.target) != (part == "test") for _, _, part, domain, _ in rows):
        found.append("the held-out domain must be tested, and only tested")
    if set(columns["domain"]) - set(result.about["domains"]):
        found.append("a record names a domain that the dataset does not have")
    pairs = zip(columns["part"], columns["count"], strict=True)
    if len({count for part, count in pairs if part == "test"}) > 1:
        found.append("the number of tested samples changes from round to round")
    if len(result.train_loss) != spec.training.rounds:
        found.append(f"{len(result.train_loss)} training losses for {spec.training.rounds} rounds")
    return [f"{spec}: {problem}" for problem in found]


def arithmetic_problems(entry: Entry) -> list[str]:
    """The summary and the times per step follow from the records."""
    found = []
    ours = {tuple(row[key] for key in SUMMARY): row for row in summarise(entry.results)}
    theirs = {tuple(row[key] for key in SUMMARY): row for row in entry.summary}
    if ours.keys() != theirs.keys() or len(theirs) != len(entry.summary):
        found.append("summary: its rows are not those of the runs")
    for key in ours.keys() & theirs.keys():
        for column in ("seeds", "mean", "std"):
            if not _close(ours[key][column], theirs[key][column]):
                found.append(
                    f"summary, {' '.join(key[i] for i in (0, 2, 5))}: {column} is "
                    f"{theirs[key][column]}, its runs give {ours[key][column]}"
                )
    for result in entry.results:
        costs = result.costs
        per_step = 1000 * costs["train_seconds"] / max(1, costs["steps"])
        if not _close(per_step, costs["ms_per_step"], 1e-6 * max(1.0, per_step)):
            found.append(f"{result.spec}: ms_per_step does not follow from seconds and steps")
    return found


def _close(one: Any, other: Any, tolerance: float = TOLERANCE) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=0, abs_tol=tolerance)


def agreement_problems(entry: Entry) -> list[str]:
    """Runs of one dataset agree on its domains and test sets, of one method on what it is, and of
    one seed and partition on who held which samples."""
    said: dict[tuple, tuple[Any, RunSpec]] = {}
    found = []
    for result in entry.results:
        spec, about = result.spec, result.about
        division = (spec.dataset, spec.target, spec.split, spec.partition, spec.seed)
        tested = (spec.dataset, spec.target, spec.split, spec.test_part, spec.seed)
        count = next(
            (
                c
                for c, p in zip(result.records["count"], result.records["part"], strict=True)
                if p == "test"
            ),
            0,
        )
        for fact, value in (
            (("the domains of", spec.dataset), tuple(about["domains"])),
            (
                ("label, category and predictor of", spec.method),
                (about["label"], about["category"], about["predictor"]),
            ),
            (("who held which samples in", *division), result.partition),
            (("the number of test samples of", *tested), count),
        ):
            before, other = said.setdefault(fact, (value, spec))
            if before != value:
                what = " ".join(map(str, fact))
                found.append(f"{spec}: differs from {other} in {what}")
    return found


def grid_problems(entry: Entry) -> list[str]:
    """Every configuration has been run with every domain held out and the same seeds."""
    found = []
    for runs in configurations(entry):
        spec, domains = runs[0].spec, runs[0].about["domains"]
        where = f"{spec.method} on {spec.dataset} [config {spec.config}]"
        seeds = {result.spec.seed for result in runs}
        have = {(result.spec.target, result.spec.seed) for result in runs}
        for target in sorted({target for target, _ in have} - set(domains)):
            found.append(f"{where}: {target!r} is no domain of {spec.dataset}")
        for target in domains:
            missing = sorted(seed for seed in seeds if (target, seed) not in have)
            if missing:
                found.append(f"{where}: target {target} lacks seeds {listed(missing)}")
    return found


def configurations(entry: Entry) -> Iterator[list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in entry.results:
        groups.setdefault(result.spec.config, []).append(result)
    yield from groups.values()


def listed(values: list) -> str:
    return ", ".join(map(str, values[:10])) + ("…" if len(values) > 10 else "")
