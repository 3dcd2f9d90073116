"""Real images, where there are some: every partition, one federated round on PACS."""

import os
from pathlib import Path

import pytest

from benchmark.execute import Place, execute
from benchmark.protocol import Settings, plan, protocols
from benchmark.results import ResultStore
from datasets.base import open_dataset
from datasets.partition import partitions
from datasets.splits import make_split

DATA = os.environ.get("FEDDOMAINBED_DATA")
pytestmark = pytest.mark.skipif(not DATA, reason="FEDDOMAINBED_DATA names no folder of images")

SMALLER = {
    "domain_mix": "domain_mix:clients=12",
    "iid": "iid:clients=12",
}


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A folder with all of PACS at 96 pixels, decoded once."""
    folder = tmp_path_factory.mktemp("real")
    (folder / "PACS").symlink_to(Path(DATA) / "pacs_96")
    return folder


@pytest.mark.parametrize("name", partitions.names())
def test_one_round_on_real_images(name, root, tmp_path):
    changes = {
        "partition": SMALLER.get(name, name),
        "backbone": "cnn_tiny_bn",
        "pretrained": "none",
        "image_size": 32,
        "seeds": (0,),
    }
    settings = Settings({}, {"rounds": 1, "local_steps": 2, "batch_size": 8, "validate_every": 2})
    (spec,) = plan(
        protocols["fedfd"],
        ["fedavg"],
        datasets=["PACS"],
        targets=["P"],
        settings=settings,
        changes=changes,
    ).specs
    result = execute(spec, ResultStore(tmp_path), Place(data=root))
    records = result.records
    test = records["part"].index("test")
    assert (records["domain"][test], records["count"][test]) == ("photo", 1670)
    rows = list(zip(records["part"], records["domain"], records["count"], strict=True))
    assert sum(count for part, _, count in rows if part == "val") == 409 + 468 + 785
    assert "photo" not in {domain for part, domain, _ in rows if part == "val"}


def test_the_split_of_real_pacs_is_domainbeds(root):
    dataset, split = open_dataset("PACS"), make_split("domainbed")
    sizes = {}
    for number, domain in enumerate(dataset.domains):
        data = dataset.load(domain, root, 96)
        inner, outer = split.cut(data, number, 0)
        sizes[domain] = (len(outer), len(inner))
        if domain == "photo":
            assert outer[:5].tolist() == [1441, 1432, 282, 669, 637]
    assert sizes == {
        "art_painting": (409, 1639),
        "cartoon": (468, 1876),
        "photo": (334, 1336),
        "sketch": (785, 3144),
    }
