"""Camelyon17-WILDS: tumour tissue in lymph nodes, five hospitals (Koh et al., ICML 2021)."""

from __future__ import annotations

import csv
import functools
from pathlib import Path

import numpy as np

from benchmark.errors import UserError
from datasets.base import register
from datasets.fetch import Download
from datasets.folders import Absent, FolderDataset
from datasets.layouts import Listing

COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "center", "split")
VALIDATION_CENTER, TEST_CENTER = 1, 2
PART_OF_SPLIT = {0: "train", 1: "val"}


@register("Camelyon17")
class Camelyon17(FolderDataset):
    """96 x 96 patches; tumour if the central 32 x 32 hold any; a hospital is a domain.

    The layout is WILDS's: `metadata.csv` beside `patches`. Rows keep the order of the table. Parts
    are WILDS's official ones: train and val (`id_val`) in the centers 0, 3 and 4; center 1 is all
    val, center 2 all test. Papers' Hospital 1 to 5 are taken to be the centers 0 to 4 (WILDS's own
    paper numbers them otherwise). The gPerXAN paper prints 455,964 images: a slip for 455,954.
    """

    domains = tuple(f"center_{number}" for number in range(5))
    letters = tuple(f"H{number}" for number in range(1, 6))
    aliases = {f"center_{number}": (f"Hospital {number + 1}",) for number in range(5)}
    classes = ("normal", "tumor")
    counts = dict(zip(domains, (59436, 34904, 85054, 129838, 146722), strict=True))
    citation = (
        "Koh et al., WILDS: A Benchmark of in-the-Wild Distribution Shifts, ICML 2021; slides of "
        "Bandi et al., IEEE Transactions on Medical Imaging 2018"
    )
    licence = "CC0 1.0"
    image_size = 96
    folders = ("camelyon17_v1.0", "camelyon17")
    homepage = "https://wilds.stanford.edu/datasets/#camelyon17"
    by_hand = "download camelyon17_v1.0.tar.gz from WILDS"
    downloads = (
        Download(
            "https://worksheets.codalab.org/rest/bundles/0xe45e15f39fb54e9d9e919556af67aabe/"
            "contents/blob/",
            name="camelyon17_v1.0.tar.gz",
            provides="metadata.csv",
        ),
    )

    def is_home(self, place: Path, at_least: int = 1) -> bool:
        return (place / "metadata.csv").is_file()

    def listing(self, domain: str, root: Path) -> Listing:
        home = self.find_home(root)
        table = home / "metadata.csv"
        center = self.domains.index(domain)
        rows = read_table(table, table.stat().st_mtime_ns).get(center, [])
        if not rows:
            raise Absent(f"{table} has no patches of center {center}", self.advice(root))
        files, labels, splits = zip(*rows, strict=True)
        return Listing(home, files, np.array(labels, dtype=np.int64), parts_of(center, splits))


def parts_of(center: int, splits: tuple[int, ...]) -> dict[str, np.ndarray]:
    """WILDS's official parts of one centre."""
    everything = np.arange(len(splits))
    if center == VALIDATION_CENTER:
        return {"val": everything}
    if center == TEST_CENTER:
        return {"test": everything}
    return {part: everything[np.array(splits) == code] for code, part in PART_OF_SPLIT.items()}


@functools.lru_cache(maxsize=2)
def read_table(path: Path, changed: int) -> dict[int, list[tuple[str, int, int]]]:
    """Path, label and split of every patch by centre; `changed` keeps an old reading from use."""
    centers: dict[int, list[tuple[str, int, int]]] = {}
    with path.open(newline="") as file:
        lines = csv.reader(file)
        head = next(lines, [])
        absent = [name for name in COLUMNS if name not in head]
        if absent:
            raise UserError(f"{path} has no column {absent[0]!r}: not the table of WILDS")
        order = [head.index(name) for name in COLUMNS]
        for number, line in enumerate(lines, start=2):
            try:
                patient, node, x, y, tumor, center, split = (line[index] for index in order)
                entry = patch_path(patient, node, x, y), int(tumor), int(split)
                centers.setdefault(int(center), []).append(entry)
            except (IndexError, ValueError) as error:
                raise UserError(
                    f"{path}, line {number} is damaged: fetch the table again"
                ) from error
    return centers


def patch_path(patient: str, node: str, x: str, y: str) -> str:
    """Where WILDS keeps a patch; a patient has three digits, which spreadsheets like to drop."""
    place = f"patient_{patient.zfill(3)}_node_{node}"
    return f"patches/{place}/patch_{place}_x_{x}_y_{y}.png"
