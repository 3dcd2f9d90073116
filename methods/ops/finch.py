"""FINCH: clusters without a number of clusters, from first neighbours alone.

Two points belong together when one is the other's first neighbour or both have the same one; the
clusters are the connected groups. The same on the clusters' means gives the next, coarser
partition. A group has at least two members, so every partition at most halves the one before and
up to three points are always one cluster.

Sarfraz, Sharma and Stiefelhagen, Efficient Parameter-free Clustering Using First Neighbor
Relations, CVPR 2019. Written from that definition, for the few points a server has (one per
client), not from the authors' code, which is for academic use. As in that code, neighbours are by
cosine, means are of the original points, ties go to the lower number, and the partition that would
join everything is left out unless it is the first.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


def finch(points: torch.Tensor) -> list[torch.Tensor]:
    """Partitions of the rows of `points`, from fine to coarse, each as numbers of clusters."""
    if len(points) < 2:
        return [torch.zeros(len(points), dtype=torch.long, device=points.device)]
    partitions = [_joined_neighbours(points)]
    while _count(partitions[-1]) > 1:
        finer = partitions[-1]
        coarser = _joined_neighbours(cluster_means(points, finer))[finer]
        if _count(coarser) == 1:
            break
        partitions.append(coarser)
    return partitions


def cluster_means(points: torch.Tensor, clusters: torch.Tensor) -> torch.Tensor:
    """The mean of the points of every cluster, in order of the clusters' numbers."""
    sums = points.new_zeros(_count(clusters), points.shape[1]).index_add_(0, clusters, points)
    return sums / torch.bincount(clusters)[:, None].to(points.dtype)


def _count(clusters: torch.Tensor) -> int:
    return int(clusters.max()) + 1


def _joined_neighbours(points: torch.Tensor) -> torch.Tensor:
    """The connected groups when every point holds on to its first neighbour by cosine; having the
    same neighbour connects two points through it."""
    directions = F.normalize(points.double(), dim=1)
    nearness = (directions @ directions.T).fill_diagonal_(-torch.inf)
    neighbours = nearness.argmax(1).tolist()
    groups = list(range(len(neighbours)))
    for point, neighbour in enumerate(neighbours):
        kept, gone = sorted((groups[point], groups[neighbour]))
        groups = [kept if group == gone else group for group in groups]
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return torch.tensor([numbers[group] for group in groups], device=points.device)
