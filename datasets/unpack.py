"""Archives unpacked without surprises: plain files only, none of them outside the folder."""

from __future__ import annotations

import gzip
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from tqdm import tqdm

from benchmark.errors import UserError

BLOCK = 2**20
DAMAGED = (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)
DAMAGED += (EOFError, NotImplementedError, RuntimeError)  # cut short, odd packing, encrypted
DAMAGED += (FileExistsError, NotADirectoryError, IsADirectoryError)  # one name twice
Member = tuple[str, Callable[[], IO[bytes]]]


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip or tar archive into a folder, which is left half full if that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if zipfile.is_zipfile(archive):
            members = _zip_members(archive)
        elif tarfile.is_tarfile(archive):
            members = _tar_members(archive)
        else:
            raise UserError(f"{archive} is neither a zip nor a tar archive")
        for name, content in tqdm(members, desc=archive.name, unit=" files", disable=None):
            target = folder / inside(name, archive)
            target.parent.mkdir(parents=True, exist_ok=True)
            with content() as source, target.open("wb") as file:
                shutil.copyfileobj(source, file, BLOCK)
    except DAMAGED as error:
        raise UserError(f"{archive} is damaged ({error}): fetch it again") from error


def inside(name: str, archive: Path) -> PurePosixPath:
    """A member's path, if it stays where it is put."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in (path.parts or ("",))[0]:
        raise UserError(f"{archive} is not safe to unpack: it would write to {name!r}")
    return path


def _zip_members(archive: Path) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            inside(member.filename, archive)
            if not member.is_dir():
                yield member.filename, lambda member=member: packed.open(member)


def _tar_members(archive: Path) -> Iterator[Member]:
    with tarfile.open(archive) as packed:
        for member in packed:
            inside(member.name, archive)
            if member.isfile():
                yield member.name, lambda member=member: packed.extractfile(member)
            elif not member.isdir():
                raise UserError(f"{archive} is not safe to unpack: {member.name!r} is a link")
