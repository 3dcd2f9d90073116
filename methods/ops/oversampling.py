"""Taking samples of a batch again, or more of the client's samples into it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import torch

from datasets.samples import Batch

if TYPE_CHECKING:
    from benchmark.federation import Client


def class_balanced_rows(labels: torch.Tensor, class_count: int, count: int) -> torch.Tensor:
    """`count` rows of a batch to repeat so that its classes become as balanced as they can.

    One slot after the other goes to a class that has the fewest samples by then, chosen at random
    among equals, and is filled with a random member of that class; classes without any get none.
    """
    device = labels.device
    sizes = torch.bincount(labels, minlength=class_count)
    # A class with n samples takes its k-th slot when it has n + k: the slots in order of that.
    levels = sizes[:, None] + torch.arange(count, device=device)
    keys = levels + torch.rand(levels.shape).to(device)
    keys = keys.masked_fill(sizes[:, None] == 0, torch.inf)
    taken = keys.flatten().topk(count, largest=False).indices // max(1, count)
    starts = sizes.cumsum(0) - sizes
    members = (torch.rand(count).to(device) * sizes[taken]).long()
    return labels.argsort(stable=True)[starts[taken] + members]


def random_rows(labels: torch.Tensor, count: int) -> torch.Tensor:
    """`count` rows of a batch, any of them any number of times."""
    return torch.randint(len(labels), (count,)).to(labels.device)


def enlarged(
    labels: torch.Tensor, size: int, count: int, class_count: int, balanced: bool
) -> tuple[torch.Tensor, int]:
    """Rows of a batch enlarged by `count`: its first `size` samples, then of the supplements behind
    them as many as fit, then samples of both again; and how many of the last there are."""
    more = torch.randperm(len(labels) - size)[:count] + size
    present = torch.cat([torch.arange(size), more]).to(labels.device)
    copies = count - len(more)
    if balanced:
        again = class_balanced_rows(labels[present], class_count, copies)
    else:
        again = random_rows(labels[present], copies)
    return torch.cat([present, present[again]]), copies


def supplemented(client: Client, batch: Batch) -> Batch:
    """The batch, and behind it one more of the client's samples for every class that has a single
    one in it; a class of which the client has no other is left alone."""
    counts = np.bincount(batch.labels.cpu().numpy(), minlength=client.model.class_count)
    if "members" not in client.scratch:
        labels = client.train.labels
        client.scratch["members"] = [np.flatnonzero(labels == c) for c in range(len(counts))]
        client.scratch["supplements"] = client.torch_generator("supplements")
    members = [client.scratch["members"][c] for c in np.flatnonzero(counts == 1)]
    chosen = [rows[int(torch.randint(len(rows), ()))] for rows in members if len(rows) > 1]
    if not chosen:
        return batch
    more = client.train.training_batch(np.array(chosen), client.scratch["supplements"])
    images, labels, domains = (
        torch.cat([getattr(batch, name), getattr(more, name)])
        for name in ("images", "labels", "domains")
    )
    return dataclasses.replace(batch, images=images, labels=labels, domains=domains)
