"""FINCH on points whose clusters can be read off their angles."""

import torch

from methods.ops.finch import cluster_means, finch


def at_angles(*degrees: float) -> torch.Tensor:
    radians = torch.deg2rad(torch.tensor(degrees))
    return torch.stack([radians.cos(), radians.sin()], 1)


def partitions(points: torch.Tensor) -> list[list[int]]:
    return [clusters.tolist() for clusters in finch(points)]


def test_six_points_are_two_threes():
    """Neighbours: 0↔1, 2→1 and 4↔5, 3→4; joining the two means would leave one cluster."""
    assert partitions(at_angles(0, 2, 5, 90, 93, 95)) == [[0, 0, 0, 1, 1, 1]]
    assert partitions(at_angles(0, 90, 2, 93, 95, 5)) == [[0, 1, 0, 1, 1, 0]]


def test_four_pairs_become_two_fours():
    pairs, fours = partitions(at_angles(0, 1, 10, 11, 90, 91, 100, 101))
    assert pairs == [0, 0, 1, 1, 2, 2, 3, 3]
    assert fours == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_shared_neighbour_joins():
    """2 is the neighbour of 1 and 3, which are not each other's; 0 hangs on 1."""
    assert partitions(at_angles(0, 10, 15, 21)) == [[0, 0, 0, 0]]


def test_up_to_three_points_are_one_cluster():
    assert partitions(at_angles(0)) == [[0]]
    assert partitions(at_angles(0, 180)) == [[0, 0]]
    assert partitions(at_angles(0, 1, 120)) == [[0, 0, 0]]


def test_only_directions_count():
    points = at_angles(0, 2, 5, 90, 93, 95) * torch.tensor([1.0, 50, 3, 1, 0.01, 7])[:, None]
    assert partitions(points) == [[0, 0, 0, 1, 1, 1]]


def test_equal_points_are_one_cluster():
    assert partitions(torch.ones(5, 3)) == [[0, 0, 0, 0, 0]]
    assert partitions(torch.zeros(4, 3)) == [[0, 0, 0, 0]]


def test_means_of_clusters():
    points = torch.tensor([[1.0, 0], [3, 2], [7, 7]])
    means = cluster_means(points, torch.tensor([0, 0, 1]))
    assert means.tolist() == [[2, 1], [7, 7]]
