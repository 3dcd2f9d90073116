"""Typed hyper-parameters: a default, a search space and one line of doc on every field."""

from __future__ import annotations

import dataclasses
import math
import random
import types
import typing
from collections.abc import Mapping
from typing import Any

from benchmark.errors import UserError, unknown
from benchmark.seeds import seed_for


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of a few values."""

    values: tuple

    def __init__(self, *values):
        object.__setattr__(self, "values", values)

    def sample(self, rng: random.Random) -> Any:
        return rng.choice(self.values)

    def __str__(self) -> str:
        return "{" + ", ".join(map(str, self.values)) + "}"


class Stated(Choice):
    """Values that a user may state, the first being the default; a search keeps to that one.

    Readings of a paper, ablations and variants that need files are not for tuning.
    """

    def sample(self, rng: random.Random) -> Any:
        return self.values[0]


@dataclasses.dataclass(frozen=True)
class Uniform:
    """A real number between two others."""

    low: float
    high: float

    def sample(self, rng: random.Random) -> float:
        return rng.uniform(self.low, self.high)

    def __str__(self) -> str:
        return f"[{self.low:g}, {self.high:g}]"


@dataclasses.dataclass(frozen=True)
class LogUniform:
    """A positive number, uniform in its logarithm."""

    low: float
    high: float

    def sample(self, rng: random.Random) -> float:
        return math.exp(rng.uniform(math.log(self.low), math.log(self.high)))

    def __str__(self) -> str:
        return f"[{self.low:g}, {self.high:g}] log"


def hp(default: Any, space: Any = None, doc: str = "", *, low=None, high=None) -> Any:
    """A dataclass field that is a hyper-parameter.

    `space` is what `--trials` draws from and, when it is a `Choice` of strings, also the only
    values allowed; `low` and `high` bound any value.
    """
    return dataclasses.field(
        default=default, metadata={"space": space, "doc": doc, "low": low, "high": high}
    )


def fields(cls: type) -> dict[str, dataclasses.Field]:
    return {field.name: field for field in dataclasses.fields(cls) if field.init}


def defaults(cls: type) -> dict[str, Any]:
    return {name: field.default for name, field in fields(cls).items()}


def resolve(cls: type, given: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Every hyper-parameter of `cls`: the given ones checked and brought to type, else defaults."""
    declared = fields(cls)
    for name in given:
        if name not in declared:
            listing = ", ".join(f"{key}={value}" for key, value in defaults(cls).items())
            if not declared:
                raise UserError(f"{owner} has no hyper-parameters, so {name!r} cannot be set")
            error = unknown(f"hyper-parameter of {owner}", name, declared)
            raise UserError(f"{error} (defaults: {listing})")
    hints = typing.get_type_hints(cls)
    return {
        name: _checked(field, hints[name], given[name], f"{owner}.{name}")
        if name in given
        else field.default
        for name, field in declared.items()
    }


def trial(cls: type, index: int, owner: str) -> dict[str, Any]:
    """The `index`-th random configuration; 0 is the defaults. Each field has a stream of its own,
    so adding a field changes no other field's draws."""
    if index == 0:
        return {}
    return {
        name: field.metadata["space"].sample(random.Random(seed_for(index, "trial", owner, name)))
        for name, field in fields(cls).items()
        if field.metadata.get("space") is not None
    }


def _checked(field: dataclasses.Field, hint: Any, value: Any, where: str) -> Any:
    value = _coerce(hint, value, where)
    space, low, high = (field.metadata.get(key) for key in ("space", "low", "high"))
    if isinstance(space, Choice) and isinstance(value, str) and value not in space.values:
        raise UserError(f"{where}={value} is not one of {space}")
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    if numeric and low is not None and value < low:
        raise UserError(f"{where}={value} is too small: at least {low}")
    if numeric and high is not None and value > high:
        raise UserError(f"{where}={value} is too large: at most {high}")
    return value


def _coerce(hint: Any, value: Any, where: str) -> Any:
    """`value`, often text from the command line, as the type the field declares."""
    options = typing.get_args(hint) if _is_union(hint) else (hint,)
    if value is None or (isinstance(value, str) and value.lower() == "none"):
        if type(None) in options:
            return None
        raise UserError(f"{where} cannot be none")
    for option in options:
        try:
            return _as(option, value)
        except (ValueError, TypeError):
            continue
    kinds = " or ".join(getattr(option, "__name__", str(option)) for option in options)
    raise UserError(f"{where}={value} is not of type {kinds.replace('NoneType', 'none')}")


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _as(kind: Any, value: Any) -> Any:
    if kind is bool:
        words = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
        return words[str(value).lower()] if str(value).lower() in words else _refuse()
    if kind is int:
        number = float(value)
        return (
            int(value)
            if isinstance(value, str)
            else int(number)
            if number == int(number)
            else _refuse()
        )
    if kind is float:
        number = float(value)
        return number if math.isfinite(number) else _refuse()
    if kind is str:
        return value if isinstance(value, str) else _refuse()
    if typing.get_origin(kind) is tuple:
        items = value.split("/") if isinstance(value, str) else value
        return tuple(_as(typing.get_args(kind)[0], item) for item in items)
    return _refuse()


def _refuse() -> Any:
    raise ValueError


def parse_expression(text: str) -> tuple[str, dict[str, str]]:
    """`name:key=value,key=value` as a name and its settings."""
    name, _, rest = text.partition(":")
    settings = {}
    for item in filter(None, rest.split(",")):
        key, sign, value = item.partition("=")
        if not sign:
            raise UserError(f"{text!r}: write settings as name:key=value,key=value")
        settings[key.strip()] = value.strip()
    return name.strip(), settings


def format_expression(name: str, settings: Mapping[str, Any]) -> str:
    """The one spelling of a name with settings, inverse of `parse_expression`."""
    listing = ",".join(f"{key}={value}" for key, value in sorted(settings.items()))
    return f"{name}:{listing}" if listing else name
