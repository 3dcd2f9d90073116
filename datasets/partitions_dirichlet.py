"""Partitions by random shares: Dirichlet over domains, and over classes within a domain.

A draw that leaves a client with too few samples is thrown away whole and made again, as the
papers' codes do, but not for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmark.errors import UserError
from benchmark.hparams import hp
from datasets.partition import ClientShards, Partition, Shard, Source, register
from datasets.partition_counts import deal, validation_counts, whole_counts
from datasets.partitions_mixed import divide_by_shares

BATCH = 1000  # draws made at once: with StableFDG's bound, one in some thousands is kept
DOMAIN_DRAWS = 200 * BATCH
LABEL_DRAWS = 5000


@register("dirichlet_domain")
class DirichletDomain(Partition):
    """StableFDG's multi-domain setting: random shares of every domain for every client.

    Domain after domain, shares are drawn from Dirichlet(alpha); clients that already hold their
    fair part of all samples get none; the rest is scaled up to one. All is drawn again until every
    client has `min_samples`. The paper only says Dirichlet(0.5); the rest is from its code
    (`dassl/data/data_manager.py`), which divides no validation samples: here they follow the
    training samples' shares.
    """

    clients: int = hp(30, doc="clients in all", low=1)
    alpha: float = hp(0.5, doc="smaller: domains more concentrated", low=1e-3)
    min_samples: int = hp(70, doc="training samples every client has at least", low=1)

    def divide(self, sources: Sequence[Source], rng: np.random.Generator) -> list[ClientShards]:
        sizes = np.array([len(s.train) for s in sources])
        if sizes.sum() < self.clients * self.min_samples:
            raise too_few("dirichlet_domain", "the sources have", sizes.sum(), self)
        return divide_by_shares(sources, self._draw(sizes, rng), rng)

    def _draw(self, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Shares (domains, clients): the first draw that gives every client enough."""
        fair = sizes.sum() / self.clients
        concentration = np.full(self.clients, self.alpha)
        for _ in range(DOMAIN_DRAWS // BATCH):
            shares = rng.dirichlet(concentration, (BATCH, len(sizes)))
            held = np.zeros((BATCH, self.clients), dtype=np.int64)
            for domain, size in enumerate(sizes):
                shares[:, domain] *= held < fair
                held += whole_counts(shares[:, domain], size)
            possible = (shares.sum(axis=2) > 0).all(axis=1)
            good = np.flatnonzero(possible & (held.min(axis=1) >= self.min_samples))
            if len(good):
                return shares[good[0]]
        raise no_draw("dirichlet_domain", DOMAIN_DRAWS, f"{self.clients} clients", self)

    def client_count(self, source_count: int) -> int:
        return self.clients


@register("dirichlet_label")
class DirichletLabel(Partition):
    """One domain per client, labels skewed: every class of a domain in random shares.

    FedFD-A's cross-silo setting (suppl. D.1): 10 clients per domain, Dirichlet with alpha 0.5 or
    0.1. The paper says no more; drawing class by class without evening out the clients' sizes, and
    at least 10 samples for each, is the common recipe (NIID-Bench, Li et al., ICDE 2022).
    """

    clients: int = hp(10, doc="clients per domain", low=1)
    alpha: float = hp(0.5, doc="smaller: classes more concentrated", low=1e-3)
    min_samples: int = hp(10, doc="training samples every client has at least", low=1)

    def divide(self, sources: Sequence[Source], rng: np.random.Generator) -> list[ClientShards]:
        return [client for source in sources for client in self._divide_domain(source, rng)]

    def _divide_domain(self, source: Source, rng: np.random.Generator) -> list[ClientShards]:
        if len(source.train) < self.clients * self.min_samples:
            raise too_few("dirichlet_label", f"{source.name} has", len(source.train), self)
        classes = int(source.labels.max()) + 1
        labels, held_labels = source.labels[source.train], source.labels[source.val]
        totals = np.bincount(labels, minlength=classes)
        shares = self._draw(source.name, totals, rng)
        counts = whole_counts(shares, totals)
        held = validation_counts(shares, np.bincount(held_labels, minlength=classes), counts)
        train = deal(source.train, counts, rng, labels)
        val = deal(source.val, held, rng, held_labels)
        return [
            ClientShards(
                f"{source.name}/{k}",
                Shard.of(source.domain, train[k]),
                Shard.of(source.domain, val[k]),
            )
            for k in range(self.clients)
        ]

    def _draw(self, name: str, totals: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Shares (classes, clients): the first draw that gives every client enough."""
        concentration = np.full(self.clients, self.alpha)
        for _ in range(LABEL_DRAWS):
            shares = rng.dirichlet(concentration, len(totals))
            if whole_counts(shares, totals).sum(0).min() >= self.min_samples:
                return shares
        raise no_draw("dirichlet_label", LABEL_DRAWS, f"{self.clients} clients of {name}", self)

    def client_count(self, source_count: int) -> int:
        return source_count * self.clients


def too_few(
    name: str, who: str, count: int, partition: DirichletDomain | DirichletLabel
) -> UserError:
    return UserError(
        f"partition {name}: {who} {count} training samples, too few for {partition.clients} "
        f"clients with min_samples={partition.min_samples} each; lower one of the two"
    )


def no_draw(
    name: str, draws: int, who: str, partition: DirichletDomain | DirichletLabel
) -> UserError:
    return UserError(
        f"partition {name}: none of {draws} draws with alpha={partition.alpha:g} gave each of "
        f"{who} {partition.min_samples} samples; raise alpha or lower min_samples"
    )
