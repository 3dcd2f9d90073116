"""The source domains a client holds, numbered without the gap that the target leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from benchmark.federation import Client


def source_count(client: Client) -> int:
    """How many domains the client's training images come from."""
    return len(_sources(client))


def source_numbers(client: Client, domains: torch.Tensor) -> torch.Tensor:
    """Numbers of the dataset's domains as numbers 0 … K−1 of the client's own domains."""
    return torch.searchsorted(_sources(client), domains)


def _sources(client: Client) -> torch.Tensor:
    """The dataset's numbers of the client's domains, in order; looked up once a visit."""
    if "sources" not in client.scratch:
        present = np.unique(client.train.shard.domains).astype(np.int64)
        client.scratch["sources"] = torch.from_numpy(present).to(client.train.device)
    return client.scratch["sources"]
