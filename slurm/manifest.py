"""What a submission writes down before its first job: its runs, its arrays and its settings."""

from __future__ import annotations

import dataclasses
import getpass
import time
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from benchmark.spec import RunSpec

SCHEMA = 1


@dataclasses.dataclass(frozen=True)
class Manifest:
    """One submission: what was asked for, and which runs stand in which task of which array."""

    submission: str
    created: str
    user: str
    profile: Mapping[str, Any]
    place: Mapping[str, Any]
    plugins: list[str]
    runs: Mapping[str, Mapping[str, Any]]
    """Specs as JSON by run id."""
    arrays: list[list[list[str]]]
    """Run ids by array and task."""
    claims: Mapping[str, int]
    """The number of each run's claim."""

    @classmethod
    def new(cls, submission: str, specs: Iterable[RunSpec], **values: Any) -> Manifest:
        """The manifest of a submission made now, by this user."""
        return cls(
            submission=submission,
            created=time.strftime("%Y-%m-%dT%H:%M:%S"),
            user=getpass.getuser(),
            runs={spec.id: spec.to_json() for spec in specs},
            **values,
        )

    def to_json(self) -> dict[str, Any]:
        names = [field.name for field in dataclasses.fields(self)]
        return {"schema": SCHEMA, **{name: getattr(self, name) for name in names}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Manifest:
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']}, this version reads {SCHEMA}")
        return cls(**{field.name: data[field.name] for field in dataclasses.fields(cls)})

    @cached_property
    def places(self) -> dict[str, tuple[int, int]]:
        """Array and task of each run."""
        return {
            run: (a, t)
            for a, tasks in enumerate(self.arrays)
            for t, runs in enumerate(tasks)
            for run in runs
        }

    def spec(self, run: str) -> RunSpec:
        return RunSpec.from_json(self.runs[run])

    def first_arrays(self, count: int) -> Manifest:
        """The manifest of what was accepted."""
        arrays = self.arrays[:count]
        kept = {run for tasks in arrays for task in tasks for run in task}
        return dataclasses.replace(
            self,
            arrays=arrays,
            runs={run: spec for run, spec in self.runs.items() if run in kept},
            claims={run: number for run, number in self.claims.items() if run in kept},
        )
