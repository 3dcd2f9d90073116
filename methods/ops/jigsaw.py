"""Jigsaw puzzles: images cut into 3 × 3 tiles that are put together in another order.

Order 0 is the picture itself; the orders 1 … P are a set of permutations that are far apart. It is
not the file of JiGen's code but made greedily: each permutation in turn is the first, in dictionary
order, whose smallest Hamming distance to the identity and to those chosen before is largest.
Nothing is drawn, so everybody has the same set.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np
import torch

from datasets.transforms import Transform

GRID = 3
TILES = GRID * GRID


@functools.cache
def orders(permutations: int) -> torch.Tensor:
    """(permutations + 1, 9): row k says which tile stands at each place in order k."""
    everything = np.array(list(itertools.permutations(range(TILES))), dtype=np.int8)
    chosen = [0]
    nearest = np.full(len(everything), TILES)
    for _ in range(permutations):
        distance = (everything != everything[chosen[-1]]).sum(axis=1)
        nearest = np.minimum(nearest, distance)
        chosen.append(int(nearest.argmax()))
    return torch.from_numpy(everything[chosen].astype(np.int64))


def draw_orders(count: int, ordered: float, permutations: int, device) -> torch.Tensor:
    """An order for each image: 0 with probability `ordered`, else uniform over 0 … permutations."""
    if ordered >= 1:
        return torch.zeros(count, dtype=torch.int64, device=device)
    left_whole = torch.rand(count) < ordered
    drawn = torch.randint(0, permutations + 1, (count,))
    return drawn.masked_fill(left_whole, 0).to(device)


def shuffle_tiles(images: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The images with tile `places[b, t]` of image b at its place t.

    The tiles cover the middle; where the side is no multiple of three, one or two lines of pixels
    at the edge stay where they are, which is as if 224 pixels were JiGen's 222 with a frame.
    """
    middle, h, w = _middle(images)
    tiles = images[middle].unflatten(3, (GRID, w)).unflatten(2, (GRID, h))  # B, C, 3, h, 3, w
    tiles = tiles.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # B, 9, C, h, w
    tiles = tiles[torch.arange(len(images), device=images.device)[:, None], places]
    tiles = tiles.unflatten(1, (GRID, GRID)).permute(0, 3, 1, 4, 2, 5)
    shuffled = images.clone()
    shuffled[middle] = tiles.flatten(4, 5).flatten(2, 3)
    return shuffled


def grey_tiles(images: torch.Tensor, chosen: torch.Tensor, transform: Transform) -> torch.Tensor:
    """The images with the tiles turned grey for which `chosen` (B, 9) holds."""
    middle, h, w = _middle(images)
    mask = torch.zeros_like(images[:, :1], dtype=torch.bool)
    cells = chosen.view(-1, 1, GRID, GRID)
    mask[middle] = cells.repeat_interleave(h, 2).repeat_interleave(w, 3)
    red, green, blue = transform.to_pixels(images).unbind(1)
    luma = (0.299 * red + 0.587 * green + 0.114 * blue).unsqueeze(1)
    return torch.where(mask, transform.from_pixels(luma.expand_as(images)), images)


def _middle(images: torch.Tensor) -> tuple[tuple, int, int]:
    """Where the nine tiles are in an image, and their height and width."""
    height, width = images.shape[-2:]
    h, w = height // GRID, width // GRID
    top, left = (height - GRID * h) // 2, (width - GRID * w) // 2
    return (..., slice(top, top + GRID * h), slice(left, left + GRID * w)), h, w
