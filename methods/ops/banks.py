"""Banks: what each client shares once about its images, handed to all the others.

A bank is a list of tensors whose first axes agree: row i belongs together. The clients of one
federation have banks of the same kind, usually of different lengths.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from datasets.samples import Samples

if TYPE_CHECKING:
    from benchmark.federation import Client, Server

Bank = list[torch.Tensor]


def part_of(samples: Samples, positions: np.ndarray) -> Samples:
    """Some of the samples, in the order given, repeats allowed; images stay where they are."""
    part = copy.copy(samples)
    part.shard = samples.shard.take(positions)
    part.labels = samples.labels[positions]
    return part


def exchange_banks(
    server: Server, clients: Sequence[Client], kind: str, banks: Sequence[Bank]
) -> dict[int, list[Bank]]:
    """Every client sends its bank up and gets the others' down, in order of their numbers: for
    each client's id, the banks it has now. Tensors are shared, not copied."""
    sent = [client.send(kind, bank) for client, bank in zip(clients, banks, strict=True)]
    return {
        client.id: server.send(client, kind, [*sent[:place], *sent[place + 1 :]])
        for place, client in enumerate(clients)
    }


def joined(banks: Iterable[Bank]) -> Bank:
    """All rows of several banks, one bank after the other."""
    return [torch.cat(parts) for parts in zip(*banks, strict=True)]


def draw_rows(banks: Sequence[Bank], chosen: torch.Tensor) -> torch.Tensor:
    """For each number of a bank in `chosen`, a random row of that bank, as the row's place among
    the joined ones: clients count alike, however many rows they have."""
    counts = torch.tensor([len(bank[0]) for bank in banks])
    starts = counts.cumsum(0) - counts
    drawn = (torch.rand(chosen.shape, dtype=torch.float64) * counts[chosen]).long()
    return starts[chosen] + drawn
