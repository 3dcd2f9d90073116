"""The file of one domain's pixels: written chunk by chunk, read memory-mapped.

A plain .npy array (images, height, width, 3) of uint8, followed by one CRC-32 per chunk of images.
It is decoded into chunk files, each of which appears whole or not at all, put together at the end.
So a killed decoding continues, and processes that need the same domain at the same time share the
work without locks: each starts at another chunk and passes over those that are there. No more than
one chunk is in memory.
"""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmark.errors import UserError
from datasets.base import write_atomically
from datasets.layouts import Listing

CHUNK_BYTES = 8 * 2**20
SAMPLED_CHUNKS = 8
Progress = Callable[[int], None]


class DamagedImages(UserError):
    """Files that are no whole images; the message names the first of them."""

    def __init__(self, problems: list[tuple[Path, str]]):
        self.paths = [path for path, _ in problems]
        path, reason = problems[0]
        also = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        super().__init__(f"damaged image {path} ({reason}){also}: replace it or unpack again")


def chunk_rows(shape: tuple[int, int]) -> int:
    return max(1, CHUNK_BYTES // (3 * shape[0] * shape[1]))


def read(path: Path, count: int, thorough: bool = False) -> np.ndarray | None:
    """The stored images if the file is whole and its (sampled) checksums hold, else None."""
    try:
        images = np.load(path, mmap_mode="r")
        rows = chunk_rows(images.shape[1:3])
        chunks = -(-count // rows)
        sums = np.fromfile(path, "<u4", offset=images.offset + images.nbytes)
        if images.shape != (count, *images.shape[1:3], 3) or len(sums) != chunks:
            return None
        step = 1 if thorough else max(1, chunks // SAMPLED_CHUNKS)
        sample = {*range(0, chunks, step), chunks - 1}
        sound = all(zlib.crc32(images[k * rows : (k + 1) * rows]) == sums[k] for k in sample)
        return images if sound and images.dtype == np.uint8 else None
    except Exception:  # whatever is wrong with the file, the cure is to make it again
        return None


def build(
    listing: Listing,
    target: Path,
    shape: tuple[int, int],
    resize: bool,
    progress: Progress | None = None,
) -> None:
    """Decode all images into `target`, continuing what any process has begun."""
    partial = target.with_name(f".{target.name}.partial")
    rows = chunk_rows(shape)
    starts = list(range(0, len(listing), rows))
    first = os.getpid() % len(starts)
    done: set[int] = set()
    while read(target, len(listing)) is None:
        problems: list[tuple[Path, str]] = []
        for start in starts[first:] + starts[:first]:
            files = [listing.home / file for file in listing.files[start : start + rows]]
            chunk = partial / f"{start:09d}"
            if read_chunk(chunk, len(files) * 3 * shape[0] * shape[1]) is None:
                if read(target, len(listing)) is not None:
                    break
                problems += write_chunk(chunk, files, shape, resize)
            if progress is not None and start not in done:
                progress(len(files))
                done.add(start)
        if problems:
            raise DamagedImages(sorted(problems))
        assemble(partial, target, len(listing), shape)
    shutil.rmtree(partial, ignore_errors=True)


def write_chunk(
    chunk: Path, files: list[Path], shape: tuple[int, int], resize: bool
) -> list[tuple[Path, str]]:
    """Decode some images into one file; what is wrong with which, and then there is no file."""
    pixels = np.empty((len(files), *shape, 3), dtype=np.uint8)
    problems = []
    for row, path in enumerate(files):
        try:
            pixels[row] = decode(path, shape, resize)
        except Exception as error:  # Pillow raises nearly anything on a broken file
            problems.append((path, f"{error}".replace("\n", " ") or type(error).__name__))
    if not problems:
        checksum = zlib.crc32(pixels).to_bytes(4, "little")
        write_atomically(
            chunk, lambda temporary: temporary.write_bytes(pixels.tobytes() + checksum)
        )
    return problems


def decode(path: Path, shape: tuple[int, int], resize: bool) -> np.ndarray:
    """One image as RGB pixels of a given height and width."""
    from PIL import Image

    with Image.open(path) as image:
        picture = image.convert("RGB")
    if resize:
        picture = picture.resize((shape[1], shape[0]), Image.Resampling.BILINEAR)
    if (picture.height, picture.width) != shape:
        raise ValueError(f"{picture.width} x {picture.height} pixels, unlike all others")
    return np.asarray(picture)


def read_chunk(chunk: Path, length: int) -> bytes | None:
    """A chunk's pixels if it is there and sound."""
    try:
        content = chunk.read_bytes()
    except OSError:
        return None
    pixels, checksum = content[:-4], content[-4:]
    sound = len(pixels) == length and zlib.crc32(pixels).to_bytes(4, "little") == checksum
    return pixels if sound else None


def assemble(partial: Path, target: Path, count: int, shape: tuple[int, int]) -> None:
    """All chunks in one file, followed by their checksums; nothing if one of them is gone."""
    rows = chunk_rows(shape)

    def write(temporary: Path) -> None:
        header = {"descr": "|u1", "fortran_order": False, "shape": (count, *shape, 3)}
        sums = []
        with temporary.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, count, rows):
                length = min(rows, count - start) * 3 * shape[0] * shape[1]
                pixels = read_chunk(partial / f"{start:09d}", length)
                if pixels is None:
                    raise FileNotFoundError(partial)
                sums.append(zlib.crc32(pixels))
                file.write(pixels)
            file.write(np.array(sums, dtype="<u4").tobytes())
            file.flush()
            os.fsync(file.fileno())

    with contextlib.suppress(FileNotFoundError):  # another process was first and tidied up
        write_atomically(target, write)
        remove_leftovers(target)


def remove_leftovers(target: Path) -> None:
    """What killed processes left: half a file, decodings of sources that have changed since.

    A process that is still busy with one of them finds it gone and looks for `target` again.
    """
    for half in target.parent.glob(f".{glob.escape(target.name)}.*.tmp"):
        half.unlink(missing_ok=True)
    domain, digest, kind = target.name.rsplit("-", 2)
    for folder in target.parent.glob(f".{glob.escape(domain)}-*-{kind}.partial"):
        other = folder.name.removesuffix(".partial").rsplit("-", 2)
        if other[0] == f".{domain}" and other[1] != digest:
            shutil.rmtree(folder, ignore_errors=True)
