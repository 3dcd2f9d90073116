"""Partitions: what holds for all, what each promises, and the command line that shows them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import datasets.partitions_dirichlet as dirichlet
from benchmark.errors import UserError
from datasets.base import Dataset, DomainData
from datasets.base import datasets as dataset_registry
from datasets.folders import FolderDataset
from datasets.partition import Source, canonical_partition, divide, fingerprint, make_partition
from datasets.partition import partitions as registry
from datasets.partition_counts import deal, validation_counts, whole_counts
from datasets.partition_report import FORMATS, main, read_sources
from datasets.splits import make_split

# Settings that fit small data; a rule that is not named here is tested with its defaults.
SMALL = {
    "single_domain_k": "single_domain_k:clients=3",
    "dirichlet_domain": "dirichlet_domain:clients=4,min_samples=2",
    "dirichlet_label": "dirichlet_label:clients=3,min_samples=2",
    "iid": "iid:clients=5",
    "domain_mix": "domain_mix:clients=5",
}
EVERY = [SMALL.get(name, name) for name in registry.names()]
WITHOUT_CHANCE = {"single_domain", "pooled"}
DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
PACS = dict(zip(DOMAINS, (2048, 2344, 1670, 3929), strict=True))
few = settings(max_examples=12, deadline=None, derandomize=True)


def make_sources(sizes, classes=7, seed=0, target=1, fraction=0.2):
    """Domains of the given sizes, numbered as if domain `target` had been left out."""
    rng = np.random.default_rng(seed)
    numbers = [k for k in range(len(sizes) + 1) if k != target]
    sources = []
    for number, size in zip(numbers, sizes, strict=True):
        rows, held = rng.permutation(size), int(size * fraction)
        labels = rng.integers(0, classes, size)
        sources.append(Source(number, f"domain{number}", labels, rows[held:], rows[:held]))
    return sources


def pacs_sources(target):
    """PACS's sizes, split as DomainBed does."""
    rng, split, sources = np.random.default_rng(7), make_split("domainbed"), []
    for number, name in enumerate(DOMAINS):
        if name != target:
            labels = rng.integers(0, 7, PACS[name])
            data = DomainData(np.empty((len(labels), 0, 0, 3), np.uint8), labels)
            sources.append(Source(number, name, labels, *split.cut(data, number, 0)))
    return sources


def by_domain(clients, sources, part="train"):
    """Counts (clients, sources)."""
    shards = [getattr(client, part) for client in clients]
    return np.array([[(shard.domains == s.domain).sum() for s in sources] for shard in shards])


def by_class(client, source, classes=7):
    rows = client.train.rows[client.train.domains == source.domain]
    return np.bincount(source.labels[rows], minlength=classes)


some_sources = st.builds(
    make_sources,
    st.lists(st.integers(40, 120), min_size=2, max_size=5),
    classes=st.integers(1, 6),
    seed=st.integers(0, 2**32),
    target=st.integers(0, 1),
    fraction=st.sampled_from([0.0, 0.1, 0.3]),
)


@pytest.mark.parametrize("expression", EVERY)
@few
@given(sources=some_sources, seed=st.integers(0, 2**32))
def test_every_source_row_is_held_exactly_once_and_nothing_else(expression, sources, seed):
    clients = divide(expression, sources, seed)
    assert {int(d) for c in clients for d in np.r_[c.train.domains, c.val.domains]} <= {
        s.domain for s in sources
    }
    for source in sources:
        for part in ("train", "val"):
            shards = [getattr(client, part) for client in clients]
            rows = np.concatenate([shard.rows[shard.domains == source.domain] for shard in shards])
            assert np.array_equal(np.sort(rows), np.sort(getattr(source, part)))


@pytest.mark.parametrize("expression", EVERY)
@few
@given(sources=some_sources, seed=st.integers(0, 2**32))
def test_clients_are_as_many_as_announced_named_apart_and_not_empty(expression, sources, seed):
    clients = divide(expression, sources, seed)
    assert len(clients) == make_partition(expression).client_count(len(sources))
    assert len({client.name for client in clients}) == len(clients)
    assert all(len(client.train) > 0 for client in clients)


@pytest.mark.parametrize("expression", EVERY)
@few
@given(sources=some_sources, seed=st.integers(0, 2**32))
def test_only_the_seed_decides(expression, sources, seed):
    np.random.seed(1)
    first = divide(expression, sources, seed)
    np.random.seed(2)
    before = np.random.get_state()[1].copy()
    again = divide(expression, sources, seed)
    assert np.array_equal(np.random.get_state()[1], before)
    assert fingerprint(first) == fingerprint(again)
    other = divide(expression, sources, seed + 1)
    assert (fingerprint(other) == fingerprint(first)) == (expression in WITHOUT_CHANCE)


@pytest.mark.parametrize("name", registry.names())
def test_every_client_of_pacs_validates(name):
    clients = divide(name, pacs_sources("photo"), 0)
    assert min(len(client.val) for client in clients) >= 1


def test_spelling_of_settings_does_not_matter():
    sources = pacs_sources("photo")
    spellings = ("dirichlet_label:alpha=0.1", "dirichlet_label:min_samples=10,alpha=0.10")
    assert len({fingerprint(divide(text, sources, 0)) for text in spellings}) == 1
    assert canonical_partition(spellings[1]) == (
        "dirichlet_label:alpha=0.1,clients=10,min_samples=10"
    )


def test_counts_are_cut_at_the_floor_of_the_cumulative_share():
    assert whole_counts(np.array([0.5, 0.25, 0.25]), 10).tolist() == [5, 2, 3]
    assert whole_counts(np.array([2.0, 1, 1]), 10).tolist() == [5, 2, 3]
    assert whole_counts(np.full(9, 1 / 9), 9).tolist() == [1] * 9
    shares = np.array([[0.1] * 3 + [0.0], [0.0, 1, 0, 1]])
    assert whole_counts(shares, np.array([7, 5])).tolist() == [[2, 2, 3, 0], [0, 2, 0, 3]]


def test_a_client_without_validation_rows_gets_one_of_a_group_it_trains_on():
    shares = np.array([[0.05, 0.95, 0.0], [0.0, 0.5, 0.5]])
    train = np.array([[5, 95, 0], [0, 50, 50]])
    held = validation_counts(shares, np.array([8, 4]), train)
    assert held.tolist() == [[1, 7, 0], [0, 2, 2]]
    alone = validation_counts(shares[:1], np.array([1]), train[:1])
    assert alone.tolist() == [[0, 1, 0]]


def test_dealing_follows_the_counts_of_every_group():
    rows, groups = np.arange(100, 110), np.array([0, 1] * 5)
    counts = np.array([[1, 4, 0], [2, 0, 3]])
    hands = deal(rows, counts, np.random.default_rng(0), groups)
    dealt = [np.bincount(groups[hand - 100], minlength=2).tolist() for hand in hands]
    assert dealt == [[1, 2], [4, 0], [0, 3]]
    assert sorted(np.concatenate(hands)) == rows.tolist()


def test_stablefdg_single_domain_is_thirty_clients_of_one_domain():
    sources = pacs_sources("photo")
    clients = divide("single_domain_k:clients=10", sources, 0)
    counts = by_domain(clients, sources)
    assert len(clients) == 30 and ((counts > 0).sum(1) == 1).all()
    for column, source in enumerate(sources):
        sizes = counts[counts[:, column] > 0, column]
        assert set(sizes[:-1]) == {len(source.train) // 10}
        assert sizes[-1] - sizes[0] < 10


@pytest.mark.parametrize("target", DOMAINS)
def test_stablefdg_multi_domain_bounds_every_client(target):
    sources = pacs_sources(target)
    clients = divide("dirichlet_domain", sources, 0)
    counts = by_domain(clients, sources)
    assert len(clients) == 30 and counts.sum(1).min() >= 70
    assert counts.sum() == sum(len(s.train) for s in sources)
    fair, held = counts.sum() / 30, np.zeros(30)
    for column in range(len(sources)):
        assert counts[held >= fair, column].sum() == 0
        held += counts[:, column]
    assert (held >= fair).any()
    assert fingerprint(divide("dirichlet_domain", sources, 0)) == fingerprint(clients)
    assert fingerprint(divide("dirichlet_domain", sources, 1)) != fingerprint(clients)


def test_validation_rows_follow_the_shares_of_training_rows():
    sources = pacs_sources("photo")
    for expression in ("dirichlet_domain", "domain_mix:clients=10", "dirichlet_label:alpha=0.1"):
        clients = divide(expression, sources, 0)
        train, val = (by_domain(clients, sources, part) for part in ("train", "val"))
        expected = train / train.sum(0) * val.sum(0)
        classes = 7 if expression.startswith("dirichlet_label") else 1
        assert np.abs(val - expected).max() <= 2 * classes, expression


def test_large_alpha_gives_near_equal_shares():
    sources = pacs_sources("photo")
    clients = divide("dirichlet_label:alpha=1000000", sources, 0)
    for number, source in enumerate(sources):
        own = np.array([by_class(c, source) for c in clients[10 * number : 10 * number + 10]])
        assert np.ptp(own, axis=0).max() <= 2
    counts = by_domain(divide("dirichlet_domain:alpha=1000000", sources, 0), sources)
    assert np.ptp(counts, axis=0).max() <= 2


def test_small_alpha_concentrates():
    sources = pacs_sources("photo")
    missing, largest = {}, {}
    for alpha in ("0.1", "0.5", "100"):
        clients = divide(f"dirichlet_label:alpha={alpha}", sources, 0)
        own = np.array([sum(by_class(c, s) for s in sources) for c in clients])
        missing[alpha] = int((own == 0).any(1).sum())
        largest[alpha] = float((own.max(1) / own.sum(1)).mean())
        assert own.sum(1).min() >= 10
    assert missing["0.1"] > missing["0.5"] > missing["100"] == 0
    assert largest["0.1"] > 0.55 > largest["0.5"] > 0.3 > largest["100"]


def test_impossible_bounds_are_refused():
    sources = make_sources([100, 100, 100])
    with pytest.raises(UserError, match="240 training samples, too few for 30 clients"):
        divide("dirichlet_domain", sources, 0)
    with pytest.raises(UserError, match="domain0 has 80 training samples, too few for 10"):
        divide("dirichlet_label", sources, 0)
    with pytest.raises(UserError, match="client/240 without training samples; choose fewer"):
        divide("iid:clients=241", sources, 0)


def test_retries_are_bounded(monkeypatch):
    monkeypatch.setattr(dirichlet, "DOMAIN_DRAWS", 2 * dirichlet.BATCH)
    monkeypatch.setattr(dirichlet, "LABEL_DRAWS", 50)
    sources = make_sources([100, 100, 100])
    with pytest.raises(UserError, match=r"none of 2000 draws with alpha=0.01 gave each of 30"):
        divide("dirichlet_domain:alpha=0.01,min_samples=5", sources, 0)
    with pytest.raises(UserError, match=r"none of 50 draws with alpha=0.001 gave each of 10"):
        divide("dirichlet_label:alpha=0.001,min_samples=2", sources, 0)


def test_domain_pairs_put_every_domain_on_two_clients_in_halves():
    sources = pacs_sources("sketch")
    clients = divide("domain_pairs", sources, 0)
    names = ["art_painting+cartoon", "cartoon+photo", "photo+art_painting"]
    assert [client.name for client in clients] == names
    # DomainBed's training parts of PACS: A 1639, C 1876, P 1336
    assert by_domain(clients, sources).tolist() == [[819, 938, 0], [0, 938, 668], [820, 0, 668]]
    five = by_domain(divide("domain_pairs", make_sources([50] * 5), 0), make_sources([50] * 5))
    assert ((five > 0).sum(0) == 2).all() and ((five > 0).sum(1) == 2).all()
    with pytest.raises(UserError, match="two source domains"):
        divide("domain_pairs", make_sources([50]), 0)


def test_iid_clients_are_equal_in_size_and_mixture():
    sources = make_sources([1000, 2000, 3000])
    counts = by_domain(divide("iid:clients=7", sources, 0), sources)
    assert np.ptp(counts.sum(1)) <= 1
    expected = np.array([800, 1600, 2400]) / 7
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected.max())


def test_domain_mix_runs_from_one_domain_per_client_to_all_alike():
    sources = make_sources([125, 250, 375])  # 100, 200 and 300 of them train
    separate = by_domain(divide("domain_mix:clients=6,mix=0", sources, 0), sources)
    assert separate.tolist() == [[100, 0, 0]] + 2 * [[0, 100, 0]] + 3 * [[0, 0, 100]]
    alike = by_domain(divide("domain_mix:clients=6,mix=1", sources, 0), sources)
    assert np.ptp(alike, axis=0).max() <= 1
    half = by_domain(divide("domain_mix:clients=6,mix=0.5", sources, 0), sources)
    assert np.abs(half - (separate + np.array([100, 200, 300]) / 6) / 2).max() < 1


def test_domain_mix_with_fewer_clients_than_domains_balances_whole_domains():
    sources = make_sources([50, 40, 30], fraction=0)
    counts = by_domain(divide("domain_mix:clients=2,mix=0", sources, 0), sources)
    assert counts.tolist() == [[50, 0, 0], [0, 40, 30]]


class LabelsOnly(Dataset):
    """PACS's sizes without an image: whoever asks for images fails."""

    name = "LabelsOnly"
    domains = DOMAINS
    classes = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")

    def labels(self, domain: str, root: Path) -> np.ndarray:
        if not Path(root).is_dir():
            raise FileNotFoundError(f"no folder {root}")
        return np.arange(PACS[domain]) % 7


@pytest.fixture
def listed(monkeypatch):
    dataset_registry.discover()
    monkeypatch.setitem(dataset_registry._entries, "LabelsOnly", LabelsOnly)


def run(capsys, *arguments, dataset="LabelsOnly"):
    with pytest.raises(SystemExit) as stopped:
        main([dataset, *map(str, arguments)])
    out, err = capsys.readouterr()
    return stopped.value.code, out, err


@pytest.mark.parametrize(
    "partition, suffix",
    [("single_domain", ".png"), ("dirichlet_label:alpha=0.1", ".PNG"), ("domain_mix", ".svg")],
)
def test_report_counts_hashes_and_draws(listed, capsys, tmp_path, partition, suffix):
    path = tmp_path / "new" / f"figure{suffix}"
    options = ("--target", "photo", "--partition", partition, "--seed", 3)
    code, out, err = run(capsys, *options, "--root", tmp_path, "--plot", path)
    assert (code, err) == (0, "")
    sources = read_sources(LabelsOnly(), "photo", tmp_path, make_split("domainbed"), 3)
    assert [s.name for s in sources] == ["art_painting", "cartoon", "sketch"]
    clients = divide(partition, sources, 3)
    assert f"fingerprint {fingerprint(clients)} of {canonical_partition(partition)}" in out
    lines = [line.split() for line in out.splitlines()]
    assert ["total", "1639", "1876", "3144", "6659", "1662", "7"] in lines
    for client, counts in zip(clients, by_domain(clients, sources), strict=True):
        row = next(line for line in lines if line[:1] == [client.name])
        assert row[1:-1] == [*map(str, counts), str(counts.sum()), str(len(client.val))]
    content = path.read_bytes()
    if suffix == ".svg":
        assert all(f"<!-- {text} -->" in content.decode() for text in ("dog", "cartoon", "client"))
    else:
        assert content.startswith(b"\x89PNG") and len(content) > 10_000
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "options, message",
    [
        (("--target", "photos"), "did you mean 'photo'?"),
        (("--target", "photo", "--partition", "dirichlet_lable"), "did you mean 'dirichlet_label'"),
        (("--target", "photo", "--partition", "iid:client=3"), "did you mean 'clients'?"),
        (("--target", "photo", "--partition", "iid:clients=0"), "at least 1"),
        (("--target", "photo", "--partition", "iid:clients=9999"), "choose fewer clients"),
        (("--target", "photo", "--partition", "domain_mix:mix=2"), "at most 1"),
        (("--target", "photo", "--split", "domainbad"), "did you mean 'domainbed'?"),
        (("--target", "photo", "--root", "nowhere"), "no folder nowhere"),
        (("--target", "photo", "--seed", "one"), "invalid int value"),
        (("--target", "photo", "--plot", "figure.txt"), f"ends in {', '.join(FORMATS)}"),
        ((), "--target"),
    ],
)
def test_report_refuses_in_one_line(listed, capsys, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    code, out, err = run(capsys, *options)
    assert code == 2 and out == ""
    assert err.startswith("error: ") and err.count("\n") == 1 and message in err


def test_report_says_when_the_figure_cannot_be_written(listed, capsys, tmp_path):
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "figure.png"
    code, _, err = run(capsys, "--target", "photo", "--root", tmp_path, "--plot", path)
    assert code == 2 and err.startswith(f"error: --plot {path} cannot be written")


@pytest.mark.skipif("FEDDOMAINBED_DATA" not in os.environ, reason="FEDDOMAINBED_DATA is not set")
@pytest.mark.parametrize(
    "split, total",
    [
        ("domainbed", ["1639", "1876", "3144", "6659", "1662"]),
        ("official", ["1840", "2107", "3530", "7477", "843"]),
    ],
)
def test_report_on_pacs_reads_no_image(capsys, monkeypatch, split, total):
    monkeypatch.setattr(FolderDataset, "load", None)
    options = ("--target", "photo", "--split", split, "--root", os.environ["FEDDOMAINBED_DATA"])
    code, out, _ = run(capsys, *options, dataset="PACS")
    assert code == 0
    assert ["total", *total, "7"] in [line.split() for line in out.splitlines()]


def test_report_runs_as_a_module_with_what_a_plugin_registers(tmp_path):
    plugin = tmp_path / "own.py"
    plugin.write_text(
        "import numpy as np\n"
        "from datasets.base import Dataset, register\n"
        "from datasets.partition import Partition\n"
        "from datasets.partition import register as register_partition\n"
        "from datasets.partitions_mixed import Iid\n"
        "@register('Own')\n"
        "class Own(Dataset):\n"
        "    domains, classes = ('a', 'b', 'c'), ('x', 'y')\n"
        "    def labels(self, domain, root):\n"
        "        return np.arange(50) % 2\n"
        "@register_partition('halves')\n"
        "class Halves(Partition):\n"
        "    def divide(self, sources, rng):\n"
        "        return Iid(2).divide(sources, rng)\n"
    )
    command = [sys.executable, "-m", "datasets.partition", "Own", "--plugin", str(plugin)]
    command += ["--target", "b", "--partition", "halves"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).resolve().parents[1]
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["total", "40", "40", "80", "20", "2"] in lines
