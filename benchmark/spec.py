"""A RunSpec is everything that changes the numbers of a run, and nothing else.

No paths, devices or worker counts: the same spec gives the same bits anywhere, so the hash of its
canonical JSON is the run's name, and a changed setting never meets a stale result.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from benchmark.errors import UserError
from benchmark.hparams import Choice, hp, resolve


@dataclasses.dataclass(frozen=True)
class Training:
    """The budget and the optimiser: how long, how many, how fast."""

    rounds: int = hp(40, doc="communication rounds", low=1)
    local_steps: int | None = hp(None, doc="optimiser steps of a client per round", low=1)
    local_epochs: int | None = hp(None, doc="or: passes over a client's data per round", low=1)
    clients_per_round: int | None = hp(None, doc="clients sampled each round; none = all", low=1)
    batch_size: int = hp(32, doc="images per optimiser step", low=1)
    optimizer: str = hp("sgd", Choice("sgd", "adam", "adamw"), "the clients' optimiser")
    lr: float = hp(0.01, doc="learning rate in round 0", low=0)
    momentum: float = hp(0.0, doc="of SGD", low=0)
    weight_decay: float = hp(0.0, doc="of the optimiser", low=0)
    clip: float | None = hp(None, doc="largest gradient norm; none = no clipping", low=0)
    schedule: str = hp("constant", Choice("constant", "step", "cosine"), "of lr, over rounds")
    step_rounds: int = hp(20, doc="rounds between two drops of the step schedule", low=1)
    step_factor: float = hp(0.1, doc="what a drop of the step schedule multiplies lr with", low=0)
    keep_optimizer: bool = hp(False, doc="carry a client's optimiser state from round to round")
    weights: str = hp("samples", Choice("samples", "uniform"), "of clients in the average")
    validate_every: int | None = hp(
        None, doc="validate every n local steps and upload the best local state", low=1
    )
    evaluate_every: int = hp(1, doc="rounds between two evaluations of the global model", low=1)
    precision: str = hp(
        "float32",
        Choice("float32", "bf16"),
        "of training; bf16 is autocast",
    )
    compile: str = hp(
        "off",
        Choice("off", "default", "reduce-overhead", "max-autotune"),
        "torch.compile's mode for whole forward passes; reduce-overhead uses CUDA graphs",
    )

    def __post_init__(self) -> None:
        if (self.local_steps is None) == (self.local_epochs is None):
            raise UserError("set exactly one of training.local_steps and training.local_epochs")

    def lr_at(self, round: int) -> float:
        """The learning rate of one round; constant inside it."""
        if self.schedule == "step":
            return self.lr * self.step_factor ** (round // self.step_rounds)
        if self.schedule == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * round / self.rounds))
        return self.lr

    def evaluates(self, round: int) -> bool:
        """Whether the global model is judged after this round; the last one always is."""
        return (round + 1) % self.evaluate_every == 0 or round + 1 == self.rounds

    def changed(self, given: Mapping[str, Any]) -> Training:
        """A copy with some fields set, e.g. from `--set training.rounds=5`."""
        return Training(**resolve(Training, {**dataclasses.asdict(self), **given}, "training"))


@dataclasses.dataclass(frozen=True)
class RunSpec:
    """One run: a method on a dataset with one domain held out, under one setting, from one seed."""

    dataset: str
    target: str
    method: str
    hparams: Mapping[str, Any]
    backbone: str
    pretrained: str
    transform: str
    image_size: int
    split: str
    partition: str
    test_part: str
    training: Training
    seed: int

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RunSpec:
        """The spec a result file holds; an unknown or missing field is an error, never a guess."""
        names = {field.name for field in dataclasses.fields(cls)}
        if set(data) != names:
            odd = ", ".join(sorted(names.symmetric_difference(data)))
            raise ValueError(f"not a run spec of this version (fields: {odd})")
        training = data["training"]
        known = {field.name for field in dataclasses.fields(Training)}
        if set(training) != known:
            odd = ", ".join(sorted(known.symmetric_difference(training)))
            raise ValueError(f"not a training setting of this version (fields: {odd})")
        return cls(**{**data, "training": Training(**training)})

    @cached_property
    def id(self) -> str:
        """Content hash of the canonical JSON: the run's name everywhere."""
        return _digest(self.to_json())

    @cached_property
    def config(self) -> str:
        """Hash of the spec without seed and target: repeats of one configuration share it."""
        return _digest(self._without("seed", "target"))

    @cached_property
    def setting(self) -> str:
        """Hash of what a fair comparison holds fixed: runs of one table share it."""
        return _digest(self._without("seed", "target", "method", "hparams"))

    @cached_property
    def pooled_setting(self) -> str:
        """The setting without partition and participation, which mean nothing on pooled data:
        a centralised run is the same reference for every way of dividing the sources."""
        fixed = self._without("seed", "target", "method", "hparams", "partition")
        fixed["training"] = {**fixed["training"], "clients_per_round": None}
        return _digest(fixed)

    def _without(self, *names: str) -> dict[str, Any]:
        return {key: value for key, value in self.to_json().items() if key not in names}

    def __str__(self) -> str:
        return f"{self.method} on {self.dataset}/{self.target} seed {self.seed} [{self.id}]"

    def __hash__(self) -> int:
        return hash(self.id)


def canonical_json(value: Any) -> str:
    """The one way to write a value as text: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]
