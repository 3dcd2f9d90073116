"""Coins for whole batches."""

from __future__ import annotations

import torch


def happens(probability: float) -> bool:
    """One toss for the whole batch, from torch's global generator on the CPU, so nothing waits for
    another device; probability 0 draws nothing."""
    return probability > 0 and torch.rand(()).item() < probability
