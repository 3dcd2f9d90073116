"""FedFD's losses of two passes over one batch, diversified by statistics or by prompts."""

from __future__ import annotations

import torch


def feature_distance(features: torch.Tensor, diverse: torch.Tensor, reduction: str) -> torch.Tensor:
    """Eq. 3, the mean over the batch of squared distances: `sum`, as printed, or `mean` over the
    features."""
    squares = (features - diverse).square()
    return squares.mean() if reduction == "mean" else squares.sum(1).mean()


def total_loss(
    plain: torch.Tensor,
    classification: torch.Tensor,
    distance: torch.Tensor,
    lambda1: float,
    lambda2: float,
) -> torch.Tensor:
    """Eq. 5."""
    return (1 - lambda1) * plain + lambda1 * classification + lambda2 * distance
