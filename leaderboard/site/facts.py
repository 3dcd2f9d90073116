"""What the project knows about methods and datasets, where it can be imported. All of it is
optional: without torch the site is built from what the results say about themselves."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Iterable

from benchmark.errors import UserError
from benchmark.hparams import fields
from benchmark.results import Result
from datasets.base import plain


@dataclasses.dataclass(frozen=True)
class MethodFacts:
    """A registered method, for its page."""

    label: str
    paper: str
    venue: str
    category: str
    shares: tuple[str, ...]
    idea: str
    hparams: tuple[tuple[str, str, str, str], ...]
    """Name, default, search space, meaning."""


@dataclasses.dataclass(frozen=True)
class DatasetFacts:
    """A registered dataset, for its page."""

    domains: tuple[str, ...]
    classes: int
    counts: dict[str, int]
    citation: str
    licence: str
    about: str


def method_facts() -> dict[str, MethodFacts]:
    """Every registered method by name; empty where the registry cannot be imported."""
    try:
        from benchmark.protocol import methods

        return {name: _method(methods[name]) for name in methods}
    except Exception as error:  # a method under work must not take the board down
        print(f"note: no facts about methods ({type(error).__name__}: {error})", file=sys.stderr)
        return {}


def _method(cls) -> MethodFacts:
    info = cls.info
    module = sys.modules[cls.__module__]
    hparams = tuple(
        (
            name,
            str(field.default),
            str(field.metadata.get("space") or ""),
            str(field.metadata.get("doc") or ""),
        )
        for name, field in fields(cls).items()
    )
    idea = inspect.cleandoc(module.__doc__ or cls.__doc__ or "")
    return MethodFacts(
        info.label, info.paper, info.venue, info.category, tuple(info.shares), idea, hparams
    )


def dataset_facts(names: Iterable[str]) -> dict[str, DatasetFacts]:
    """The registered ones of some datasets."""
    try:
        from datasets.base import datasets

        return {name: _dataset(datasets[name]) for name in names if name in datasets}
    except Exception as error:
        print(f"note: no facts about datasets ({type(error).__name__}: {error})", file=sys.stderr)
        return {}


def _dataset(cls) -> DatasetFacts:
    return DatasetFacts(
        tuple(cls.domains),
        len(cls.classes),
        dict(cls.counts or {}),
        cls.citation,
        cls.licence,
        inspect.cleandoc(sys.modules[cls.__module__].__doc__ or ""),
    )


def protocol_names(results: Iterable[Result]) -> dict[str, str]:
    """Settings that are exactly a protocol's, by their hash."""
    specs = {result.spec.setting: result.spec for result in results}
    try:
        from benchmark.protocol import protocols
        from leaderboard.submissions.protocols import departures

        return {
            setting: name
            for setting, spec in specs.items()
            for name in reversed(protocols.names())
            if not any(departures(spec, protocols[name]))
        }
    except Exception as error:
        print(f"note: no facts about protocols ({type(error).__name__}: {error})", file=sys.stderr)
        return {}


class DomainNames:
    """Printed names of domains as the datasets call them, where that is known."""

    def __init__(self, known: dict[str, tuple[str, ...]], registered: bool):
        self._known = {
            dataset: {plain(domain): domain for domain in domains}
            for dataset, domains in known.items()
        }
        self._registered = registered

    def __call__(self, dataset: str, printed: str) -> str:
        if self._registered:
            from datasets.base import open_dataset

            try:
                return open_dataset(dataset).find_domain(printed)
            except UserError:
                return printed
        return self._known.get(dataset, {}).get(plain(printed), printed)
