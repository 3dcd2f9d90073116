"""The cache: pixels are right, stale or damaged ones never used, work shared and continued."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.transforms import Resize

from benchmark.errors import UserError
from datasets import pixels
from datasets.base import open_dataset
from datasets.cache import find_decoded, fingerprint, may_write, place_for, probe_size
from datasets.pixels import DamagedImages, build, read
from tests.image_folders import domain_bed, draw

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def cache_beside_the_data(monkeypatch):
    monkeypatch.delenv("FEDDOMAINBED_CACHE", raising=False)


@pytest.fixture
def home(tmp_path) -> Path:
    """Two domains of two classes, 20 pictures each, all 8 x 8 (192 bytes)."""
    return domain_bed(tmp_path / "mine", ("a", "b"), ("x", "y"), per_class=10)


@pytest.fixture
def tiny_chunks(monkeypatch):
    monkeypatch.setattr(pixels, "CHUNK_BYTES", 3 * 192)


@pytest.fixture
def decodings(monkeypatch) -> list[Path]:
    """The files that are decoded during a test."""
    seen = []
    original = pixels.decode

    def decode(path, shape, resize):
        seen.append(path)
        return original(path, shape, resize)

    monkeypatch.setattr(pixels, "decode", decode)
    return seen


def load(home: Path, domain: str = "a", size: int = 32) -> np.ndarray:
    return open_dataset(f"folder:{home}").load(domain, home, size).images


def stored(home: Path) -> list[str]:
    folder = home / ".cache" / "feddomainbed"
    return sorted(path.name for path in folder.rglob("*.npy"))


# What is stored


def test_each_image_is_decoded_once_and_memory_mapped(home, decodings):
    first = load(home)
    assert len(decodings) == 20
    second = load(home)
    assert len(decodings) == 20
    assert isinstance(second, np.memmap) and not second.flags.writeable
    assert first[:, 0, 0, 0].tolist() == list(range(20))
    assert np.array_equal(first, second)


def test_images_of_one_size_keep_it_whatever_size_is_asked_for(home, decodings):
    assert load(home, size=32).shape == load(home, size=64).shape == (20, 8, 8, 3)
    assert len(decodings) == 20
    assert len(stored(home)) == 1


def test_images_of_several_sizes_are_resized_as_torchvision_does(home):
    rng = np.random.default_rng(0)
    odd = home / "a" / "x" / "odd.png"
    Image.fromarray(rng.integers(0, 256, (41, 23, 3), dtype=np.uint8)).save(odd)
    images = load(home, size=16)
    assert images.shape == (21, 16, 16, 3)
    listing = open_dataset(f"folder:{home}").listing("a", home)
    row = listing.files.index("a/x/odd.png")
    with Image.open(odd) as image:
        assert np.array_equal(images[row], np.asarray(Resize((16, 16))(image)))
    assert load(home, size=24).shape == (21, 24, 24, 3)
    assert len(stored(home)) == 2


def test_one_rule_for_all_domains_so_that_batches_may_mix_them(home):
    draw(home / "b" / "x" / "large.png", size=(9, 9))
    assert load(home, "a", size=16).shape == (20, 16, 16, 3)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "1", "CMYK"])
def test_every_mode_becomes_rgb(home, mode):
    suffix = "jpg" if mode == "CMYK" else "png"
    path = home / "a" / "x" / f"0odd.{suffix}"
    Image.linear_gradient("L").resize((8, 8)).convert("RGB").convert(mode).save(path)
    with Image.open(path) as image:
        assert image.mode == mode
        expected = np.asarray(image.convert("RGB"))
    row = open_dataset(f"folder:{home}").listing("a", home).files.index(f"a/x/{path.name}")
    assert np.array_equal(load(home)[row], expected)


def test_a_changed_source_is_decoded_anew(home, decodings):
    load(home)
    draw(home / "a" / "x" / "3.png", shade=250)
    os.utime(home / "a" / "x" / "3.png", ns=(1, 1))
    assert load(home)[3, 0, 0, 0] == 250
    draw(home / "a" / "x" / "99.png", shade=99)
    assert len(load(home)) == 21
    (home / "a" / "x" / "0.png").rename(home / "a" / "x" / "zero.png")
    assert load(home)[-1 - 10, 0, 0, 0] == 0
    assert len(decodings) == 20 + 20 + 21 + 21


def test_the_digest_sees_path_size_and_time(home):
    def digest() -> str:
        return fingerprint(open_dataset(f"folder:{home}").listing("a", home))

    path, before = home / "a" / "x" / "0.png", digest()
    status = path.stat()
    assert digest() == before
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert digest() != before
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert digest() == before
    path.rename(path.with_name("00.png"))
    assert digest() != before


# Damage


@pytest.mark.parametrize("damage", ["truncated", "longer", "header", "pixel", "empty", "checksum"])
def test_a_damaged_cache_is_rebuilt(home, damage, decodings):
    expected = np.array(load(home))
    (path,) = (home / ".cache").rglob("*.npy")
    content = bytearray(path.read_bytes())
    if damage == "truncated":
        content = content[:-100]
    elif damage == "longer":
        content += b"1234"
    elif damage == "header":
        content[10:30] = bytes(20)
    elif damage == "pixel":
        content[1000] ^= 1
    elif damage == "empty":
        content = b""
    else:
        content[-1] ^= 1
    path.write_bytes(content)
    assert np.array_equal(load(home), expected)
    assert len(decodings) == 40


def test_a_thorough_check_reads_every_chunk(home, monkeypatch, tiny_chunks):
    monkeypatch.setattr(pixels, "SAMPLED_CHUNKS", 2)
    load(home)
    (path,) = (home / ".cache").rglob("*.npy")
    content = bytearray(path.read_bytes())
    content[128 + 4 * 192] ^= 1  # the second of seven chunks, not in the sample
    path.write_bytes(content)
    assert read(path, 20) is not None
    assert read(path, 20, thorough=True) is None
    assert read(path, 19) is None


def test_truncated_and_foreign_files_are_named(home):
    rng = np.random.default_rng(0)
    broken, foreign = home / "a" / "x" / "5.png", home / "a" / "y" / "7.png"
    Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(broken)
    broken.write_bytes(broken.read_bytes()[:-90])
    foreign.write_text("<html>404</html>")
    with pytest.raises(DamagedImages, match=f"damaged image {broken} .* and 1 more") as caught:
        load(home)
    assert isinstance(caught.value, UserError) and "\n" not in str(caught.value)
    assert caught.value.paths == [broken, foreign]
    assert stored(home) == []  # the domain never becomes smaller
    draw(broken)
    draw(foreign)
    assert len(load(home)) == 20


def test_a_truncated_jpeg_is_named(home):
    path = home / "a" / "x" / "photo.jpg"
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[:2000])
    with pytest.raises(UserError, match=r"photo.jpg .*truncated"):
        load(home)


def test_sizes_are_probed_only_up_to_the_first_difference(home, monkeypatch):
    draw(home / "a" / "x" / "1.png", size=(9, 8))
    opened = []
    original = Image.open
    monkeypatch.setattr(Image, "open", lambda path: opened.append(path) or original(path))
    dataset = open_dataset(f"folder:{home}")
    assert probe_size(dataset.all_listings(home)) is None
    assert len(opened) == 2


# Interruption and company


def test_an_interrupted_decoding_continues(home, monkeypatch, tiny_chunks, decodings):
    counted = pixels.decode

    def interrupted(path, shape, resize):
        if len(decodings) == 14:
            raise KeyboardInterrupt
        return counted(path, shape, resize)

    monkeypatch.setattr(pixels, "decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load(home)
    assert stored(home) == []
    monkeypatch.setattr(pixels, "decode", counted)
    images = load(home)
    assert images[:, 0, 0, 0].tolist() == list(range(20))
    assert 20 <= len(decodings) <= 20 + 2  # of a chunk of three, at most two were lost
    assert [p for p in (home / ".cache").rglob("*") if ".partial" in p.name] == []


def test_progress_counts_every_image_once(home, tiny_chunks, tmp_path):
    listing = open_dataset(f"folder:{home}").listing("a", home)
    steps = []
    build(listing, tmp_path / "a-0-native.npy", (8, 8), resize=False, progress=steps.append)
    assert sum(steps) == 20 and len(steps) == 7
    assert read(tmp_path / "a-0-native.npy", 20) is not None


def test_a_damaged_chunk_of_an_earlier_attempt_is_made_again(home, tiny_chunks, tmp_path):
    listing = open_dataset(f"folder:{home}").listing("a", home)
    partial = tmp_path / ".a-0-native.npy.partial"
    partial.mkdir()
    (partial / "000000003").write_bytes(b"\0" * (3 * 192 + 4))
    (partial / "000000006").write_bytes(b"")
    build(listing, tmp_path / "a-0-native.npy", (8, 8), resize=False)
    assert read(tmp_path / "a-0-native.npy", 20)[:, 0, 0, 0].tolist() == list(range(20))


def test_leftovers_of_changed_sources_are_removed(home, tmp_path):
    listing = open_dataset(f"folder:{home}").listing("a", home)
    old, other = tmp_path / ".a-1-native.npy.partial", tmp_path / ".a-b-1-native.npy.partial"
    old.mkdir()
    other.mkdir()
    half = tmp_path / ".a-0-native.npy.123.tmp"
    half.write_bytes(b"of a killed process")
    build(listing, tmp_path / "a-0-native.npy", (8, 8), resize=False)
    assert not old.exists() and not half.exists() and other.exists()


COMPANION = """
import sys, time
from datasets import pixels
from datasets.base import open_dataset
pixels.CHUNK_BYTES = 2000
decode = pixels.decode
pixels.decode = lambda *arguments: time.sleep(0.0005) or decode(*arguments)
images = open_dataset("folder:" + sys.argv[1]).load("a", sys.argv[1], 32).images
print(images[:, 0, 0, 0].tolist() == [k % 256 for k in range(600)])
"""


def test_two_processes_may_decode_the_same_domain_at_once(tmp_path):
    home = domain_bed(tmp_path / "mine", ("a", "b"), ("x", "y"), per_class=1)
    for k in range(600):
        draw(home / "a" / "x" / f"{k:03d}.png", k)
    for path in (home / "a").rglob("?.png"):
        path.unlink()
    command = [sys.executable, "-c", COMPANION, str(home)]
    both = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in both:
        output, complaint = process.communicate(timeout=60)
        assert output.decode().strip() == "True", complaint.decode()
    assert len(stored(home)) == 1
    names = [p.name for p in (home / ".cache" / "feddomainbed").rglob("*") if p.is_file()]
    assert len(names) == 2  # the pixels, and the note on their size


# Where it is


def test_a_read_only_root_is_left_alone(home, tmp_path, monkeypatch):
    elsewhere = tmp_path / "home of the user"
    monkeypatch.setenv("HOME", str(elsewhere))
    home.chmod(0o555)
    try:
        assert not may_write(home)
        images = load(home)
    finally:
        home.chmod(0o755)
    assert not (home / ".cache").exists()
    assert Path(images.filename).is_relative_to(elsewhere / ".cache" / "feddomainbed")


def test_the_environment_names_another_folder(home, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDDOMAINBED_CACHE", str(tmp_path / "fast"))
    assert Path(load(home).filename).is_relative_to(tmp_path / "fast")
    assert not (home / ".cache").exists()


def test_what_a_colleague_has_decoded_is_used(home, tmp_path, monkeypatch, decodings):
    load(home)
    monkeypatch.setenv("FEDDOMAINBED_CACHE", str(tmp_path / "fast"))
    load(home)
    assert len(decodings) == 20
    dataset = open_dataset(f"folder:{home}")
    place = place_for(dataset.name, "a", home)
    assert find_decoded(dataset.listing("a", home), place, 32) is not None


def test_colleagues_may_read_it(home):
    mask = os.umask(0o022)
    try:
        path = Path(load(home).filename)
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_cache_that_cannot_be_written_is_one_line(home, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("FEDDOMAINBED_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"cannot write to the cache .*FEDDOMAINBED_CACHE"):
        load(home)
