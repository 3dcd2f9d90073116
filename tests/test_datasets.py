"""Datasets on disk: every layout, every spelling, and the facts about each benchmark."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import ImageFolder

from benchmark.errors import UserError
from datasets.base import datasets, open_dataset, plain
from datasets.camelyon17 import COLUMNS, patch_path
from datasets.folders import FolderDataset, OwnFolder
from datasets.layouts import SUFFIXES
from datasets.pacs import PACS
from tests.image_folders import REAL, domain_bed, draw, in_parts, needs_real_data

ON_DISK = ("Camelyon17", "DigitsDG", "DomainNet", "DomainNet10", "OfficeHome", "PACS", "VLCS")


@pytest.fixture(autouse=True)
def cache_beside_the_data(monkeypatch):
    monkeypatch.delenv("FEDDOMAINBED_CACHE", raising=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*a complete copy has")
        yield


# Facts


@pytest.mark.parametrize(
    ("name", "total", "classes"),
    [
        ("PACS", 9991, 7),
        ("VLCS", 10729, 5),
        ("OfficeHome", 15588, 65),
        ("DomainNet", 586575, 345),
        ("DigitsDG", 24000, 10),
        ("Camelyon17", 455954, 2),
    ],
)
def test_totals_and_classes_are_the_published_ones(name, total, classes):
    dataset = open_dataset(name)
    assert sum(dataset.counts.values()) == total
    assert tuple(dataset.counts) == dataset.domains
    assert len(dataset.classes) == classes


@pytest.mark.parametrize("name", ON_DISK)
def test_domains_and_classes_are_in_the_order_of_sorted_folder_names(name):
    dataset = open_dataset(name)
    assert isinstance(dataset, FolderDataset)
    assert list(dataset.domains) == sorted(dataset.domains)
    assert list(dataset.classes) == sorted(dataset.classes)
    assert len(dataset.letters) == len(set(dataset.letters)) == len(dataset.domains)
    assert len({plain(c) for c in dataset.classes}) == len(dataset.classes)
    assert dataset.citation and dataset.licence and dataset.homepage and dataset.folders


def test_domainnet10_has_the_label_ids_of_fedbn():
    assert {name: label for label, name in enumerate(open_dataset("DomainNet10").classes)} == {
        "bird": 0,
        "feather": 1,
        "headphones": 2,
        "ice_cream": 3,
        "teapot": 4,
        "tiger": 5,
        "whale": 6,
        "windmill": 7,
        "wine_glass": 8,
        "zebra": 9,
    }
    assert set(open_dataset("DomainNet10").classes) < set(open_dataset("DomainNet").classes)


@pytest.mark.parametrize(
    ("name", "text", "domain"),
    [
        ("PACS", "A", "art_painting"),
        ("PACS", "Art painting", "art_painting"),
        ("VLCS", "SUN", "SUN09"),
        ("VLCS", "PASCAL", "VOC2007"),
        ("OfficeHome", "Real-World", "Real World"),
        ("DigitsDG", "MNIST-M", "mnist_m"),
        ("DomainNet", "Q", "quickdraw"),
        ("Camelyon17", "Hospital 1", "center_0"),
        ("Camelyon17", "H5", "center_4"),
    ],
)
def test_domains_are_found_by_letter_and_by_the_papers_names(name, text, domain):
    assert open_dataset(name).find_domain(text) == domain


def test_an_unknown_domain_is_one_line():
    with pytest.raises(UserError, match="unknown domain of PACS 'skech', did you mean 'sketch'"):
        open_dataset("PACS").find_domain("skech")
    with pytest.raises(UserError, match="unknown domain of PACS"):
        open_dataset("PACS").labels("clipart", Path("nowhere"))


# DomainBed's layout


def test_samples_come_in_torchvisions_order(tmp_path):
    home = tmp_path / "PACS"
    domain_bed(home, PACS.domains, PACS.classes, per_class=1)
    for name in ("b.JPG", "B.jpeg", "a10.png", "a2.PNG", "deep/a.bmp", "deep-er/a.png", "z.Bmp"):
        draw(home / "photo" / "house" / name)
    (home / "photo" / "house" / "notes.txt").write_text("no image")
    (home / "photo" / "house" / "._0.png").write_bytes(b"a Mac's shadow file")
    listing = PACS().listing("photo", tmp_path)
    theirs = ImageFolder(home / "photo", is_valid_file=lambda p: "._" not in p and good(p)).samples
    assert [str(home / file) for file in listing.files] == [path for path, _ in theirs]
    assert listing.labels.tolist() == [label for _, label in theirs]
    assert len(listing) == 7 + 7


def good(path: str) -> bool:
    return path.lower().endswith(SUFFIXES)


def test_images_and_labels_belong_together(tmp_path):
    domain_bed(tmp_path / "PACS", PACS.domains, PACS.classes, per_class=3)
    data = PACS().load("cartoon", tmp_path, 32)
    assert data.images.shape == (21, 8, 8, 3) and data.images.dtype == np.uint8
    assert data.labels.dtype == np.int64
    assert data.labels.tolist() == [label for label in range(7) for _ in range(3)]
    assert data.images[:, 0, 0, 0].tolist() == list(range(21, 42))
    assert data.parts == {}


@pytest.mark.parametrize("folder", ["PACS", "pacs", "pacs_96", "PACS/kfold", "pacs/images", "."])
def test_the_home_is_found_under_its_usual_names(tmp_path, folder):
    domain_bed(tmp_path / folder, PACS.domains, PACS.classes, per_class=1)
    assert PACS().find_home(tmp_path) == tmp_path / folder
    assert len(PACS().labels("sketch", tmp_path)) == 7


def test_folders_are_tried_in_the_order_of_the_class(tmp_path):
    domain_bed(tmp_path / "pacs_mini", PACS.domains, PACS.classes, per_class=1)
    domain_bed(tmp_path / "pacs_96", PACS.domains, PACS.classes, per_class=2)
    assert len(PACS().labels("photo", tmp_path)) == 14
    (tmp_path / "PACS").symlink_to(tmp_path / "pacs_mini")
    assert len(PACS().labels("photo", tmp_path)) == 7


@pytest.mark.parametrize("real", ["Real World", "RealWorld", "real_world", "Real", "real-world"])
def test_spellings_of_domains_and_classes(tmp_path, real):
    dataset = open_dataset("OfficeHome")
    classes = [name.lower().replace("_", " ") for name in dataset.classes]
    home = domain_bed(tmp_path / "office_home", ("art", "clipart", "product", real), classes, 1)
    draw(home / real / "tv" / "more.png")
    labels = dataset.labels("Real World", tmp_path)
    assert np.bincount(labels)[dataset.classes.index("TV")] == 2  # not where lower case sorts it
    assert len(labels) == 66


def test_labels_need_no_readable_image(tmp_path):
    domain_bed(tmp_path / "PACS", PACS.domains, PACS.classes, per_class=1)
    for path in (tmp_path / "PACS").rglob("*.png"):
        path.write_bytes(b"not an image")
    assert PACS().labels("photo", tmp_path).tolist() == list(range(7))


# Dassl's layouts


def test_digits_dg_parts(tmp_path):
    dataset = open_dataset("DigitsDG")
    in_parts(tmp_path / "digits_dg", dataset.domains, dataset.classes, {"train": 4, "val": 1})
    data = dataset.load("mnist_m", tmp_path, 32)
    assert np.bincount(data.labels).tolist() == [5] * 10
    assert {part: len(rows) for part, rows in data.parts.items()} == {"train": 40, "val": 10}
    listing = dataset.listing("mnist_m", tmp_path)
    assert all("/val/" in listing.files[row] for row in data.parts["val"])
    assert all("/train/" in listing.files[row] for row in data.parts["train"])


def test_vlcs_of_dassl_has_numbered_classes_and_three_parts(tmp_path):
    dataset = open_dataset("VLCS")
    counts = {"train": 3, "crossval": 1, "test": 2, "full": 6}
    in_parts(tmp_path / "VLCS", ("CALTECH", "LABELME", "PASCAL", "SUN"), "01234", counts)
    data = dataset.load("VOC2007", tmp_path, 32)
    assert np.bincount(data.labels).tolist() == [6] * 5  # `full` repeats the others
    assert {p: len(rows) for p, rows in data.parts.items()} == {"train": 15, "val": 5, "test": 10}
    assert sorted(np.concatenate(list(data.parts.values()))) == list(range(30))


def write_lists(folder: Path, domain: str, names: dict[str, list[str]], first_label: int = 1):
    folder.mkdir(parents=True, exist_ok=True)
    for part, files in names.items():
        lines = [f"{f} {PACS.classes.index(f.split('/')[1]) + first_label}" for f in files]
        (folder / f"{domain}_{part}_kfold.txt").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("place", ["PACS/splits", "PACS", "pacs_splits"])
def test_pacs_lists_count_labels_from_one(tmp_path, place):
    domain_bed(tmp_path / "PACS", PACS.domains, PACS.classes, per_class=3)
    files = [f"photo/{name}/{k}.jpg" for name in PACS.classes for k in range(3)]
    names = {"train": files[::-1][7:], "crossval": files[::-1][:7], "test": files}
    write_lists(tmp_path / place, "photo", names)
    data = PACS().load("photo", tmp_path, 32)
    assert len(data) == 21
    assert data.parts["train"].tolist() == list(range(14))
    assert data.parts["val"].tolist() == list(range(14, 21))
    assert data.parts["test"].tolist() == list(range(21))
    assert PACS().load("sketch", tmp_path, 32).parts == {}


def test_dassls_own_pacs_archive(tmp_path):
    domain_bed(tmp_path / "pacs" / "images", PACS.domains, PACS.classes, per_class=1)
    files = [f"photo/{name}/0.png" for name in PACS.classes]
    write_lists(
        tmp_path / "pacs" / "splits", "photo", dict.fromkeys(("train", "crossval", "test"), files)
    )
    assert len(PACS().listing("photo", tmp_path).parts["train"]) == 7


def test_labels_of_another_numbering_are_refused(tmp_path):
    domain_bed(tmp_path / "PACS", PACS.domains, PACS.classes, per_class=1)
    names = {key: ["photo/horse/0.png"] for key in ("train", "crossval", "test")}
    write_lists(tmp_path / "PACS", "photo", names, first_label=0)
    with pytest.raises(UserError, match=r"photo/horse/0.png the label 4: not PACS's"):
        PACS().labels("photo", tmp_path)


def test_a_broken_list_is_named_with_its_line(tmp_path):
    domain_bed(tmp_path / "PACS", PACS.domains, PACS.classes, per_class=1)
    names = {key: ["photo/dog/0.png"] for key in ("train", "crossval", "test")}
    write_lists(tmp_path / "PACS", "photo", names)
    (tmp_path / "PACS" / "photo_test_kfold.txt").write_text("photo/dog/0.png 1\nphoto/dog/1.png\n")
    with pytest.raises(UserError, match=r"photo_test_kfold.txt, line 2: expected 'path label'"):
        PACS().labels("photo", tmp_path)


def test_the_sketch_of_the_word_error_is_a_sample_but_in_no_part(tmp_path):
    domain_bed(tmp_path / "PACS", PACS.domains, PACS.classes, per_class=1)
    draw(tmp_path / "PACS/sketch/dog/n02103406_4068-1.png")
    files = ["sketch/dog/0.png", "sketch/dog/n02103406_4068-1.png"]
    write_lists(tmp_path / "PACS", "sketch", dict.fromkeys(("train", "crossval", "test"), files))
    listing = PACS().listing("sketch", tmp_path)
    assert listing.files[1] == "sketch/dog/n02103406_4068-1.png"
    assert listing.parts["train"].tolist() == listing.parts["test"].tolist() == [0]


# DomainNet


def domainnet(tmp_path: Path, name: str = "DomainNet10") -> Path:
    dataset = open_dataset(name)
    return domain_bed(tmp_path / "domain_net", dataset.domains, dataset.classes, per_class=3)


def test_domainnet_reads_all_images_without_lists(tmp_path):
    domainnet(tmp_path)
    draw(tmp_path / "domain_net" / "real" / "anvil" / "0.png")  # not one of the ten
    dataset = open_dataset("DomainNet10")
    assert np.bincount(dataset.labels("real", tmp_path)).tolist() == [3] * 10


def test_domainnets_lists_leave_duplicates_out_and_make_parts(tmp_path):
    home = domainnet(tmp_path)
    (home / "splits").mkdir()
    train = [f"real/{c}/{k}.png 311" for c in ("bird", "zebra") for k in (2, 0)]
    (home / "splits" / "real_train.txt").write_text("\n".join([*train, "real/anvil/9.png 7"]))
    (home / "splits" / "real_test.txt").write_text("real/tiger/1.png 5\n")
    data = open_dataset("DomainNet10").load("real", tmp_path, 32)
    assert data.labels.tolist() == [0, 0, 5, 9, 9]
    assert {part: rows.tolist() for part, rows in data.parts.items()} == {
        "train": [0, 1, 3, 4],
        "val": [2],
        "test": [2],
    }


def test_a_listed_image_of_domainnet_that_is_missing_is_named(tmp_path):
    home = domainnet(tmp_path)
    for part in ("train", "test"):
        (home / f"real_{part}.txt").write_text("real/bird/0.png 0\nreal/bird/77.png 0\n")
    with pytest.raises(UserError, match=r"1 images of .*real_train.txt are missing.*bird/77.png"):
        open_dataset("DomainNet10").labels("real", tmp_path)


# Camelyon17


def write_camelyon(home: Path, rows: list[dict]) -> None:
    home.mkdir(parents=True, exist_ok=True)
    lines = [",".join(("", *COLUMNS, "slide"))]
    for index, row in enumerate(rows):
        lines.append(",".join(str(v) for v in (index, *(row[c] for c in COLUMNS), 3)))
        file = patch_path(row["patient"], *(str(row[c]) for c in ("node", "x_coord", "y_coord")))
        draw(home / file, shade=index)
    (home / "metadata.csv").write_text("\n".join(lines) + "\n")


def patch(patient: str, center: int, tumor: int, split: int, x: int) -> dict:
    keys = ("patient", "node", "x_coord", "y_coord", "tumor", "center", "split")
    return dict(zip(keys, (patient, 2, x, 7808, tumor, center, split), strict=True))


def test_camelyon17_paths_have_three_digit_patients(tmp_path):
    assert patch_path("004", "4", "3328", "21792") == (
        "patches/patient_004_node_4/patch_patient_004_node_4_x_3328_y_21792.png"
    )
    assert patch_path("4", "4", "3328", "21792") == patch_path("004", "4", "3328", "21792")
    rows = [patch("004", 0, 1, 0, 10), patch("020", 1, 0, 0, 11), patch("009", 0, 0, 1, 12)]
    rows += [patch("042", 2, 1, 1, 13), patch("010", 0, 1, 0, 5)]
    write_camelyon(tmp_path / "camelyon17_v1.0", rows)
    dataset = open_dataset("Camelyon17")
    files = dataset.listing("center_0", tmp_path).files
    assert files[0] == "patches/patient_004_node_2/patch_patient_004_node_2_x_10_y_7808.png"
    data = dataset.load("center_0", tmp_path, 96)
    assert data.labels.tolist() == [1, 0, 1]  # the order of the table
    assert data.images[:, 0, 0, 0].tolist() == [0, 2, 4]
    assert {p: rows.tolist() for p, rows in data.parts.items()} == {"train": [0, 2], "val": [1]}
    assert list(dataset.listing("center_1", tmp_path).parts) == ["val"]
    assert list(dataset.listing("center_2", tmp_path).parts) == ["test"]
    with pytest.raises(UserError, match="no patches of center 3"):
        dataset.labels("center_3", tmp_path)


def test_camelyon17_centre_counts():
    counts = open_dataset("Camelyon17").counts
    assert list(counts.values()) == [59436, 34904, 85054, 129838, 146722]
    assert counts["center_1"] == 34904 and counts["center_2"] == 85054  # WILDS's val and test
    assert counts["center_0"] + counts["center_3"] + counts["center_4"] == 302436 + 33560


def test_a_missing_patch_and_a_wrong_table_are_named(tmp_path):
    home = tmp_path / "camelyon17"
    write_camelyon(home, [patch("004", 0, 1, 0, 10), patch("004", 0, 1, 0, 11)])
    gone = home / patch_path("004", "2", "11", "7808")
    gone.unlink()
    with pytest.raises(UserError, match=str(gone)):
        open_dataset("Camelyon17").load("center_0", tmp_path, 96)
    (home / "metadata.csv").write_text(",patient,node\n0,004,1\n")
    with pytest.raises(UserError, match="no column 'x_coord'"):
        open_dataset("Camelyon17").labels("center_0", tmp_path)


# What can be wrong


def test_a_missing_class_folder_is_named(tmp_path):
    home = domain_bed(tmp_path / "PACS", PACS.domains, PACS.classes[:-1], per_class=1)
    with pytest.raises(UserError, match=f"missing class folder {home / 'photo' / 'person'}"):
        PACS().labels("photo", tmp_path)


def test_an_unknown_layout_is_described(tmp_path):
    draw(tmp_path / "PACS" / "photo" / "batch_1" / "0.png")
    with pytest.raises(
        UserError, match=r"layout of .*photo: expected class folders \(dog, .*batch_1"
    ):
        PACS().labels("photo", tmp_path)


def test_a_missing_domain_and_a_missing_dataset_say_what_to_do(tmp_path):
    with pytest.raises(UserError, match=r"PACS is not in .*datasets.prepare PACS .*--from ARCHIVE"):
        PACS().labels("photo", tmp_path)
    with pytest.raises(UserError, match=r"DomainNet is not in .*--download"):
        open_dataset("DomainNet").labels("real", tmp_path)
    domain_bed(tmp_path / "PACS", PACS.domains[:2], PACS.classes, per_class=1)
    with pytest.raises(UserError, match="no folder 'photo' in"):
        PACS().labels("photo", tmp_path)


def test_folders_without_images(tmp_path):
    for name in PACS.classes:
        (tmp_path / "PACS" / "photo" / name).mkdir(parents=True)
    with pytest.raises(UserError, match="holds no images"):
        PACS().labels("photo", tmp_path)


def test_a_wrong_count_warns_once_with_both_numbers(tmp_path):
    domain_bed(tmp_path / "PACS", PACS.domains, PACS.classes, per_class=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            PACS().load("photo", tmp_path, 32)
    assert len(caught) == 1
    assert "PACS photo has 7 images" in str(caught[0].message)
    assert "1,670" in str(caught[0].message)


# A user's own folder


def test_own_folder(tmp_path):
    domain_bed(tmp_path / "mine", ("winter", "summer", "fall"), ("b", "a-b", "ab"), per_class=2)
    (tmp_path / "mine" / ".hidden").mkdir()
    dataset = open_dataset(f"folder:{tmp_path / 'mine'}")
    assert isinstance(dataset, OwnFolder)
    assert dataset.name == f"folder:{tmp_path / 'mine'}" and dataset.name not in datasets
    assert dataset.domains == ("fall", "summer", "winter")
    assert dataset.classes == ("a-b", "ab", "b")
    data = dataset.load("winter", tmp_path / "elsewhere", 32)
    assert data.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert data.images[:, 0, 0, 0].tolist() == [2, 3, 4, 5, 0, 1]
    assert not (tmp_path / "elsewhere").exists()
    again = open_dataset(f"folder:{tmp_path / 'mine'}")  # its cache is no domain
    assert again.domains == dataset.domains


def test_own_folder_with_parts(tmp_path):
    in_parts(tmp_path, ("one", "two"), ("cat", "dog"), {"train": 2, "val": 1})
    dataset = open_dataset(f"folder:{tmp_path}")
    assert dataset.classes == ("cat", "dog")
    assert len(dataset.listing("two", tmp_path).parts["val"]) == 2


def test_own_folder_names_the_missing_class_folder(tmp_path):
    domain_bed(tmp_path, ("one", "two"), ("cat", "dog"))
    draw(tmp_path / "two" / "emu" / "0.png")
    with pytest.raises(UserError, match=f"missing class folder {tmp_path / 'one' / 'emu'}"):
        open_dataset(f"folder:{tmp_path}")


@pytest.mark.parametrize(
    ("folders", "message"),
    [((), "two or more domain"), (("a/x",), "two or more"), (("a", "b"), "has no class folders")],
)
def test_own_folder_of_another_shape(tmp_path, folders, message):
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(UserError, match=message):
        open_dataset(f"folder:{tmp_path}")
    with pytest.raises(UserError, match="there is no folder"):
        open_dataset(f"folder:{tmp_path / 'nowhere'}")


# Real data


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("decoded")


@pytest.fixture
def real(shared_cache, monkeypatch) -> Path:
    monkeypatch.setenv("FEDDOMAINBED_CACHE", str(shared_cache))
    return Path(REAL)


@needs_real_data
def test_real_pacs_is_complete(real):
    dataset = open_dataset("PACS")
    expected = {"photo": 1670, "art_painting": 2048, "cartoon": 2344, "sketch": 3929}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for domain, count in expected.items():
            data = dataset.load(domain, real, 96)
            assert data.images.shape == (count, 96, 96, 3)
            assert np.array_equal(data.labels, dataset.labels(domain, real))
    listing = dataset.listing("sketch", real)
    data = dataset.load("sketch", real, 96)
    for row in (0, 1234, 3928):
        with Image.open(listing.home / listing.files[row]) as image:
            assert np.array_equal(data.images[row], np.asarray(image.convert("RGB")))


@needs_real_data
def test_real_lists_cover_every_domain_with_labels_from_one(real):
    dataset = open_dataset("PACS")
    sizes = {"photo": (1499, 171), "art_painting": (1840, 208), "cartoon": (2107, 237)}
    sizes["sketch"] = (3530, 398)  # without the sketch of the word ERROR
    for domain, (train, val) in sizes.items():
        listing = dataset.listing(domain, real)
        parts = listing.parts
        assert (len(parts["train"]), len(parts["val"])) == (train, val)
        assert not set(parts["train"]) & set(parts["val"])
        union = sorted({*parts["train"], *parts["val"]})
        assert union == parts["test"].tolist()
        assert len(listing) - len(union) == (1 if domain == "sketch" else 0)


@needs_real_data
def test_real_pacs_mini_loads_with_a_warning(real, tmp_path):
    (tmp_path / "PACS").symlink_to(real / "pacs_mini")
    dataset = open_dataset("PACS")
    for domain in dataset.domains:
        with pytest.warns(UserWarning, match="has 420 images in .* a complete copy has"):
            data = dataset.load(domain, tmp_path, 224)
        assert data.images.shape == (420, 227, 227, 3)
        assert np.bincount(data.labels).tolist() == [60] * 7


@needs_real_data
def test_real_digits_dg(real):
    dataset = open_dataset("DigitsDG")
    for domain in dataset.domains:
        data = dataset.load(domain, real, 32)
        assert data.images.shape == (6000, 32, 32, 3)
        assert np.bincount(data.labels).tolist() == [600] * 10
        assert (len(data.parts["train"]), len(data.parts["val"])) == (4800, 1200)


@needs_real_data
def test_real_data_is_left_as_it_is(real):
    open_dataset("PACS").load("photo", real, 96)
    assert ".cache" not in os.listdir(real)
