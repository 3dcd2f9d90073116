"""An entry: results of some runs in one JSON file, with everything needed to check them.

    kind, schema          what this is, so that an old reader refuses a new file
    name, contact         who stands for it
    protocol              the protocol the runs claim to follow, or null
    environments          Python, torch, device, commit; runs refer to them by number
    runs                  id, spec, about, records, training loss, partition, costs of every run
    summary               mean and spread per method and held-out domain, recomputed by `verify`
    hash                  of all the rest

The same runs give the same bytes. The hash guards against accidents, not against intent: what
makes a row believable is that any of its runs can be repeated to the bit.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmark.errors import UserError
from benchmark.results import SCHEMA as RESULT_SCHEMA
from benchmark.results import Collection, Damaged, Result
from benchmark.spec import canonical_json
from datasets.base import write_atomically
from leaderboard.select import choose_rounds
from leaderboard.submissions.checks import (
    fields,
    items,
    name,
    number,
    parse,
    refuse,
    text,
    whole,
)
from leaderboard.submissions.fields import (
    ROUNDS,
    RUN,
    pack_records,
    read_about,
    read_costs,
    read_environment,
    read_records,
    read_spec,
)

KIND = "feddomainbed entry"
SCHEMA = 1
MAX_BYTES = 20_000_000
RUNS = 20_000
RULE = "training_domain"
"""The summary's selection; tables and site choose their own from the whole curves."""
SUMMARY = ("dataset", "setting", "method", "config", "predictor", "target")
TOP = ("kind", "schema", "name", "contact", "protocol", "environments", "runs", "summary", "hash")


@dataclasses.dataclass(frozen=True)
class Entry:
    """A file that has the right shape, with its ids and its hash recomputed."""

    name: str
    contact: str
    protocol: str | None
    results: list[Result]
    summary: list[dict[str, Any]]
    hash: str

    @property
    def found(self) -> Collection:
        return Collection(self.results, [], {}, {})


def pack(results: Sequence[Result], who: str, contact: str, protocol: str | None) -> str:
    """The text of an entry."""
    if not results:
        raise UserError("no results to pack; run python -m benchmark.sweep first")
    for label, value in (("--name", who), ("--contact", contact)):
        if not value.strip():
            raise UserError(f"{label} must not be empty")
    ordered = sorted(results, key=lambda result: result.spec.id)
    environments = {
        canonical_json(result.environment): dict(result.environment) for result in ordered
    }
    order = sorted(environments)
    entry = {
        "kind": KIND,
        "schema": SCHEMA,
        "name": who,
        "contact": contact,
        "protocol": protocol,
        "environments": [environments[key] for key in order],
        "runs": [_pack_run(result, order) for result in ordered],
        "summary": summarise(ordered),
    }
    return canonical_json({**entry, "hash": digest(entry)}) + "\n"


def _pack_run(result: Result, environments: Sequence[str]) -> dict[str, Any]:
    run = {key: value for key, value in result.to_json().items() if key in RUN}
    place = environments.index(canonical_json(result.environment))
    return {**run, "records": pack_records(result), "environment": place}


def digest(entry: dict[str, Any]) -> str:
    """Hash of everything in an entry but the hash itself."""
    rest = {key: value for key, value in entry.items() if key != "hash"}
    return hashlib.sha256(canonical_json(rest).encode()).hexdigest()


def summarise(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Mean and standard deviation over seeds, per configuration and held-out domain."""
    chosen = choose_rounds(Collection(list(results), [], {}, {}).frame(), RULE)
    rows = []
    for key, runs in chosen.groupby(list(SUMMARY), sort=True):
        spread = float(runs["test"].std())
        rows.append(
            dict(zip(SUMMARY, map(str, key), strict=True))
            | {"seeds": len(runs), "mean": float(runs["test"].mean())}
            | {"std": None if math.isnan(spread) else spread}
        )
    return rows


def write_entry(path: Path, text: str) -> None:
    if len(text.encode()) > MAX_BYTES:
        raise UserError(
            f"the entry would have {len(text.encode()) / 1e6:.1f} MB, at most {MAX_BYTES / 1e6:g}; "
            f"submit one dataset or fewer methods at a time"
        )
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def read_entry(path: Path) -> Entry:
    """The entry in a file; raises `Refused`, naming the field, for anything but a sound one."""
    try:
        if not path.is_file():
            raise UserError(f"no entry at {str(path)!r}")
        if path.stat().st_size > MAX_BYTES:
            raise refuse("", f"larger than {MAX_BYTES / 1e6:g} MB")
        data = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise refuse("", f"cannot be read as UTF-8 text ({type(error).__name__})") from error
    return check_entry(parse(data))


def check_entry(data: Any) -> Entry:
    """Shape, types, ranges, ids and the hash."""
    data = fields(data, "", TOP)
    if data["kind"] != KIND or data["schema"] != SCHEMA or isinstance(data["schema"], bool):
        raise refuse("schema", f"this version reads {KIND!r} of schema {SCHEMA}")
    text(data["name"], "name", 120)
    text(data["contact"], "contact", 200)
    if data["protocol"] is not None:
        name(data["protocol"], "protocol")
    environments = items(data["environments"], "environments", 1000)
    for k, environment in enumerate(environments):
        read_environment(environment, f"environments[{k}]")
    runs = items(data["runs"], "runs", RUNS)
    if not runs:
        raise refuse("runs", "there are none")
    results = [_read_run(run, f"runs[{k}]", environments) for k, run in enumerate(runs)]
    first: dict[str, int] = {}
    for k, result in enumerate(results):
        if first.setdefault(result.spec.id, k) != k:
            raise refuse(f"runs[{k}].id", f"the same run as runs[{first[result.spec.id]}]")
    summary = _read_summary(data["summary"])
    if data["hash"] != digest(data):
        raise refuse("hash", "is not the hash of the entry: the file was changed or damaged")
    return Entry(data["name"], data["contact"], data["protocol"], results, summary, data["hash"])


def _read_run(value: Any, where: str, environments: list) -> Result:
    value = fields(value, where, RUN)
    spec = read_spec(value["spec"], f"{where}.spec")
    if value["id"] != spec.id:
        raise refuse(f"{where}.id", f"is not the hash of its spec, which is {spec.id}")
    losses = items(value["train_loss"], f"{where}.train_loss", ROUNDS)
    for k, loss in enumerate(losses):
        number(loss, f"{where}.train_loss[{k}]", -1e12, 1e12)
    place = whole(value["environment"], f"{where}.environment", 0, len(environments) - 1)
    data = {
        **value,
        "schema": RESULT_SCHEMA,
        "about": read_about(value["about"], f"{where}.about"),
        "records": read_records(value["records"], f"{where}.records"),
        "partition": name(value["partition"], f"{where}.partition"),
        "costs": read_costs(value["costs"], f"{where}.costs"),
        "environment": environments[place],
    }
    try:
        return Result.from_json(data)
    except Damaged as error:
        raise refuse(where, str(error)) from error


def _read_summary(value: Any) -> list[dict[str, Any]]:
    for k, row in enumerate(items(value, "summary", 10 * RUNS)):
        where = f"summary[{k}]"
        fields(row, where, (*SUMMARY, "seeds", "mean", "std"))
        for key in SUMMARY:
            name(row[key], f"{where}.{key}")
        whole(row["seeds"], f"{where}.seeds", 1, RUNS)
        number(row["mean"], f"{where}.mean", 0, 1)
        if row["std"] is not None:
            number(row["std"], f"{where}.std", 0, 1)
    return value
