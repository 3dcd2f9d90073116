"""Results: one JSON file per finished run, written once and whole. Needs no torch.

The file is the done marker. One writer per file, no locks, mergeable by copying folders together:

    <root>/<dataset>/<method>/<id>.json            a finished run
    <root>/<dataset>/<method>/<id>.failed.json     why the last attempt failed; retried next time
    <root>/.checkpoints/<id>.pt                    a run under way
    <root>/.models/<id>.pt                         a finished run's model, if it was to be kept
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from benchmark.errors import Diverged, UserError
from benchmark.spec import RunSpec
from datasets.base import write_atomically

SCHEMA = 1
COLUMNS = ("round", "predictor", "part", "client", "domain", "accuracy", "loss", "count")


class Damaged(Exception):
    """A file that is there but is not a result."""


@dataclasses.dataclass(frozen=True)
class Result:
    """One finished run: what was asked, what was measured, what it cost."""

    spec: RunSpec
    about: Mapping[str, Any]
    """The method's label, category and own predictor, and the dataset's domains, for tables."""
    records: Mapping[str, list]
    """The whole curve as columns; selection happens when reading."""
    train_loss: list[float]
    """Mean training loss of each round."""
    partition: str
    """Fingerprint of who held which samples."""
    costs: Mapping[str, Any]
    environment: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "id": self.spec.id, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, data: Any) -> Result:
        try:
            if data["schema"] != SCHEMA:
                raise Damaged(f"schema {data['schema']}, this version reads {SCHEMA}")
            spec = RunSpec.from_json(data["spec"])
            if data["id"] != spec.id:
                raise Damaged("its id is not the hash of its spec")
            lengths = {len(data["records"][column]) for column in COLUMNS}
            if len(lengths) != 1:
                raise Damaged("its columns differ in length")
            names = ("about", "records", "train_loss", "partition", "costs", "environment")
            result = cls(spec, **{name: data[name] for name in names})
        except (KeyError, TypeError, ValueError, UserError) as error:
            raise Damaged(f"{type(error).__name__}: {error}") from error
        return result


def as_columns(records: Iterable[Any]) -> dict[str, list]:
    """Records as columns, which read ten times faster than rows."""
    records = list(records)
    return {column: [getattr(record, column) for record in records] for column in COLUMNS}


class ResultStore:
    """The folder of results. Reading never changes anything in it."""

    def __init__(self, root: str | Path):
        self.root = Path(root)

    def path(self, spec: RunSpec) -> Path:
        return self.root / _safe(spec.dataset) / _safe(spec.method) / f"{spec.id}.json"

    def failure_path(self, spec: RunSpec) -> Path:
        return self.path(spec).with_suffix(".failed.json")

    def checkpoint_path(self, spec: RunSpec) -> Path:
        return self.root / ".checkpoints" / f"{spec.id}.pt"

    def model_path(self, spec: RunSpec) -> Path:
        return self.root / ".models" / f"{spec.id}.pt"

    def check_writable(self) -> None:
        """Find out now, not after an hour of training."""
        try:
            write_atomically(self.root / ".writable", lambda path: path.write_text(""))
            (self.root / ".writable").unlink(missing_ok=True)
        except OSError as error:
            reason = error.strerror or error
            raise UserError(f"cannot write to --out {str(self.root)!r}: {reason}") from error

    def get(self, spec: RunSpec) -> Result | None:
        """The stored result of a spec; None if there is none; `Damaged` if it cannot be read."""
        return read_result(self.path(spec))

    def put(self, result: Result) -> None:
        """Store a finished run. Numbers that are not numbers are refused, never written as 0."""
        for column in ("accuracy", "loss"):
            if not all(math.isfinite(value) for value in result.records[column]):
                raise Diverged(f"the evaluation has a {column} that is not a finite number")
        text = json.dumps(result.to_json(), allow_nan=False)
        write_atomically(self.path(result.spec), lambda path: path.write_text(text))
        self.failure_path(result.spec).unlink(missing_ok=True)
        self.checkpoint_path(result.spec).unlink(missing_ok=True)

    def put_failure(self, spec: RunSpec, reason: str, detail: str) -> None:
        """Note why a run failed; the next sweep tries it again."""
        data = {"schema": SCHEMA, "id": spec.id, "spec": spec.to_json()}
        text = json.dumps({**data, "reason": reason, "detail": detail})
        write_atomically(self.failure_path(spec), lambda path: path.write_text(text))

    def set_aside(self, path: Path) -> Path:
        """Move a damaged file out of the way, keeping it."""
        aside = path.with_name(path.name + ".damaged")
        os.replace(path, aside)
        return aside

    def paths(self) -> Iterator[Path]:
        """Every result file, finished runs only."""
        for path in sorted(self.root.glob("*/*/*.json")):
            if not path.name.endswith(".failed.json") and not path.name.startswith("."):
                yield path

    def collect(self, specs: Iterable[RunSpec] | None = None) -> Collection:
        """All results, or those of a plan, with what is missing, failed or damaged."""
        wanted = None if specs is None else {self.path(spec): spec for spec in specs}
        results, missing, damaged = [], [], {}
        for path in self.paths() if wanted is None else wanted:
            try:
                result = read_result(path)
            except Damaged as error:
                damaged[path] = str(error)
                continue
            if result is not None:
                results.append(result)
            elif wanted is not None:
                missing.append(wanted[path])
        failed = {}
        for spec in missing:
            if (failure := read_failure(self.failure_path(spec))) is not None:
                failed[spec] = failure
        return Collection(results, missing, failed, damaged)


@dataclasses.dataclass(frozen=True)
class Collection:
    """What was found when reading a store."""

    results: list[Result]
    missing: list[RunSpec]
    failed: dict[RunSpec, str]
    damaged: dict[Path, str]

    @property
    def about(self) -> dict[str, Mapping[str, Any]]:
        """What the results say about their methods, by method."""
        return {result.spec.method: result.about for result in self.results}

    @property
    def domains(self) -> dict[str, list[str]]:
        """The domains of each dataset, in their order."""
        return {result.spec.dataset: result.about["domains"] for result in self.results}

    def frame(self) -> pd.DataFrame:
        """One row per record, with the spec's fields that tell runs apart."""
        if not self.results:
            names = ["id", "dataset", "target", "method", "config", "setting", "seed", *COLUMNS]
            return pd.DataFrame(columns=names)
        lengths = [len(result.records["round"]) for result in self.results]
        repeat = pd.Index(range(len(self.results))).repeat(lengths)
        runs = pd.DataFrame(
            {
                "id": [result.spec.id for result in self.results],
                "dataset": [result.spec.dataset for result in self.results],
                "target": [result.spec.target for result in self.results],
                "method": [result.spec.method for result in self.results],
                "config": [result.spec.config for result in self.results],
                "setting": [result.spec.setting for result in self.results],
                "seed": [result.spec.seed for result in self.results],
            }
        )
        columns = {
            column: [value for result in self.results for value in result.records[column]]
            for column in COLUMNS
        }
        return pd.concat([runs.loc[repeat].reset_index(drop=True), pd.DataFrame(columns)], axis=1)


def read_result(path: Path) -> Result | None:
    """The result in a file, None if there is no file; `Damaged` says what is wrong with it."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise Damaged(str(error)) from error
    try:
        data = json.loads(text)
    except ValueError as error:
        raise Damaged(f"not JSON: {error}") from error
    result = Result.from_json(data)
    if path.stem != result.spec.id:
        raise Damaged(f"it holds run {result.spec.id}")
    return result


def read_failure(path: Path) -> str | None:
    """The reason of the last failed attempt, if there was one."""
    try:
        return str(json.loads(path.read_text())["reason"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return "the note about the failure is damaged"


def _safe(name: str) -> str:
    """A name as a folder name."""
    return re.sub(r"[^\w.+-]", "_", name)
