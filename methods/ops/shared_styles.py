"""Styles that clients tell each other, and which samples of a batch take them on (StableFDG).

The style of a client is a (4, C) tensor: the means over its samples of the channels' means and of
their standard deviations, and how far each of the two varies between samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from methods.ops.style import Style, recolour, spread, style_of

EXACT = "donot_use_mm_for_euclid_dist"
"""Distances term by term: the faster way leaves equal points a little apart."""


def client_style(means: torch.Tensor, stds: torch.Tensor, as_variance: bool) -> torch.Tensor:
    """From the styles (n, C) of a client's samples to its own: widths are standard deviations, or
    population variances. One sample has no width."""
    if as_variance:
        widths = [values.var(0, correction=0) for values in (means, stds)]
    elif len(means) > 1:
        widths = [spread(values)[0] for values in (means, stds)]
    else:
        widths = [torch.zeros_like(means[0])] * 2
    return torch.stack([means.mean(0), stds.mean(0), *widths])


def derangements(count: int, wanted: int) -> list[list[int]]:
    """For each of `count` clients, from whom it receives: `wanted` different others, or all of them
    if there are fewer; in every place of these lists each client stands exactly once."""
    chosen = [torch.arange(count)]
    while len(chosen) <= min(wanted, count - 1):
        order = torch.randperm(count)
        if not any((order == other).any() for other in chosen):
            chosen.append(order)
    return torch.stack(chosen[1:], 1).tolist() if len(chosen) > 1 else [[] for _ in range(count)]


def farthest(styles: Sequence[torch.Tensor], wanted: int) -> list[list[int]]:
    """For each client, the others whose style is farthest from its own; several may get the
    same."""
    points = torch.stack(list(styles)).flatten(1)
    distances = torch.cdist(points, points, compute_mode=EXACT)
    distances.fill_diagonal_(-1)
    return distances.topk(min(wanted, len(styles) - 1), 1).indices.tolist()


def seed_rows(points: torch.Tensor, count: int) -> torch.Tensor:
    """k-means++: rows far from one another, each drawn with a probability proportional to its
    squared distance from the nearest one before it; the first uniformly."""
    distances = torch.cdist(points, points, compute_mode=EXACT).square()
    # The largest of log p + Gumbel noise is a draw from p: no value has to leave the device.
    noise = -(-torch.rand(count, len(points)).clamp_min(1e-20).log()).log()
    noise = noise.to(points)
    rows = noise[0].argmax(0, keepdim=True)
    nearest = distances[rows[0]]
    for k in range(1, count):
        chances = nearest.clamp_min(1e-30).log() + noise[k]
        row = chances.index_fill(0, rows, -torch.inf).argmax(0, keepdim=True)
        nearest = torch.minimum(nearest, distances[row[0]])
        rows = torch.cat([rows, row])
    return rows


def centroids(points: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The means of the points nearest to each of these rows: one step of k-means."""
    nearest = torch.cdist(points, points[rows], compute_mode=EXACT).argmin(1)
    members = torch.nn.functional.one_hot(nearest, len(rows)).to(points)
    return (members.T @ points) / members.sum(0).clamp_min(1)[:, None]


def drawn_styles(received: torch.Tensor, count: int) -> Style:
    """`count` styles around a received one: means + ξ · widths, a negative std becoming 0."""
    centre, width = received[:2, None], received[2:, None]
    noise = torch.randn(2, count, received.shape[1]).to(received)
    mean, std = centre + noise * width
    return mean[:, :, None, None], std.clamp_min(0)[:, :, None, None]


def shift_styles(maps: torch.Tensor, received: torch.Tensor, select: str) -> torch.Tensor:
    """Half of the samples (the smaller half, if the number is odd) take on a received style.

    The others stay exactly as they are: those that k-means++ picks in the space of styles, or
    random ones. `code` does what StableFDG's code does: the first half get the centroids of a step
    of k-means as their styles, in arbitrary order, and the last half the received style.
    """
    own = style_of(maps.detach())
    kept = (len(maps) + 1) // 2
    new = drawn_styles(received, len(maps))
    if select == "random":
        rows = torch.randperm(len(maps))[:kept].to(maps.device)
    else:
        points = torch.cat(own, 1).flatten(1)
        rows = seed_rows(points, kept)
    if select == "code":
        centres = centroids(points, rows)[:, :, None, None].chunk(2, 1)
        styles = [torch.cat([c, n[kept:]]) for c, n in zip(centres, new, strict=True)]
        return recolour(maps, own, (styles[0], styles[1]))
    stays = torch.zeros(len(maps), 1, 1, 1, dtype=torch.bool, device=maps.device)
    return torch.where(stays.index_fill(0, rows, True), maps, recolour(maps, own, new))
