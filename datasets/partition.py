"""How source domains are divided among clients; registered like methods.

A client's data is a `Shard`: numbers of domains and rows, never copies of images. Every partition
covers each source sample exactly once and never sees the target domain. Validation rows are divided
by the same rule, and where a rule draws shares by the same shares, as training rows.

Here: the frame, and the three rules without shares. More in `partitions_mixed.py` (several domains
on a client) and `partitions_dirichlet.py` (random shares). To see what a rule does with a dataset:
`python -m datasets.partition PACS --partition dirichlet_label:alpha=0.1 --target photo`.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from benchmark.errors import UserError
from benchmark.hparams import format_expression, hp, parse_expression, resolve
from benchmark.registry import Registry
from benchmark.seeds import seed_for


@dataclasses.dataclass(frozen=True)
class Shard:
    """Samples by reference: sample i is row `rows[i]` of the dataset's domain `domains[i]`."""

    domains: np.ndarray
    rows: np.ndarray

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def of(cls, domain: int, rows: np.ndarray) -> Shard:
        return cls(np.full(len(rows), domain, dtype=np.int16), np.asarray(rows, dtype=np.int64))

    def take(self, positions: np.ndarray) -> Shard:
        return Shard(self.domains[positions], self.rows[positions])

    @classmethod
    def join(cls, shards: Sequence[Shard]) -> Shard:
        return cls(
            np.concatenate([shard.domains for shard in shards]),
            np.concatenate([shard.rows for shard in shards]),
        )


@dataclasses.dataclass(frozen=True)
class ClientShards:
    """What one client holds."""

    name: str
    train: Shard
    val: Shard


@dataclasses.dataclass(frozen=True)
class Source:
    """One source domain, already split: the raw material of a partition."""

    domain: int
    name: str
    labels: np.ndarray
    train: np.ndarray
    val: np.ndarray


class Partition:
    """A rule that divides the sources among clients."""

    def divide(self, sources: Sequence[Source], rng: np.random.Generator) -> list[ClientShards]:
        raise NotImplementedError

    def client_count(self, source_count: int) -> int:
        """How many clients there will be, known before any data is read."""
        raise NotImplementedError


partitions: Registry[type[Partition]] = Registry("partition", "datasets")


def register(name: str) -> Callable[[type], type]:
    """Class decorator: a frozen dataclass whose fields are the partition's settings."""
    return lambda cls: partitions.register(name)(dataclasses.dataclass(frozen=True)(cls))


def make_partition(expression: str) -> Partition:
    """`single_domain_k:clients=10` as an object."""
    name, settings = parse_expression(expression)
    cls = partitions[name]
    return cls(**resolve(cls, settings, f"partition {name}"))


def canonical_partition(expression: str) -> str:
    """The one spelling of a partition, every setting written out."""
    partition = make_partition(expression)
    return format_expression(parse_expression(expression)[0], dataclasses.asdict(partition))


def divide(expression: str, sources: Sequence[Source], seed: int) -> list[ClientShards]:
    """The clients of one run, by derived randomness only; spelling and order of the settings do
    not matter."""
    expression = canonical_partition(expression)
    rng = np.random.default_rng(seed_for(seed, "partition", expression))
    clients = make_partition(expression).divide(sources, rng)
    for client in clients:
        if len(client.train) == 0:
            raise UserError(
                f"partition {expression} leaves client {client.name} without training samples; "
                "choose fewer clients"
            )
    return clients


def fingerprint(clients: Sequence[ClientShards]) -> str:
    """A hash of who holds what; it goes into the result."""
    digest = hashlib.sha256()
    for client in clients:
        for shard in (client.train, client.val):
            digest.update(len(shard).to_bytes(8, "little"))
            digest.update(np.ascontiguousarray(shard.domains, dtype="<i2").tobytes())
            digest.update(np.ascontiguousarray(shard.rows, dtype="<i8").tobytes())
    return digest.hexdigest()[:16]


def chunks(rows: np.ndarray, count: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Shuffled rows in `count` equal parts, the last taking the remainder."""
    shuffled = rng.permutation(rows)
    size = len(rows) // count
    cuts = [size * k for k in range(1, count)]
    return np.split(shuffled, cuts)


@register("single_domain")
class SingleDomain(Partition):
    """One client per source domain."""

    def divide(self, sources: Sequence[Source], rng: np.random.Generator) -> list[ClientShards]:
        return [
            ClientShards(s.name, Shard.of(s.domain, s.train), Shard.of(s.domain, s.val))
            for s in sources
        ]

    def client_count(self, source_count: int) -> int:
        return source_count


@register("single_domain_k")
class SingleDomainK(Partition):
    """Each source domain cut into equal parts, one client each.

    StableFDG's single-domain setting: 30 clients in all, so 10 per domain with three sources and 6
    with DomainNet's five. FedFD-A's cross-silo setting with iid labels is the same rule.
    """

    clients: int = hp(10, doc="clients per domain", low=1)

    def divide(self, sources: Sequence[Source], rng: np.random.Generator) -> list[ClientShards]:
        return [
            ClientShards(f"{s.name}/{k}", Shard.of(s.domain, train), Shard.of(s.domain, val))
            for s in sources
            for k, (train, val) in enumerate(
                zip(
                    chunks(s.train, self.clients, rng),
                    chunks(s.val, self.clients, rng),
                    strict=True,
                )
            )
        ]

    def client_count(self, source_count: int) -> int:
        return source_count * self.clients


@register("pooled")
class Pooled(Partition):
    """All sources in one place: the centralised reference."""

    def divide(self, sources: Sequence[Source], rng: np.random.Generator) -> list[ClientShards]:
        return [
            ClientShards(
                "pooled",
                Shard.join([Shard.of(s.domain, s.train) for s in sources]),
                Shard.join([Shard.of(s.domain, s.val) for s in sources]),
            )
        ]

    def client_count(self, source_count: int) -> int:
        return 1


if __name__ == "__main__":
    # This module runs twice then, as `__main__` and under its own name; only the one of that name
    # is the registry that everything else registers into, so the work is done there.
    from datasets.partition_report import main

    main()
