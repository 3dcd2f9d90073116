"""MiniDigits: the same real domain shift on every call, whatever happens around it."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from benchmark.errors import UserError
from datasets import minidigits
from datasets.base import DomainData, datasets
from datasets.minidigits import MiniDigits, generate, sample_figure, split_sources

UPRIGHT = 32.0 * np.array([[-1, -1], [-1, 1], [1, 1], [1, -1]])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("root")


@pytest.fixture(scope="module")
def domains(root: Path) -> dict[str, DomainData]:
    return {domain: MiniDigits().load(domain, root) for domain in MiniDigits.domains}


def cache_file(root: Path, domain: str) -> Path:
    return root / f"MiniDigits-v{minidigits.VERSION}" / f"{domain}.npy"


def same(one: DomainData, other: DomainData) -> bool:
    return np.array_equal(one.images, other.images) and np.array_equal(one.labels, other.labels)


def forbid(*_) -> None:
    raise AssertionError("a whole cache must be used, not made again")


def test_is_registered_with_its_four_domains():
    assert datasets["MiniDigits"] is MiniDigits
    assert MiniDigits.domains == ("handwritten", "blended", "print", "street")
    assert MiniDigits.classes == tuple("0123456789")
    with pytest.raises(UserError, match="did you mean 'street'"):
        MiniDigits().load("streets", Path("nowhere"))


def test_shapes_types_and_balance(domains):
    for name, data in domains.items():
        assert data.images.shape == (len(data), 32, 32, 3), name
        assert data.images.dtype == np.uint8 and data.labels.dtype == np.int64
        assert 890 <= len(data) <= 900
        counts = np.bincount(data.labels)
        assert len(counts) == 10 and counts.min() >= 85 and counts.max() <= 95, name
        assert len(np.unique(data.images.reshape(len(data), -1), axis=0)) == len(data), name


def test_order_is_shuffled(domains):
    for name, data in domains.items():
        assert set(data.labels[:90]) == set(range(10)), name
        repeats = np.mean(data.labels[1:] == data.labels[:-1])
        assert 0.05 < repeats < 0.17, name  # 0 if in turn, nearly 1 if sorted


def test_images_are_mapped_read_only(domains):
    images = domains["street"].images
    assert isinstance(images, np.memmap) and images.flags.c_contiguous
    with pytest.raises(ValueError, match="read-only"):
        images[0] = 0


def test_same_in_a_fresh_root_whatever_the_global_random_state(domains, tmp_path):
    np.random.seed(123)
    random.seed(123)
    numpy_state, python_state = np.random.get_state(), random.getstate()
    for name in reversed(MiniDigits.domains):  # nor may a domain depend on those made before it
        assert same(MiniDigits().load(name, tmp_path), domains[name]), name
    assert random.getstate() == python_state
    for before, after in zip(numpy_state, np.random.get_state(), strict=True):
        assert np.array_equal(before, after)


def test_handwritten_and_blended_share_no_source(monkeypatch):
    used = []
    draw = minidigits.handwriting

    def record(indices: np.ndarray):
        used.append(indices)
        return draw(indices)

    monkeypatch.setattr(minidigits, "handwriting", record)
    target = load_digits().target
    made = [generate("handwritten"), generate("blended")]
    assert sorted(np.concatenate(used)) == list(range(1797))
    for data, indices, half in zip(made, used, split_sources(), strict=True):
        assert np.array_equal(indices, half)
        assert np.array_equal(np.bincount(data.labels), np.bincount(target[half]))
    counts = [np.bincount(target[half]) for half in split_sources()]
    assert np.abs(counts[0] - counts[1]).max() <= 1


def class_means(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """What is special about each digit: the mean image of a class, less the mean of all classes."""
    means = np.stack([images[labels == digit].mean(0).ravel() for digit in range(10)])
    return means - means.mean(0)


def test_labels_are_those_of_the_digits_shown(domains):
    digits = load_digits()
    written = class_means(*minidigits.handwriting(np.arange(len(digits.target))))
    faces = minidigits.BOOK_FACES + minidigits.STREET_FACES
    glyphs = [
        [minidigits.render(digit, face, 60, UPRIGHT) for digit in "0123456789"] for face in faces
    ]
    printed = class_means(np.concatenate(glyphs), np.tile(np.arange(10), len(faces)))
    for name, data in domains.items():
        expected = written if name in ("handwritten", "blended") else printed
        pixels = data.images.astype(np.float32)
        figure = np.abs(pixels - np.median(pixels, axis=(1, 2), keepdims=True)).mean(-1)
        likeness = np.corrcoef(class_means(figure, data.labels), expected)[:10, 10:]
        assert np.array_equal(likeness.argmax(axis=1), np.arange(10)), name


def test_every_face_draws_ten_different_digits():
    assert not set(minidigits.BOOK_FACES) & set(minidigits.STREET_FACES)
    for face in (*minidigits.BOOK_FACES, *minidigits.STREET_FACES):
        glyphs = [minidigits.render(digit, face, 60, UPRIGHT) for digit in "0123456789"]
        assert all(0.03 < glyph.mean() < 0.5 for glyph in glyphs), face
        assert len({glyph.tobytes() for glyph in glyphs}) == 10, face


def test_domains_look_like_their_namesakes(domains):
    pixels = {name: data.images.astype(np.float32) for name, data in domains.items()}
    colour = {name: np.ptp(images, axis=-1).mean() for name, images in pixels.items()}
    bright = {name: images.mean() for name, images in pixels.items()}
    rough = {name: np.abs(np.diff(images, axis=2)[:, 0]).mean() for name, images in pixels.items()}
    assert colour["handwritten"] == 0 and bright["handwritten"] < 60  # white on black
    assert rough["handwritten"] < 1 and rough["print"] < 2  # even ground, here at the upper edge
    assert rough["blended"] > 5 and rough["street"] > 3
    assert colour["blended"] > 50 and colour["print"] > 50 and 5 < colour["street"] < 40
    assert bright["print"] > bright["street"] + 20 > bright["handwritten"] + 60


def test_a_whole_cache_is_used(domains, root, monkeypatch):
    monkeypatch.setattr(minidigits, "generate", forbid)
    assert same(MiniDigits().load("print", root), domains["print"])
    assert same(MiniDigits().load("print", root, 224), domains["print"])  # one size, one cache


@pytest.mark.parametrize("damage", ["empty", "truncated", "header", "pixel", "label", "other"])
def test_a_damaged_cache_is_made_again(damage, domains, root, tmp_path):
    path, whole = cache_file(tmp_path, "print"), cache_file(root, "print").read_bytes()
    damaged = bytearray(whole)
    label_at = whole.index(domains["print"].labels.tobytes())
    if damage in ("header", "pixel", "label"):
        damaged[{"header": 30, "pixel": len(whole) // 2, "label": label_at}[damage]] ^= 1
    cut = {"empty": b"", "truncated": whole[:-1], "other": b"PK not an array"}
    path.parent.mkdir()
    path.write_bytes(cut.get(damage, bytes(damaged)))
    assert path.read_bytes() != whole
    assert same(MiniDigits().load("print", tmp_path), domains["print"])
    assert path.read_bytes() == whole
    assert list(path.parent.iterdir()) == [path]  # no temporary file stays behind


def test_several_first_users_at_once(domains, tmp_path):
    with ThreadPoolExecutor(4) as pool:
        loaded = pool.map(lambda _: MiniDigits().load("handwritten", tmp_path), range(4))
        assert all(same(data, domains["handwritten"]) for data in loaded)
    assert [path.name for path in cache_file(tmp_path, "").parent.iterdir()] == ["handwritten.npy"]


def test_sample_figure(domains, root, tmp_path):
    path = tmp_path / "figure.png"
    sample_figure(root, path)
    assert path.read_bytes().startswith(b"\x89PNG") and 10_000 < path.stat().st_size < 150_000
