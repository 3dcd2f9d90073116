"""What every field of a run in an entry must be, and how records are packed.

Accuracies travel as whole numbers of samples that were classified rightly: `right / count` gives
the stored accuracy back to the bit, and an accuracy that no test could have produced cannot be
written down.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from typing import Any

from benchmark.errors import UserError
from benchmark.hparams import resolve
from benchmark.results import COLUMNS, Result
from benchmark.spec import RunSpec, Training
from leaderboard.submissions.checks import (
    fields,
    items,
    name,
    number,
    refuse,
    table,
    text,
    whole,
)

RECORDS = 200_000
ROUNDS = 100_000
NAMES = ("predictor", "part", "client", "domain")
NUMBERS = ("round", "right", "loss", "count")
SPEC_NAMES = (
    *("dataset", "target", "method", "backbone", "pretrained"),
    *("transform", "split", "partition", "test_part"),
)
RUN = ("id", "spec", "about", "records", "train_loss", "partition", "costs", "environment")
COSTS = {
    "parameters": 1e13,
    "steps": 1e12,
    "train_seconds": 1e10,
    "ms_per_step": 1e10,
    "evaluation_seconds": 1e10,
    "ms_per_evaluated_image": 1e10,
    "peak_memory_mb": 1e9,
}


def read_spec(value: Any, where: str) -> RunSpec:
    """A run spec whose every field has its type; its id is recomputed by whoever asks for it."""
    known = [*SPEC_NAMES, "hparams", "image_size", "training", "seed"]
    value = fields(value, where, known)
    for field in SPEC_NAMES:
        name(value[field], f"{where}.{field}")
    if value["dataset"].startswith("folder:"):
        raise refuse(f"{where}.dataset", "a folder of one's own, which nobody else can check")
    whole(value["image_size"], f"{where}.image_size", 1, 4096)
    whole(value["seed"], f"{where}.seed", 0, 2**53)
    for key, setting in table(value["hparams"], f"{where}.hparams", 100).items():
        name(key, f"{where}.hparams")
        _setting(setting, f"{where}.hparams.{key}")
    _training(value["training"], f"{where}.training")
    return RunSpec.from_json(value)


def _setting(value: Any, where: str, depth: int = 0) -> None:
    """A hyper-parameter: a word, a number, yes or no, nothing, or a short list of such."""
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        name(value, where)
    elif isinstance(value, list) and depth == 0:
        for k, item in enumerate(items(value, where, 100)):
            _setting(item, f"{where}[{k}]", 1)
    else:
        number(value, where, -1e15, 1e15)


def _training(value: Any, where: str) -> None:
    hints = typing.get_type_hints(Training)
    value = fields(value, where, hints)
    for key, hint in hints.items():
        _typed(value[key], hint, f"{where}.{key}")
    whole(value["rounds"], f"{where}.rounds", 1, ROUNDS)
    try:
        resolve(Training, value, where)
        Training(**value)
    except UserError as error:
        raise refuse(where, str(error)) from error


def _typed(value: Any, hint: Any, where: str) -> None:
    """A value of a type such as `int | None`, without bringing it to type."""
    kinds = typing.get_args(hint) or (hint,)
    if value is None and type(None) in kinds:
        return
    if bool in kinds:
        if not isinstance(value, bool):
            raise refuse(where, "expected true or false")
    elif str in kinds:
        name(value, where)
    elif int in kinds:
        whole(value, where)
    else:
        number(value, where)


def read_about(value: Any, where: str) -> dict[str, Any]:
    value = fields(value, where, ("label", "category", "predictor", "domains"))
    for key in ("label", "category"):
        text(value[key], f"{where}.{key}", 80)
    name(value["predictor"], f"{where}.predictor")
    domains = items(value["domains"], f"{where}.domains", 100)
    for k, domain in enumerate(domains):
        name(domain, f"{where}.domains[{k}]")
    if len(set(domains)) != len(domains):
        raise refuse(f"{where}.domains", "a domain is named twice")
    return value


def read_costs(value: Any, where: str) -> dict[str, Any]:
    value = fields(value, where, (*COSTS, "bytes_per_round"))
    for key, high in COSTS.items():
        number(value[key], f"{where}.{key}", 0, high)
    for kind, size in table(value["bytes_per_round"], f"{where}.bytes_per_round", 100).items():
        direction, slash, what = kind.partition("/")
        if direction not in ("up", "down") or not slash:
            raise refuse(f"{where}.bytes_per_round", "keys are up/KIND and down/KIND")
        name(what, f"{where}.bytes_per_round")
        number(size, f"{where}.bytes_per_round.{kind}", 0, 1e15)
    return value


def read_environment(value: Any, where: str) -> dict[str, Any]:
    """What is said about a machine; anything short is taken, it is only shown."""
    for key, fact in table(value, where, 30).items():
        name(key, where)
        if isinstance(fact, str):
            text(fact, f"{where}.{key}")
        elif fact is not None and not isinstance(fact, bool):
            number(fact, f"{where}.{key}", -1e15, 1e15)
    return value


def pack_records(result: Result) -> dict[str, Any]:
    """Names as a list of them and their places in it, accuracies as counts."""
    records = result.records
    packed: dict[str, Any] = {}
    for column in NAMES:
        known = list(dict.fromkeys(records[column]))
        place = {value: k for k, value in enumerate(known)}
        packed[column] = {"names": known, "codes": [place[value] for value in records[column]]}
    packed |= {column: list(records[column]) for column in ("round", "loss", "count")}
    packed["right"] = [
        _right(*pair, result) for pair in zip(records["accuracy"], records["count"], strict=True)
    ]
    return packed


def _right(accuracy: float, count: int, result: Result) -> int:
    right = round(accuracy * count)
    if count < 1 or right / count != accuracy:
        raise UserError(
            f"run {result.spec.id} has an accuracy of {accuracy} on {count} samples, which is no "
            f"fraction of them; run it again"
        )
    return right


def read_records(value: Any, where: str) -> dict[str, list]:
    """The columns of a result, from their packed form."""
    value = fields(value, where, (*NAMES, *NUMBERS))
    columns: dict[str, list] = {
        column: _names(value[column], f"{where}.{column}") for column in NAMES
    }
    limits = {"round": ROUNDS, "right": 10**9, "count": 10**9}
    for column, high in limits.items():
        columns[column] = items(value[column], f"{where}.{column}", RECORDS)
        for k, item in enumerate(columns[column]):
            whole(item, f"{where}.{column}[{k}]", int(column == "count"), high)
    columns["loss"] = items(value["loss"], f"{where}.loss", RECORDS)
    for k, item in enumerate(columns["loss"]):
        number(item, f"{where}.loss[{k}]", 0, 1e12)
    same_length(columns, where)
    columns["accuracy"] = [
        _fraction(right, count, f"{where}.right[{k}]")
        for k, (right, count) in enumerate(zip(columns["right"], columns["count"], strict=True))
    ]
    return {column: columns[column] for column in COLUMNS}


def _fraction(right: int, count: int, where: str) -> float:
    if right > count:
        raise refuse(where, f"{right} right of {count} samples")
    return right / count


def _names(value: Any, where: str) -> list[str]:
    value = fields(value, where, ("names", "codes"))
    names = items(value["names"], f"{where}.names", 10_000)
    for k, item in enumerate(names):
        if item != "":
            name(item, f"{where}.names[{k}]")
    codes = items(value["codes"], f"{where}.codes", RECORDS)
    for k, code in enumerate(codes):
        whole(code, f"{where}.codes[{k}]", 0, len(names) - 1)
    return [names[code] for code in codes]


def same_length(columns: Mapping[str, Sequence], where: str) -> None:
    lengths = {column: len(values) for column, values in columns.items()}
    if len(set(lengths.values())) != 1:
        raise refuse(where, "its columns differ in length")
