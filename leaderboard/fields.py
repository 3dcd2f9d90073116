"""The fields of runs by name, for free tables: what can stand in rows, columns and conditions."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from benchmark.errors import UserError, unknown
from benchmark.results import Collection
from benchmark.spec import RunSpec

REPEATS = {"id", "seed", "config", "setting"}
"""Fields that tell repeats and hashes apart, not settings."""


def fields_of(spec: RunSpec) -> dict[str, Any]:
    """Every field of a spec by its own name: `backbone`, `rounds`, `mu`."""
    plain = {
        field.name: getattr(spec, field.name)
        for field in dataclasses.fields(spec)
        if field.name not in ("training", "hparams")
    }
    known = {"id": spec.id, "config": spec.config, "setting": spec.setting}
    return {**spec.hparams, **dataclasses.asdict(spec.training), **plain, **known}


def field_frame(specs: Sequence[RunSpec], wanted: Iterable[str] = ()) -> pd.DataFrame:
    """One row per run. `protocol` is worked out only if it is wanted, which needs torch."""
    frame = pd.DataFrame([fields_of(spec) for spec in specs])
    if "protocol" in wanted and len(frame):
        names = protocol_names(specs)
        frame["protocol"] = [names.get(spec.setting, "none") for spec in specs]
    return frame


def protocol_names(specs: Sequence[RunSpec]) -> dict[str, str]:
    """The protocol each setting belongs to: the one whose runs on that dataset share it."""
    from benchmark.protocol import plan, protocols

    names: dict[str, str] = {}
    pooled = {s.pooled_setting: s.setting for s in specs if s.partition.startswith("pooled")}
    for dataset in dict.fromkeys(spec.dataset for spec in specs):
        for name in protocols:
            with contextlib.suppress(UserError):  # this dataset does not fit it
                spec = plan(protocols[name], ["fedavg"], datasets=[dataset]).specs[0]
                names.setdefault(spec.setting, name)
                if spec.pooled_setting in pooled:
                    names.setdefault(pooled[spec.pooled_setting], name)
    return names


def split_names(texts: Iterable[str]) -> list[str]:
    """`["dataset,target", "costs"]` as single names, each once."""
    names = [name.strip() for text in texts for name in text.split(",")]
    return list(dict.fromkeys(name for name in names if name))


def parse_conditions(texts: Iterable[str]) -> dict[str, list[str]]:
    """`["method=fedavg,fedbn", "rounds=5"]` as accepted values by field."""
    conditions = {}
    for text in texts:
        name, sign, values = text.partition("=")
        if not (name.strip() and sign and values.strip()):
            raise UserError(f"--where {text!r}: write FIELD=VALUE or FIELD=ONE,OTHER")
        conditions[name.strip()] = split_names([values])
    return conditions


def check_fields(names: Iterable[str], frame: pd.DataFrame) -> None:
    for name in names:
        if name not in frame.columns:
            raise unknown("field", name, map(str, frame.columns))


def matching(frame: pd.DataFrame, conditions: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """The runs that fulfil all conditions; one that no run fulfils is an error."""
    check_fields(conditions, frame)
    for name, values in conditions.items():
        mask = frame[name].map(lambda value, values=values: any(_same(value, v) for v in values))
        if not mask.any():
            there = ", ".join(sorted({str(value) for value in frame[name]}))
            wanted = ",".join(values)
            raise UserError(f"no result with {name}={wanted}; there are {name} = {there}")
        frame = frame[mask]
    return frame


def _same(value: Any, text: str) -> bool:
    """Whether a value is what a text says: by name, or as a number."""
    if str(value).lower() == text.lower():
        return True
    with contextlib.suppress(TypeError, ValueError):
        return float(value) == float(text)
    return False


def restricted(found: Collection, conditions: Mapping[str, Sequence[str]]) -> Collection:
    """What was found, of runs that fulfil the conditions."""
    if not conditions:
        return found
    specs = [*(result.spec for result in found.results), *found.missing, *found.failed]
    kept = set(matching(field_frame(specs, conditions), conditions)["id"])
    return Collection(
        [result for result in found.results if result.spec.id in kept],
        [spec for spec in found.missing if spec.id in kept],
        {spec: reason for spec, reason in found.failed.items() if spec.id in kept},
        found.damaged,
    )
