"""Files from the network: resumable, checked, retried.

A download goes to `name.part` and is renamed when it is whole and its checksum holds. A cut one is
continued with an HTTP Range request that is tied to the server's version of the file (`If-Range`):
if the server's file has changed, or it knows no ranges, it sends the whole file and we start again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tqdm import tqdm

from benchmark.errors import UserError

BLOCK = 2**20
PERMANENT = range(400, 500)
PASSING = {408, 425, 429}  # of the 4xx answers, those that another try may mend


@dataclasses.dataclass(frozen=True)
class Download:
    """One file on the authors' server: an archive to unpack, or a list to put into a folder."""

    url: str
    name: str
    provides: str
    """The path in the dataset's folder that is there once this has been installed."""
    checksum: str | None = None
    """`sha256:…` or `md5:…`."""


@dataclasses.dataclass
class Transfer:
    """One download under way."""

    url: str
    part: Path
    bar: tqdm
    checked: bool
    """Whether a checksum will tell if a part and its continuation do not belong together."""

    @property
    def note(self) -> Path:
        return self.part.with_name(self.part.name + ".json")

    def request(self) -> urllib.request.Request:
        """Ask for what is missing, if the server's file is still the one we have a part of."""
        request = urllib.request.Request(self.url, headers={"User-Agent": "feddomainbed"})
        have = self.part.stat().st_size if self.part.exists() else 0
        version = self.version()
        if have and (version or self.checked):
            request.add_header("Range", f"bytes={have}-")
            if version:
                request.add_header("If-Range", version)
        return request

    def version(self) -> str | None:
        """The server's mark on the file that the part is of, if it gave one."""
        try:
            note = json.loads(self.note.read_text())
            return note["version"] if note["url"] == self.url else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def receive(self) -> None:
        """One connection's worth of the file; returns when the part is whole."""
        try:
            with urllib.request.urlopen(self.request(), timeout=60) as answer:
                self._store(answer)
        except urllib.error.HTTPError as error:
            if error.code != 416:  # the part is as long as the file, or longer
                raise
            total = error.headers.get("Content-Range", "").rpartition("/")[2]
            if total != str(self.part.stat().st_size):
                self.part.unlink()
                raise ConnectionError("the file on the server has changed") from error

    def _store(self, answer: http.client.HTTPResponse) -> None:
        have = self.part.stat().st_size if self.part.exists() else 0
        ranges = answer.headers.get("Content-Range", "")
        resumed = answer.status == 206 and ranges.startswith(f"bytes {have}-")
        if answer.status == 206 and not resumed:
            self.part.unlink(missing_ok=True)
            raise ConnectionError("the server sent another range than was asked for")
        length = answer.headers.get("Content-Length")
        total = None if length is None else int(length) + (have if resumed else 0)
        version = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
        if version and not version.startswith("W/"):  # weak marks cannot vouch for bytes
            self.note.write_text(json.dumps({"url": self.url, "version": version}))
        self.bar.total = total
        with self.part.open("ab" if resumed else "wb") as file:
            self.bar.update(file.tell() - self.bar.n)
            while block := answer.read(BLOCK):
                file.write(block)
                self.bar.update(len(block))
        if total is not None and self.part.stat().st_size != total:
            raise ConnectionError("the connection was cut")


def fetch(
    url: str, target: Path, checksum: str | None = None, tries: int = 5, pause: float = 1.0
) -> Path:
    """Download `url` to `target`, or continue to; a file that is there already stays."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with only_one(target.with_name(f".{target.name}.lock")):
        if target.exists():
            return target
        with tqdm(desc=target.name, unit="B", unit_scale=True, disable=None) as bar:
            transfer = Transfer(url, target.with_name(target.name + ".part"), bar, bool(checksum))
            kept = transfer.part.exists()
            _receive_all(transfer, tries, pause)
            if checksum and not matches(transfer.part, checksum) and kept:
                transfer.part.unlink()  # perhaps two versions of the file met in it
                _receive_all(transfer, tries, pause)
        if checksum and not matches(transfer.part, checksum):
            transfer.part.unlink()
            raise UserError(
                f"{url} is not the expected file (its checksum is not {checksum}): fetch it by "
                f"hand, check where it comes from, and use --from FILE"
            )
        os.replace(transfer.part, target)
        transfer.note.unlink(missing_ok=True)
    return target


def _receive_all(transfer: Transfer, tries: int, pause: float) -> None:
    """Connect again until the file is whole; attempts that brought nothing are counted."""
    failures = 0
    while True:
        before = transfer.part.stat().st_size if transfer.part.exists() else 0
        try:
            return transfer.receive()
        except urllib.error.HTTPError as error:
            reason = f"HTTP {error.code} {error.reason}"
            if error.code in PERMANENT and error.code not in PASSING:
                raise UserError(f"cannot fetch {transfer.url}: {reason}") from error
        except (OSError, http.client.HTTPException) as error:
            reason = str(getattr(error, "reason", error)) or type(error).__name__
        except ValueError as error:
            raise UserError(f"cannot fetch {transfer.url!r}: {error}") from error
        have = transfer.part.stat().st_size if transfer.part.exists() else 0
        failures = 1 if have > before else failures + 1
        if failures >= tries:
            raise UserError(
                f"cannot fetch {transfer.url} ({reason}, tried {tries} times); "
                f"{have:,} bytes are kept, the same command continues"
            )
        time.sleep(pause * 2 ** (failures - 1))


def matches(path: Path, checksum: str) -> bool:
    """Whether a file has the checksum `sha256:…` or `md5:…`."""
    kind, _, digest = checksum.partition(":")
    with path.open("rb") as file:
        return hashlib.file_digest(file, kind).hexdigest() == digest.lower()


@contextlib.contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """One process at a time; the others wait. The lock dies with its process."""
    with lock.open("w") as file:
        with contextlib.suppress(OSError):  # a file system without locks: hope for one process
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
