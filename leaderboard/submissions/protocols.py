"""Whether an entry's specs are those of the protocol it names. Reads the registry, so it needs the
project's methods and datasets, which are imported when asked and not before."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from benchmark.errors import UserError
from benchmark.results import Result
from benchmark.spec import RunSpec
from leaderboard.submissions.entry import Entry
from leaderboard.submissions.verify import Report, configurations, listed

FIXED = (
    *("backbone", "pretrained", "transform", "image_size"),
    *("split", "partition", "test_part", "training"),
)
"""Fields of a spec that a protocol decides."""


def examine_protocol(entry: Entry, report: Report) -> None:
    """Add to a report what is not the protocol's, and what is the submitter's own choice."""
    if entry.protocol is None:
        report.remarks.append("no protocol is named, so none was compared")
        return
    from benchmark.protocol import protocols

    protocol = protocols[entry.protocol]
    problems: list[str] = []
    for runs in configurations(entry):
        spec = runs[0].spec
        where = f"{spec.method} on {spec.dataset} [config {spec.config}]"
        problems += [f"{where}: {text}" for text in departures(spec, protocol)]
        report.remarks += [f"{where}: {text}" for text in _own_settings(spec, protocol)]
        seeds = {result.spec.seed for result in runs}
        if spec.dataset in protocol.datasets:
            missing = sorted(set(protocol.on(spec.dataset, {}).seeds) - seeds)
            if missing:
                problems.append(f"{where}: the protocol's seeds {listed(missing)} are missing")
            problems += [f"{where}: {text}" for text in _domain_problems(runs[0])]
    report.add(f"protocol {entry.protocol}", problems)


def departures(spec: RunSpec, protocol: Any) -> Iterator[str]:
    """Where a spec is not what the protocol says."""
    from datasets.partition import canonical_partition
    from datasets.splits import canonical_split

    if spec.dataset not in protocol.datasets:
        yield f"the protocol has no dataset {spec.dataset}"
        return
    setting = protocol.on(spec.dataset, {})
    expected = {key: getattr(setting, key) for key in FIXED}
    expected["split"] = canonical_split(setting.split)
    expected["partition"] = canonical_partition(setting.partition)
    if _centralised(spec):
        expected["partition"] = canonical_partition("pooled")
    for key in FIXED:
        given = getattr(spec, key)
        if key != "training" and given != expected[key]:
            yield f"{key} is {given!r}, the protocol says {expected[key]!r}"
    given, stated = (dataclasses.asdict(t) for t in (spec.training, setting.training))
    for key in stated:
        if given[key] != stated[key]:
            yield f"training.{key} is {given[key]!r}, the protocol says {stated[key]!r}"


def _centralised(spec: RunSpec) -> bool:
    from benchmark.protocol import compose

    try:
        return compose(spec.method).info.centralised
    except UserError:
        return False


def _own_settings(spec: RunSpec, protocol: Any) -> Iterator[str]:
    """Hyper-parameters are the submitter's choice; which ones are not the protocol's is told."""
    from benchmark.hparams import resolve
    from benchmark.protocol import compose, parts_of

    if spec.dataset not in protocol.datasets:
        return
    setting = protocol.on(spec.dataset, {})
    try:
        stated: dict[str, Any] = {}
        for part in parts_of(spec.method):
            stated |= setting.overrides.get(part, {})
        usual = resolve(compose(spec.method), stated, spec.method)
    except UserError:
        yield "not a method of this project: it cannot be re-run without its file (--plugin)"
        return
    for key, value in spec.hparams.items():
        expected = list(usual[key]) if isinstance(usual.get(key), tuple) else usual.get(key)
        if key not in usual or value != expected:
            yield f"hyper-parameter {key} is {value!r}, usually {usual.get(key)!r}"


def _domain_problems(result: Result) -> Iterator[str]:
    from datasets.base import open_dataset

    known = list(open_dataset(result.spec.dataset).domains)
    if list(result.about["domains"]) != known:
        yield f"domains are {', '.join(result.about['domains'])}, not {', '.join(known)}"
