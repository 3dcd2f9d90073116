"""PACS: photos, art, cartoons and sketches of seven things (Li et al., ICCV 2017)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmark.errors import UserError
from datasets.base import register
from datasets.folders import FolderDataset, warn_once
from datasets.layouts import Listing, find_lists, listed_rows

FIRST_LABEL = 1  # the lists count classes from one
LISTS = {"train": "train", "val": "crossval", "test": "test"}
ERROR_SKETCH = ("sketch", "n02103406_4068-1")


@register("PACS")
class PACS(FolderDataset):
    """Photo, art painting, cartoon and sketch, 227 x 227; 9,991 images of seven classes.

    With the authors' lists (`*_train_kfold.txt`, `*_crossval_kfold.txt`, `*_test_kfold.txt`) in
    `splits` or `pacs_splits` beside the domains, rows of these parts come along; test is the whole
    domain. One sketch, `dog/n02103406_4068-1`, is a drawing of the word ERROR: DomainBed trains on
    it and so it stays a sample (3,929 sketches); Dassl leaves it out and so do the parts.
    """

    domains = ("art_painting", "cartoon", "photo", "sketch")
    letters = ("A", "C", "P", "S")
    aliases = {"art_painting": ("art",), "photo": ("photos",), "sketch": ("sketches",)}
    classes = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    counts = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
    citation = "Li et al., Deeper, Broader and Artier Domain Generalization, ICCV 2017"
    licence = "no formal licence; research use, do not redistribute"
    folders = ("PACS", "pacs_96", "pacs_mini")
    homepage = "https://domaingeneralization.github.io"
    by_hand = "download the archive of images from the authors' page, or the copy DomainBed names"

    def listing(self, domain: str, root: Path) -> Listing:
        listing = super().listing(domain, root)
        home = listing.home
        places = [home / "splits", home.parent / "splits", home, home.parent / "pacs_splits"]
        names = {part: f"{domain}_{word}_kfold.txt" for part, word in LISTS.items()}
        parts = {
            part: self.rows(path, domain, listing)
            for part, path in find_lists(places, names).items()
        }
        return Listing(home, listing.files, listing.labels, parts)

    def rows(self, path: Path, domain: str, listing: Listing) -> np.ndarray:
        """The rows that one official list names."""
        rows, labels, absent = listed_rows(path, listing)
        for row, label in zip(rows, labels, strict=True):
            if label - FIRST_LABEL != listing.labels[row]:
                raise UserError(f"{path} gives {listing.files[row]} the label {label}: not PACS's")
        if absent:
            warn_once(
                f"{path} names {len(absent):,} images that are not in {listing.home}, "
                f"{absent[0]} for one: the {domain} parts hold only the others"
            )
        kept = [row for row in rows if (domain, Path(listing.files[row]).stem) != ERROR_SKETCH]
        return np.array(sorted(kept), dtype=np.int64)
