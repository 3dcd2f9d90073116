"""Small image folders for the tests of datasets on disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

REAL = os.environ.get("FEDDOMAINBED_DATA")
needs_real_data = pytest.mark.skipif(
    REAL is None, reason="FEDDOMAINBED_DATA names no folder of real datasets"
)


def draw(path: Path, shade: int = 0, size: tuple[int, int] = (8, 8)) -> Path:
    """One picture of a plain colour; PNG keeps it exact."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (shade % 256, 7, 200)).save(path)
    return path


def domain_bed(home: Path, domains, classes, per_class: int = 2, size=(8, 8)) -> Path:
    """`home/domain/class/k.png`, every picture in a shade of its own."""
    shade = 0
    for domain in domains:
        for name in classes:
            for k in range(per_class):
                draw(home / domain / name / f"{k}.png", shade, size)
                shade += 1
    return home


def in_parts(home: Path, domains, classes, per_part: dict[str, int]) -> Path:
    """`home/domain/part/class/part_k.png`, as Dassl keeps its datasets."""
    for domain in domains:
        for part, count in per_part.items():
            for name in classes:
                for k in range(count):
                    draw(home / domain / part / name / f"{part}_{k}.png", k)
    return home
