"""Optimal transport between weighted sets of vectors, with an entropic regulariser."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def cosine_cost(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """(N, M): one minus the cosine between rows."""
    return 1 - F.normalize(one) @ F.normalize(other).T


@torch.no_grad()
def transport_plan(
    cost: torch.Tensor, here: torch.Tensor, there: torch.Tensor, regulariser: float, iterations: int
) -> torch.Tensor:
    """Sinkhorn's plans (P, N, M) for costs (P, N, M) and masses (P, N) and (P, M), all at once.

    A point of mass 0 takes no part. The columns are met exactly, the rows up to convergence; where
    one side has no mass at all, nothing is moved.
    """
    kernel = torch.exp(-cost / regulariser)
    row, column = torch.ones_like(here), torch.ones_like(there)
    for _ in range(iterations):
        row = here / (kernel @ column.unsqueeze(2)).squeeze(2).clamp(min=1e-12)
        column = there / (row.unsqueeze(1) @ kernel).squeeze(1).clamp(min=1e-12)
    return row.unsqueeze(2) * kernel * column.unsqueeze(1)


def transport_cost(
    cost: torch.Tensor, here: torch.Tensor, there: torch.Tensor, regulariser: float, iterations: int
) -> torch.Tensor:
    """⟨plan, cost⟩ of each problem, (P,); for the gradient the plan is a constant."""
    plan = transport_plan(cost, here, there, regulariser, iterations)
    return (plan * cost).sum((1, 2))
