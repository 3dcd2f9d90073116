"""`python -m datasets.prepare`: its tables, its advice, its exit codes; downloads and archives."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
import warnings
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchmark.errors import UserError
from datasets import pixels
from datasets.base import open_dataset
from datasets.domainnet import DomainNet, DomainNet10
from datasets.fetch import Download, fetch
from datasets.pacs import PACS
from datasets.prepare import main
from datasets.unpack import unpack
from tests.image_folders import REAL, domain_bed, draw, needs_real_data

SMALL = {"art_painting": 14, "cartoon": 14, "photo": 14, "sketch": 14}


@pytest.fixture(autouse=True)
def small_and_quiet(monkeypatch):
    monkeypatch.delenv("FEDDOMAINBED_CACHE", raising=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*a complete copy has")
        yield


@pytest.fixture
def small_pacs(monkeypatch):
    """A PACS that is complete with two images per class and domain."""
    monkeypatch.setattr(PACS, "counts", SMALL)


@pytest.fixture
def prepare(capsys):
    """Run the command in this process: exit code, standard output, standard error."""

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        return stop.value.code, output.out, output.err

    return run


def pacs(home: Path) -> Path:
    return domain_bed(home, PACS.domains, PACS.classes, per_class=2)


def states(output: str) -> dict[str, list[str]]:
    """The rows of the last table by domain."""
    table = output.rpartition("expected")[2].split("\n\n")[0].splitlines()[2:]
    return {line.split()[0]: line.split()[1:] for line in table}


# What it says


def test_a_complete_dataset(tmp_path, prepare, small_pacs):
    pacs(tmp_path / "PACS")
    code, output, error = prepare("PACS", "--root", tmp_path)
    assert code == 0 and error == ""
    assert states(output) == {key: ["14", "14", "complete"] for key in PACS.domains}
    assert output.count(": decoded, 14 of 8 x 8, ") == 4
    code, output, _ = prepare("PACS", "--root", tmp_path)
    assert code == 0 and output.count("already decoded") == 4


def test_a_finished_preparation_decodes_nothing(tmp_path, prepare, small_pacs, monkeypatch):
    pacs(tmp_path / "PACS")
    prepare("PACS", "--root", tmp_path)
    monkeypatch.setattr(pixels, "decode", None)
    assert prepare("PACS", "--root", tmp_path, "--check")[0] == 0


def test_missing_domains_and_images(tmp_path, prepare, small_pacs):
    home = pacs(tmp_path / "PACS")
    (home / "photo" / "dog" / "0.png").unlink()
    for path in sorted((home / "sketch").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (home / "sketch").rmdir()
    code, output, _ = prepare("PACS", "--root", tmp_path)
    assert code == 1
    assert states(output) == {
        "art_painting": ["14", "14", "complete"],
        "cartoon": ["14", "14", "complete"],
        "photo": ["13", "14", "missing"],
        "sketch": ["0", "14", "missing"],
    }
    assert f"photo missing: 13 of 14 images in {home}" in output
    assert f"sketch missing: PACS: no folder 'sketch' in {home}" in output
    assert "next: download the archive" in output and PACS.homepage in output
    assert f"then run python -m datasets.prepare PACS --root {tmp_path} --from ARCHIVE" in output
    assert output.count(": decoded") == 2  # only what is complete


def test_nothing_there_is_said_once(tmp_path, prepare):
    code, output, _ = prepare("DomainNet", "--root", tmp_path)
    assert code == 1
    assert output.count("DomainNet is not in") == 1
    assert f"next: run python -m datasets.prepare DomainNet --root {tmp_path} --download" in output


def test_a_missing_class_folder_is_in_the_report(tmp_path, prepare, small_pacs):
    home = pacs(tmp_path / "PACS")
    (home / "photo" / "dog").rename(home / "photo" / "hound")
    code, output, _ = prepare("PACS", "--root", tmp_path)
    assert code == 1
    assert f"photo missing: missing class folder {home / 'photo' / 'dog'}" in output


def test_damaged_images_are_listed_with_the_first_paths(tmp_path, prepare, small_pacs):
    home = pacs(tmp_path / "PACS")
    for name in ("dog", "guitar", "horse", "house", "person"):
        (home / "photo" / name / "1.png").write_bytes(b"<html>not found</html>")
    (home / "sketch" / "dog" / "0.png").write_bytes(b"")
    code, output, _ = prepare("PACS", "--root", tmp_path)
    assert code == 1
    assert states(output)["photo"] == ["14", "14", "damaged"]
    assert states(output)["sketch"] == ["14", "14", "damaged"]
    for name in ("dog", "guitar", "horse"):
        assert f"photo damaged: photo/{name}/1.png" in output
    assert "photo/house" not in output and "photo: and 2 more" in output
    assert "sketch damaged: sketch/dog/0.png" in output
    assert "next: replace the damaged files" in output
    for path in (home / "photo").rglob("1.png"):
        draw(path)
    draw(home / "sketch" / "dog" / "0.png")
    assert prepare("PACS", "--root", tmp_path)[0] == 0


def test_checksums_of_a_manifest_are_verified(tmp_path, prepare, small_pacs):
    home = pacs(tmp_path / "PACS")
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  ./{path.relative_to(home).as_posix()}"
        for path in sorted(home.rglob("*.png"))
    ]
    (home / "SHA256SUMS").write_text("\n".join(lines) + "\n")
    draw(home / "cartoon" / "horse" / "1.png", shade=255)
    code, output, _ = prepare("PACS", "--root", tmp_path)
    assert code == 1
    assert states(output)["cartoon"] == ["14", "14", "damaged"]
    assert "cartoon damaged: cartoon/horse/1.png" in output
    assert states(output)["photo"] == ["14", "14", "complete"]


def test_duplicates_are_too_many(tmp_path, prepare, monkeypatch):
    monkeypatch.setattr(DomainNet10, "counts", dict.fromkeys(DomainNet10.domains, 10))
    domain_bed(tmp_path / "DomainNet", DomainNet10.domains, DomainNet10.classes, per_class=2)
    code, output, _ = prepare("DomainNet10", "--root", tmp_path)
    assert code == 1
    assert "real too many: 20 of 10 images" in output
    assert "next: duplicates: put the authors' lists" in output


def test_size_and_an_unknown_count(tmp_path, prepare):
    home = domain_bed(tmp_path / "mine", ("a", "b"), ("x", "y"))
    draw(home / "a" / "x" / "large.png", size=(20, 30))
    code, output, _ = prepare(f"folder:{home}", "--size", 12)
    assert code == 0
    assert states(output) == {"a": ["5", "?", "complete"], "b": ["4", "?", "complete"]}
    assert "a: decoded, 5 of 12 x 12" in output


def test_a_dataset_that_makes_its_images(tmp_path, prepare):
    code, output, _ = prepare("Toy", "--root", tmp_path)
    assert code == 0 and "images" in output.splitlines()[0]


# Bad input: one line, exit code 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("PCAS",), "unknown dataset 'PCAS', did you mean 'PACS'?"),
        (("PACS", "--root", "nowhere"), "--root nowhere: there is no such folder"),
        (("PACS", "--from", "nowhere.zip"), "--from nowhere.zip: no such folder or file"),
        (("PACS", "--from", "ftp://x/y.zip"), "nor an http or https address"),
        (("PACS", "--size", "0"), "--size 0: at least 1"),
        (("PACS", "--size", "big"), "invalid int value: 'big'"),
        (("PACS", "--from", "a", "--download"), "not allowed with argument"),
        ((), "the following arguments are required: name"),
        (("folder:nowhere",), "there is no folder nowhere"),
        (("PACS", "--download"), "PACS may not be fetched automatically (no formal licence"),
    ],
)
def test_bad_input_is_one_line(arguments, message, prepare, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, output, error = prepare(*arguments)
    assert code == 2 and output == ""
    assert message in error and error.startswith("error: ") and error.count("\n") == 1


def test_it_is_a_program(tmp_path):
    command = [sys.executable, "-m", "datasets.prepare", "VLCS", "--root", str(tmp_path)]
    done = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True)
    assert done.returncode == 1
    assert "VLCS is not in" in done.stdout and done.stderr == ""


# Archives and folders


def zipped(folder: Path, archive: Path, below: str = "") -> Path:
    with zipfile.ZipFile(archive, "w") as packed:
        for path in sorted(folder.rglob("*")):
            packed.write(path, Path(below) / path.relative_to(folder))
    return archive


@pytest.mark.parametrize("below", ["", "kfold", "PACS/kfold", "wrapper/PACS"])
def test_from_a_zip(tmp_path, prepare, small_pacs, below):
    archive = zipped(pacs(tmp_path / "source"), tmp_path / "PACS.zip", below)
    root = tmp_path / "data"
    code, output, _ = prepare("PACS", "--root", root, "--from", archive)
    assert code == 0 and f"unpacked PACS.zip into {root / 'PACS'}" in output
    assert archive.exists()
    assert sorted(p.name for p in root.iterdir()) == [".cache", "PACS"]
    code, output, _ = prepare("PACS", "--root", root, "--from", archive)
    assert code == 0 and "has all that PACS.zip holds already" in output


def test_dassls_archive_keeps_its_lists(tmp_path, prepare, small_pacs):
    pacs(tmp_path / "source" / "pacs" / "images")
    (tmp_path / "source" / "pacs" / "splits").mkdir()
    for part in ("train", "crossval", "test"):
        (tmp_path / f"source/pacs/splits/photo_{part}_kfold.txt").write_text("photo/dog/0.png 1\n")
    archive = tmp_path / "pacs.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(tmp_path / "source" / "pacs", "pacs")
    assert prepare("PACS", "--root", tmp_path / "data", "--from", archive)[0] == 0
    assert PACS().listing("photo", tmp_path / "data").parts["train"].tolist() == [0]


def test_archives_of_single_domains_add_up(tmp_path, prepare):
    source = domain_bed(tmp_path / "source", DomainNet10.domains, DomainNet10.classes)
    for number, domain in enumerate(DomainNet10.domains, start=1):
        archive = zipped(source / domain, tmp_path / f"{domain}.zip", domain)
        code, output, _ = prepare("DomainNet10", "--root", tmp_path, "--from", archive)
        assert output.count("complete") == number
        assert code == (0 if number == 6 else 1)


def test_from_a_folder_is_a_link(tmp_path, prepare, small_pacs):
    source = pacs(tmp_path / "somewhere" / "PACS")
    root = tmp_path / "data"
    code, output, _ = prepare("PACS", "--root", root, "--from", source.parent)
    assert code == 0 and f"linked {root / 'PACS'} to {source} (nothing was copied)" in output
    assert not (source.parent / ".cache").exists()
    assert "already" in prepare("PACS", "--root", root, "--from", source)[1]
    other = pacs(tmp_path / "other")
    code, _, error = prepare("PACS", "--root", root, "--from", other)
    assert code == 2 and "exists already: remove it to use" in error


def test_an_archive_of_something_else(tmp_path, prepare):
    archive = zipped(domain_bed(tmp_path / "x", ("a",), ("b",)), tmp_path / "x.zip")
    code, _, error = prepare("PACS", "--root", tmp_path / "data", "--from", archive)
    assert code == 2
    assert "holds no PACS: found none of the folders art_painting, cartoon" in error
    assert list((tmp_path / "data").iterdir()) == []
    text = tmp_path / "x.txt"
    text.write_text("no archive")
    code, _, error = prepare("PACS", "--root", tmp_path / "data", "--from", text)
    assert code == 2 and "neither a zip nor a tar archive" in error


@pytest.mark.parametrize(
    "name", ["../evil.png", "/tmp/evil.png", "a/../../evil.png", "..\\evil.png"]
)
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_archives_cannot_write_elsewhere(tmp_path, name, kind):
    archive = tmp_path / "deep" / f"bad.{kind}"
    archive.parent.mkdir()
    if kind == "zip":
        with zipfile.ZipFile(archive, "w") as packed:
            packed.writestr(zipfile.ZipInfo(name), b"evil")
    else:
        with tarfile.open(archive, "w") as packed:
            member = tarfile.TarInfo(name)
            member.size = 4
            packed.addfile(member, io.BytesIO(b"evil"))
    with pytest.raises(UserError, match=r"not safe to unpack: it would write to .*evil"):
        unpack(archive, tmp_path / "deep" / "target")
    assert list(tmp_path.rglob("*evil*")) == []


def test_links_in_archives_are_refused(tmp_path):
    archive = tmp_path / "bad.tar"
    with tarfile.open(archive, "w") as packed:
        member = tarfile.TarInfo("photo")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc"
        packed.addfile(member)
    with pytest.raises(UserError, match="'photo' is a link"):
        unpack(archive, tmp_path / "target")


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_cut_archives_are_damaged_and_leave_nothing(tmp_path, prepare, kind):
    source = tmp_path / "source" / "photo" / "dog"
    source.mkdir(parents=True)
    (source / "0.jpg").write_bytes(os.urandom(200_000))
    archive = tmp_path / f"PACS.{kind}"
    if kind == "zip":
        zipped(tmp_path / "source", archive)
        content = bytearray(archive.read_bytes())
        content[100_000] ^= 1  # a cut zip has no directory and is no zip at all
    else:
        with tarfile.open(archive, "w:gz") as packed:
            packed.add(tmp_path / "source", ".")
        content = archive.read_bytes()[:150_000]
    archive.write_bytes(content)
    code, _, error = prepare("PACS", "--root", tmp_path / "data", "--from", archive)
    assert code == 2 and "is damaged" in error and error.count("\n") == 1
    assert list((tmp_path / "data").iterdir()) == []


# The network


class Server(ThreadingHTTPServer):
    """Files from memory, with the faults that real servers have."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.ranges = True
        self.tag: str | None = '"one"'
        self.cut_at: int | None = None  # bytes after which the next connection dies
        self.failures: list[int] = []  # codes to answer first
        self.requests: list[tuple[str | None, int]] = []  # asked range, answered code

    def url(self, name: str, content: bytes) -> str:
        self.files[f"/{name}"] = content
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        content = server.files.get(self.path)
        asked, condition = self.headers.get("Range"), self.headers.get("If-Range")
        code, start = 200, 0
        if content is None:
            code = 404
        elif server.failures:
            code = server.failures.pop(0)
        elif asked and server.ranges and condition in (None, server.tag):
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            code = 206 if start < len(content) else 416
        server.requests.append((asked, code))
        self.send_response(code)
        if code not in (200, 206):
            total = 0 if content is None else len(content)
            self.send_header("Content-Range", f"bytes */{total}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if server.tag:
            self.send_header("ETag", server.tag)
        if code == 206:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end, server.cut_at = server.cut_at, None
        self.wfile.write(content[start:end])
        self.close_connection = True

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    running = Server()
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


CONTENT = os.urandom(300_000)
SHA256 = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


def test_fetch(server, tmp_path):
    url = server.url("file", CONTENT)
    target = fetch(url, tmp_path / "new" / "file", SHA256)
    assert target.read_bytes() == CONTENT
    assert [p.name for p in target.parent.iterdir() if not p.name.endswith(".lock")] == ["file"]
    fetch(url, target, SHA256)
    assert len(server.requests) == 1  # what is there is not fetched again


def test_a_cut_connection_is_resumed(server, tmp_path):
    url = server.url("file", CONTENT)
    server.cut_at = 100_000
    assert fetch(url, tmp_path / "file", SHA256, pause=0).read_bytes() == CONTENT
    assert server.requests == [(None, 200), ("bytes=100000-", 206)]


def test_a_killed_download_is_resumed_by_the_next_command(server, tmp_path):
    url = server.url("file", CONTENT)
    server.cut_at = 100_000
    with pytest.raises(UserError, match=r"100,000 bytes are kept, the same command continues"):
        fetch(url, tmp_path / "file", tries=1)
    assert not (tmp_path / "file").exists()
    assert fetch(url, tmp_path / "file").read_bytes() == CONTENT
    assert server.requests[-1] == ("bytes=100000-", 206)


def test_a_server_without_ranges_starts_again(server, tmp_path):
    url = server.url("file", CONTENT)
    server.ranges, server.cut_at = False, 100_000
    assert fetch(url, tmp_path / "file", SHA256, pause=0).read_bytes() == CONTENT
    assert server.requests == [(None, 200), ("bytes=100000-", 200)]


def test_a_server_without_versions_is_not_trusted_to_resume(server, tmp_path):
    url = server.url("file", CONTENT)
    server.tag, server.cut_at = None, 100_000
    assert fetch(url, tmp_path / "file", pause=0).read_bytes() == CONTENT
    assert server.requests == [(None, 200), (None, 200)]


def test_a_file_that_changed_on_the_server_is_fetched_whole(server, tmp_path):
    url = server.url("file", os.urandom(300_000))
    server.cut_at = 100_000
    with pytest.raises(UserError, match="bytes are kept"):
        fetch(url, tmp_path / "file", tries=1)
    server.url("file", CONTENT)
    server.tag = '"two"'
    assert fetch(url, tmp_path / "file", SHA256).read_bytes() == CONTENT
    assert server.requests[-1] == ("bytes=100000-", 200)


def test_a_part_that_is_already_whole_or_too_long(server, tmp_path):
    url = server.url("file", CONTENT)
    (tmp_path / "file.part").write_bytes(CONTENT)
    assert fetch(url, tmp_path / "file", SHA256, pause=0).read_bytes() == CONTENT
    assert server.requests == [("bytes=300000-", 416)]
    (tmp_path / "again.part").write_bytes(CONTENT + b"more")
    assert fetch(url, tmp_path / "again", SHA256, pause=0).read_bytes() == CONTENT


def test_a_foreign_part_is_thrown_away_when_the_checksum_tells(server, tmp_path):
    url = server.url("file", CONTENT)
    (tmp_path / "file.part").write_bytes(b"of another file")
    assert fetch(url, tmp_path / "file", SHA256, pause=0).read_bytes() == CONTENT
    assert server.requests == [("bytes=15-", 206), (None, 200)]


def test_a_wrong_checksum(server, tmp_path):
    url = server.url("file", CONTENT)
    with pytest.raises(UserError, match=f"is not the expected file .*md5:{'0' * 32}"):
        fetch(url, tmp_path / "file", f"md5:{'0' * 32}", pause=0)
    assert not (tmp_path / "file").exists() and not (tmp_path / "file.part").exists()


def test_errors_that_pass_are_retried_and_others_are_not(server, tmp_path):
    url = server.url("file", CONTENT)
    server.failures = [503, 429]
    assert fetch(url, tmp_path / "file", pause=0).read_bytes() == CONTENT
    assert len(server.requests) == 3
    with pytest.raises(UserError, match=r"cannot fetch .*/absent: HTTP 404 Not Found"):
        fetch(url.replace("/file", "/absent"), tmp_path / "absent", pause=0)
    assert len(server.requests) == 4
    server.failures = [500] * 9
    with pytest.raises(UserError, match=r"HTTP 500 .* tried 3 times"):
        fetch(url, tmp_path / "other", tries=3, pause=0)
    assert len(server.requests) == 7


def test_no_server_at_all(server, tmp_path):
    server.shutdown()
    server.server_close()
    with pytest.raises(UserError, match=r"refused, tried 2 times"):
        fetch(f"http://127.0.0.1:{server.server_port}/x", tmp_path / "x", tries=2, pause=0)


def test_from_a_url(server, tmp_path, prepare, small_pacs):
    archive = zipped(pacs(tmp_path / "source"), tmp_path / "PACS.zip")
    url = server.url("PACS.zip", archive.read_bytes())
    root = tmp_path / "data"
    code, output, _ = prepare("PACS", "--root", root, "--from", url)
    assert code == 0 and "unpacked PACS.zip" in output
    assert not (root / ".downloads" / "PACS.zip").exists()
    code, _, error = prepare("PACS", "--root", root, "--from", url.replace("PACS", "absent"))
    assert code == 2 and "HTTP 404" in error


def test_download_fetches_only_what_is_missing(server, tmp_path, prepare, monkeypatch):
    source = domain_bed(tmp_path / "source", DomainNet10.domains, DomainNet10.classes)
    offers = []
    for domain in DomainNet10.domains:
        content = zipped(source / domain, tmp_path / f"{domain}.zip", domain).read_bytes()
        url = server.url(f"{domain}.zip", content)
        checksum = f"md5:{hashlib.md5(content).hexdigest()}"
        offers.append(Download(url, f"{domain}.zip", domain, checksum))
        for part, number in (("train", 0), ("test", 1)):
            name = f"{domain}_{part}.txt"
            text = "\n".join(f"{domain}/{c}/{number}.png 0" for c in DomainNet10.classes)
            url = server.url(name, text.encode())
            offers.append(Download(url, name, f"splits/{name}"))
    monkeypatch.setattr(DomainNet10, "downloads", tuple(offers))
    root = tmp_path / "data"
    code, output, _ = prepare("DomainNet10", "--root", root, "--download")
    assert code == 0 and output.count("unpacked") == 6 and output.count("fetched") == 12
    assert len(server.requests) == 18
    assert len(open_dataset("DomainNet10").listing("real", root).parts["train"]) == 10
    code, output, _ = prepare("DomainNet10", "--root", root, "--download")
    assert code == 0 and output.count("is there already") == 18
    assert len(server.requests) == 18


def test_domainnet_offers_an_archive_and_two_lists_per_domain():
    assert len(DomainNet.downloads) == 18
    assert all(offer.checksum.startswith("md5:") for offer in DomainNet.downloads)
    assert DomainNet.downloads[0].url.endswith("/multi-source/groundtruth/clipart.zip")
    assert DomainNet.downloads[3].url.endswith("/multi-source/infograph.zip")
    assert DomainNet.downloads[1].url.endswith("/multi-source/domainnet/txt/clipart_train.txt")


@needs_real_data
def test_real_pacs_is_reported_complete(tmp_path, prepare, monkeypatch):
    monkeypatch.setenv("FEDDOMAINBED_CACHE", str(tmp_path))
    code, output, _ = prepare("PACS", "--root", REAL)
    assert code == 0
    counts = {"art_painting": "2,048", "cartoon": "2,344", "photo": "1,670", "sketch": "3,929"}
    assert states(output) == {d: [n, n, "complete"] for d, n in counts.items()}
