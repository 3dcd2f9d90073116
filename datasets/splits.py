"""How a domain is cut into a training and a validation part; registered like methods."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from benchmark.errors import UserError
from benchmark.hparams import format_expression, hp, parse_expression, resolve
from benchmark.registry import Registry
from benchmark.seeds import seed_for
from datasets.base import DomainData

Rows = np.ndarray


class Split:
    """A rule that cuts the samples of one domain in two."""

    needs_parts: ClassVar[bool] = False
    """Whether it reads `DomainData.parts`; otherwise the number of samples is all it uses."""

    def cut(self, data: DomainData, index: int, seed: int) -> tuple[Rows, Rows]:
        """Rows of the training and of the validation part of the dataset's domain `index`."""
        raise NotImplementedError


splits: Registry[type[Split]] = Registry("split", "datasets")


def register(name: str) -> Callable[[type], type]:
    """Class decorator: a frozen dataclass whose fields are the split's settings."""
    return lambda cls: splits.register(name)(dataclasses.dataclass(frozen=True)(cls))


def make_split(expression: str) -> Split:
    """`random:fraction=0.3` as an object."""
    name, settings = parse_expression(expression)
    cls = splits[name]
    return cls(**resolve(cls, settings, f"split {name}"))


def canonical_split(expression: str) -> str:
    """The one spelling of a split, every setting written out."""
    split = make_split(expression)
    return format_expression(parse_expression(expression)[0], dataclasses.asdict(split))


def seed_hash(*args: int) -> int:
    """DomainBed's hash of its arguments: md5 of the printed tuple, modulo 2**31."""
    return int(hashlib.md5(str(args).encode()).hexdigest(), 16) % 2**31


@register("domainbed")
class DomainBedSplit(Split):
    """DomainBed's seeded cut: shuffle by `seed_hash(seed, domain)`, first `fraction` validates.

    Not stratified by class. The test domain is cut the same way, by its own number.
    """

    fraction: float = hp(0.2, doc="share that validates", low=0, high=1)

    def cut(self, data: DomainData, index: int, seed: int) -> tuple[Rows, Rows]:
        # DomainBed shuffles a list; an array takes the same swaps and is several times faster.
        rows = np.arange(len(data), dtype=np.int64)
        np.random.RandomState(seed_hash(seed, index)).shuffle(rows)
        held = int(len(data) * self.fraction)
        return rows[held:], rows[:held]


@register("random")
class RandomSplit(Split):
    """A plain random cut from this suite's own seed (gPerXAN: 0.1, Camelyon17 0.2; FedADG: 0.3)."""

    fraction: float = hp(0.1, doc="share that validates", low=0, high=1)

    def cut(self, data: DomainData, index: int, seed: int) -> tuple[Rows, Rows]:
        rows = np.random.default_rng(seed_for(seed, "split", index)).permutation(len(data))
        held = int(len(data) * self.fraction)
        return rows[held:], rows[:held]


@register("official")
class OfficialSplit(Split):
    """The lists published with the dataset, as Dassl and so StableFDG read them; no randomness.

    Where the authors also published a test list, the sources' test samples are in neither part.
    """

    needs_parts: ClassVar[bool] = True

    def cut(self, data: DomainData, index: int, seed: int) -> tuple[Rows, Rows]:
        missing = [part for part in ("train", "val") if part not in data.parts]
        if missing:
            raise UserError(
                f"split official: domain {index} of this dataset comes without a published "
                f"{' and '.join(missing)} list; choose the split domainbed or random"
            )
        train, val = (np.asarray(data.parts[part], dtype=np.int64) for part in ("train", "val"))
        return train, val
