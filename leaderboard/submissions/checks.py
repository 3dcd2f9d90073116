"""Checks of untrusted JSON: a value has its type and range, or it is refused by the name of its
field. Nothing is brought to type, nothing is guessed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any

from benchmark.errors import UserError

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_ .,:=+()-]*")
SHOWN = 40
"""Characters of a refused value that the message repeats."""


class Refused(UserError):
    """An entry that is not taken; the message names the field."""


def refuse(where: str, reason: str) -> Refused:
    return Refused(f"{where or 'the entry'}: {reason}")


def parse(text: str) -> Any:
    """Strict JSON: no NaN, no Infinity, no key twice, no bottomless nesting."""
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_duplicates)
    except RecursionError as error:
        raise refuse("", "nested too deeply") from error
    except ValueError as error:
        raise refuse("", f"not JSON: {error}") from error


def _no_constant(value: str) -> Any:
    raise refuse("", f"{value} is not a number that JSON knows")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise refuse("", f"the key {_short(twice)} stands twice in one object")
    return found


def text(value: Any, where: str, limit: int = 200) -> str:
    """A line of printable text: no control signs, nothing that turns the direction of writing."""
    if not isinstance(value, str):
        raise refuse(where, f"expected text, found {_short(value)}")
    if len(value) > limit:
        raise refuse(where, f"{len(value)} characters, at most {limit}")
    if not value.isprintable():
        raise refuse(where, "has characters that cannot be printed")
    return value


def name(value: Any, where: str, limit: int = 120) -> str:
    """A name as the project makes them; never a path."""
    text(value, where, limit)
    if not NAME.fullmatch(value) or ".." in value:
        raise refuse(where, f"{_short(value)} is not a name (letters, digits and _ .,:=+()-)")
    return value


def whole(value: Any, where: str, low: int = 0, high: int = 2**53) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise refuse(where, f"expected a whole number, found {_short(value)}")
    return _within(value, where, low, high)


def number(value: Any, where: str, low: float = 0, high: float = 1e15) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise refuse(where, f"expected a number, found {_short(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise refuse(where, f"{value} is not a finite number")
    return _within(value, where, low, high)


def _within(value: Any, where: str, low: float, high: float) -> Any:
    if not low <= value <= high:
        raise refuse(where, f"{_short(value)} is out of range, from {low:g} to {high:g}")
    return value


def items(value: Any, where: str, limit: int) -> list:
    if not isinstance(value, list):
        raise refuse(where, f"expected a list, found {_short(value)}")
    if len(value) > limit:
        raise refuse(where, f"{len(value)} items, at most {limit}")
    return value


def fields(value: Any, where: str, names: Iterable[str]) -> dict[str, Any]:
    """An object with exactly these fields."""
    value = table(value, where, 1000)
    names = set(names)
    for missing in sorted(names - value.keys()):
        raise refuse(f"{where}.{missing}".lstrip("."), "missing")
    for odd in sorted(value.keys() - names):
        raise refuse(where, f"unknown field {_short(odd)}")
    return value


def table(value: Any, where: str, limit: int) -> dict[str, Any]:
    """An object with any keys."""
    if not isinstance(value, dict):
        raise refuse(where, f"expected an object, found {_short(value)}")
    if len(value) > limit:
        raise refuse(where, f"{len(value)} fields, at most {limit}")
    return value


def _short(value: Any) -> str:
    """A refused value in a message: its beginning, on one line, whatever it is."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    try:
        shown = ascii(value)
    except ValueError:  # a whole number of more digits than Python writes
        return "a number of thousands of digits"
    return shown if len(shown) <= SHOWN else shown[:SHOWN] + "…"
