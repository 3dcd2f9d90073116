"""`python -m datasets.prepare NAME --root DATA`: get a dataset, check it, decode it once.

Prints what is there, what is missing and what to do about it; then decodes every complete domain
into the cache (`datasets.cache`). Run it again to continue after an interruption; a finished one is
done at once. Several at the same time share the work. Exit code: 0 complete, 1 not, 2 bad input.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from tabulate import tabulate
from tqdm import tqdm

from benchmark.errors import ArgumentParser, UserError, command_line
from datasets.base import Dataset, open_dataset
from datasets.cache import decoded, find_decoded, place_for
from datasets.fetch import matches
from datasets.folders import FolderDataset, OwnFolder
from datasets.install import install, install_downloads
from datasets.layouts import Listing
from datasets.pixels import DamagedImages

MANIFESTS = {"SHA256SUMS": "sha256", "sha256sums": "sha256", "md5sums": "md5", "MD5SUMS": "md5"}
SHOWN = 3  # offending paths per domain


@dataclasses.dataclass
class State:
    """What was found of one domain."""

    domain: str
    expected: int | None
    listing: Listing | None = None
    problem: str = ""
    offending: Sequence[str] = ()

    @property
    def found(self) -> int:
        return 0 if self.listing is None else len(self.listing)

    @property
    def word(self) -> str:
        return self.problem or "complete"


@command_line
def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    dataset = open_dataset(options.name)
    if not isinstance(dataset, FolderDataset):
        return make(dataset, options.root, options.size or dataset.image_size)
    if isinstance(dataset, OwnFolder) and options.source:
        raise UserError(f"{dataset.name} is used where it is: leave --from out")
    if options.source:
        print(install(dataset, options.source, options.root))
    if options.download:
        for line in install_downloads(dataset, options.root):
            print(line)
    if not dataset.cache_root(options.root).is_dir():
        raise UserError(f"--root {options.root}: there is no such folder")
    states = [survey(dataset, domain, options.root) for domain in dataset.domains]
    print(report(dataset, states, options.root))
    size = options.size or dataset.image_size
    before = [state.word for state in states]
    for line in decode_all(dataset, states, options.root, size, options.check):
        print(line)
    if before != [state.word for state in states]:
        print(report(dataset, states, options.root))
    return int(any(state.problem for state in states))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = ArgumentParser(prog="python -m datasets.prepare", description=__doc__)
    parser.add_argument("name", help="a dataset (see python -m benchmark.list), or folder:PATH")
    parser.add_argument("--root", type=Path, default=Path("data"), help="folder of the datasets")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--download", action="store_true", help="fetch it, where its terms allow")
    source.add_argument(
        "--from", dest="source", metavar="WHERE", help="a folder, a zip or tar file, or a URL"
    )
    parser.add_argument("--size", type=int, help="side of stored images, if theirs differ")
    parser.add_argument(
        "--check", action="store_true", help="verify every checksum of the decoded images"
    )
    options = parser.parse_args(arguments)
    if options.size is not None and options.size < 1:
        raise UserError(f"--size {options.size}: at least 1")
    return options


def make(dataset: Dataset, root: Path, size: int) -> int:
    """A dataset that makes its own images: have it do so."""
    rows = [(domain, f"{len(dataset.load(domain, root, size)):,}") for domain in dataset.domains]
    print(tabulate(rows, (dataset.name, "images"), "simple", disable_numparse=True))
    return 0


def survey(dataset: FolderDataset, domain: str, root: Path) -> State:
    """What is there of a domain, without decoding anything."""
    state = State(domain, (dataset.counts or {}).get(domain))
    try:
        state.listing = dataset.listing(domain, root)
    except UserError as error:
        state.problem, state.offending = "missing", [getattr(error, "reason", str(error))]
        return state
    sizes = [file_size(state.listing.home / file) for file in state.listing.files]
    files = state.listing.files
    absent = [file for file, size in zip(files, sizes, strict=True) if size is None]
    empty = [file for file, size in zip(files, sizes, strict=True) if size == 0]
    if absent:
        state.problem, state.offending = "missing", absent
    elif empty:
        state.problem, state.offending = "damaged", empty
    elif state.expected is not None and state.found != state.expected:
        state.problem = "missing" if state.found < state.expected else "too many"
        state.offending = [f"{state.found:,} of {state.expected:,} images in {state.listing.home}"]
    return state


def file_size(path: Path) -> int | None:
    try:
        return os.stat(path).st_size
    except OSError:
        return None


def wrong_checksums(listing: Listing) -> list[str]:
    """Files that differ from a manifest (`sha256sum`'s) in the dataset's folder, if it has one."""
    wanted: dict[str, str] = {}
    for name, kind in MANIFESTS.items():
        path = listing.home / name
        lines = path.read_text().splitlines() if path.is_file() else []
        for line in lines:
            digest, _, file = line.partition(" ")
            wanted[file.lstrip(" *").removeprefix("./")] = f"{kind}:{digest}"
    known = [file for file in listing.files if file in wanted]
    bar = tqdm(known, desc="checksums", unit=" files", disable=None if known else True)
    return [file for file in bar if not matches(listing.home / file, wanted[file])]


def decode_all(
    dataset: FolderDataset, states: Sequence[State], root: Path, size: int, check: bool
) -> Iterator[str]:
    """Decode the complete domains, noting in their states what turns out to be damaged."""
    for state in states:
        if state.problem:
            continue
        place = place_for(dataset.name, state.domain, dataset.cache_root(root))
        images = find_decoded(state.listing, place, size, thorough=check)
        done = "already decoded"
        if images is None:
            state.offending = wrong_checksums(state.listing)
            if state.offending:
                state.problem = "damaged"
                continue
            try:
                with tqdm(total=state.found, desc=state.domain, unit=" img", disable=None) as bar:
                    everything = dataset.all_listings(root)
                    images = decoded(state.listing, place, size, everything, bar.update)
            except DamagedImages as error:
                home = state.listing.home
                state.problem = "damaged"
                state.offending = [path.relative_to(home).as_posix() for path in error.paths]
                continue
            done = "decoded"
        height, width = images.shape[1:3]
        yield f"{state.domain}: {done}, {state.found:,} of {width} x {height}, {images.filename}"


def report(dataset: FolderDataset, states: Sequence[State], root: Path) -> str:
    """The table, the first offending files, and what to do next."""
    rows = [
        (s.domain, f"{s.found:,}", "?" if s.expected is None else f"{s.expected:,}", s.word)
        for s in states
    ]
    head = (dataset.name, "found", "expected", "state")
    lines = [tabulate(rows, head, "simple", disable_numparse=True), ""]
    if all(state.listing is None for state in states):  # nothing is there: say it once
        lines += dict.fromkeys(text for state in states for text in state.offending)
    else:
        lines += [line for state in states for line in offences(state)]
    words = {state.problem for state in states}
    if "missing" in words:
        lines.append(f"next: {dataset.advice(root)}")
    if "too many" in words:
        lines.append(f"next: {dataset.surplus}")
    if "damaged" in words:
        lines.append("next: replace the damaged files from the archive, then run this again")
    return "\n".join(lines).rstrip() + "\n"


def offences(state: State) -> list[str]:
    """The first offending files of a domain."""
    more = len(state.offending) - SHOWN
    lines = [f"{state.domain} {state.problem}: {text}" for text in state.offending[:SHOWN]]
    return [*lines, f"{state.domain}: and {more:,} more"] if more > 0 else lines


if __name__ == "__main__":
    main()
