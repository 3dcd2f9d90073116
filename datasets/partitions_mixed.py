"""Partitions that put several domains on one client."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmark.errors import UserError
from benchmark.hparams import hp
from datasets.partition import ClientShards, Partition, Shard, Source, chunks, register
from datasets.partition_counts import deal, validation_counts, whole_counts


def divide_by_shares(
    sources: Sequence[Source], shares: np.ndarray, rng: np.random.Generator
) -> list[ClientShards]:
    """Clients that hold the given shares (sources, clients) of every source."""
    train = whole_counts(shares, np.array([len(s.train) for s in sources]))
    val = validation_counts(shares, np.array([len(s.val) for s in sources]), train)
    pairs = zip(
        _shards(sources, [s.train for s in sources], train, rng),
        _shards(sources, [s.val for s in sources], val, rng),
        strict=True,
    )
    return [ClientShards(f"client/{k}", *pair) for k, pair in enumerate(pairs)]


def _shards(
    sources: Sequence[Source],
    rows: Sequence[np.ndarray],
    counts: np.ndarray,
    rng: np.random.Generator,
) -> list[Shard]:
    """One shard per client, with `counts[source, client]` of the rows of every source."""
    hands = [deal(rows[k], counts[k : k + 1], rng) for k in range(len(sources))]
    return [
        Shard.join(
            [Shard.of(s.domain, hand[client]) for s, hand in zip(sources, hands, strict=True)]
        )
        for client in range(counts.shape[1])
    ]


@register("domain_pairs")
class DomainPairs(Partition):
    """As many clients as sources, two domains on each, every domain on two clients.

    FedFD-A, suppl. D.2: {P, A}, {A, C}, {C, P} for target S. Whether the two clients share a
    domain's images or divide them is not said; here each gets a half.
    """

    def divide(self, sources: Sequence[Source], rng: np.random.Generator) -> list[ClientShards]:
        if len(sources) < 2:
            raise UserError("partition domain_pairs needs at least two source domains")
        halves = [(chunks(s.train, 2, rng), chunks(s.val, 2, rng)) for s in sources]
        clients = []
        for k, own in enumerate(sources):
            following = (k + 1) % len(sources)
            other = sources[following]
            parts = [
                Shard.join(
                    [
                        Shard.of(own.domain, halves[k][part][0]),
                        Shard.of(other.domain, halves[following][part][1]),
                    ]
                )
                for part in (0, 1)
            ]
            clients.append(ClientShards(f"{own.name}+{other.name}", *parts))
        return clients

    def client_count(self, source_count: int) -> int:
        return source_count


@register("iid")
class Iid(Partition):
    """All sources shuffled together and cut into equal parts: no client differs from another.

    Not FedFD-A's "iid" cross-silo setting, whose clients hold one domain: `single_domain_k`.
    """

    clients: int = hp(30, doc="clients in all", low=1)

    def divide(self, sources: Sequence[Source], rng: np.random.Generator) -> list[ClientShards]:
        pools = [
            Shard.join([Shard.of(s.domain, s.train) for s in sources]),
            Shard.join([Shard.of(s.domain, s.val) for s in sources]),
        ]
        hands = [np.array_split(rng.permutation(len(pool)), self.clients) for pool in pools]
        return [
            ClientShards(
                f"client/{k}",
                *(pool.take(hand[k]) for pool, hand in zip(pools, hands, strict=True)),
            )
            for k in range(self.clients)
        ]

    def client_count(self, source_count: int) -> int:
        return self.clients


@register("domain_mix")
class DomainMix(Partition):
    """Between one domain per client and the same mixture on all of them (Bai et al., ICLR 2024).

    "Benchmarking Algorithms for Federated Domain Generalization", `src/splitter.py` of
    inouye-lab/FedDG_Benchmark, whose λ is `mix` here. Client k's share of domain d is

        (1 - mix) · (1 / clients of d, if d is k's main domain, else 0) + mix / clients.

    Every domain first gets one main client, then the domain with the most samples per main client
    gets the next, until all clients have one. With fewer clients than domains, whole domains go,
    the largest first, to the client that holds least so far. Their code hands the samples lost by
    rounding down to the first clients; ours cuts at the rounded cumulative share: the counts of a
    client differ by single samples.
    """

    clients: int = hp(100, doc="clients in all", low=1)
    mix: float = hp(0.1, doc="0: one domain per client; 1: all clients alike", low=0, high=1)

    def divide(self, sources: Sequence[Source], rng: np.random.Generator) -> list[ClientShards]:
        sizes = np.array([len(s.train) for s in sources])
        main = self._main_clients(sizes)
        own = main / main.sum(1, keepdims=True)
        return divide_by_shares(sources, (1 - self.mix) * own + self.mix / self.clients, rng)

    def _main_clients(self, sizes: np.ndarray) -> np.ndarray:
        """(domains, clients): whether a domain is a main domain of a client."""
        if len(sizes) > self.clients:
            held = np.zeros((len(sizes), self.clients))
            for domain in np.argsort(-sizes, kind="stable"):
                held[domain, held.sum(0).argmin()] = sizes[domain]
            return held > 0
        counts = np.ones(len(sizes), dtype=np.int64)
        while counts.sum() < self.clients:
            counts[np.argmax(sizes / counts)] += 1
        return np.repeat(np.eye(len(sizes)), counts, axis=1).astype(bool)

    def client_count(self, source_count: int) -> int:
        return self.clients
