"""The arithmetic of partitions: shares of groups of rows, as whole numbers, dealt to clients.

A group is what a rule draws shares for: a domain, or a class within a domain. Counts and shares
are arrays (groups, clients).
"""

from __future__ import annotations

import numpy as np


def whole_counts(shares: np.ndarray, totals: np.ndarray | int) -> np.ndarray:
    """`totals` (...) divided by `shares` (..., clients) of any sum: cut at floor(cumsum · total).

    Every count is less than one sample away from its share, and together they are the total.
    """
    edges = np.cumsum(shares, axis=-1)
    whole = edges[..., -1:]
    edges = np.divide(edges, whole, out=np.zeros_like(edges), where=whole > 0)
    totals = np.asarray(totals)[..., None]
    # A rounding error below a whole number must not cost a sample.
    edges = np.floor(edges * totals + 1e-9).astype(np.int64)
    edges[..., -1:] = totals
    return np.diff(edges, axis=-1, prepend=0)


def validation_counts(shares: np.ndarray, totals: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Validation rows by the shares of the training rows, none left without where that can be.

    A share of a few validation rows is often less than one of them. A client that would get none
    takes one of a group it trains on, from who holds the most of that group and another besides.
    """
    counts = whole_counts(shares, totals)
    for client in np.flatnonzero((counts.sum(0) == 0) & (train.sum(0) > 0)):
        spare = counts * (counts.sum(0) > 1) * (train[:, client] > 0)[:, None]
        group, giver = np.unravel_index(spare.argmax(), spare.shape)
        if spare[group, giver]:
            counts[group, giver] -= 1
            counts[group, client] += 1
    return counts


def deal(
    rows: np.ndarray, counts: np.ndarray, rng: np.random.Generator, groups: np.ndarray | None = None
) -> list[np.ndarray]:
    """Rows for every client: `counts[group, client]` random ones of each group, by row in `groups`
    (one group if None)."""
    order = rng.permutation(len(rows))
    if groups is not None:
        order = order[np.argsort(groups[order], kind="stable")]
    group_count, client_count = counts.shape
    owners = np.repeat(np.tile(np.arange(client_count), group_count), counts.ravel())
    order = order[np.argsort(owners, kind="stable")]
    return np.split(rows[order], np.cumsum(counts.sum(0))[:-1])
