"""Splits: DomainBed's own numbers, and what holds for every rule."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.errors import UserError
from datasets.base import DomainData
from datasets.splits import canonical_split, make_split, seed_hash

few = settings(max_examples=25, deadline=None, derandomize=True)


def domain_of(count, **parts):
    rows = {name: np.array(values) for name, values in parts.items()}
    return DomainData(np.empty((count, 0, 0, 3), np.uint8), np.zeros(count, np.int64), rows)


def test_seed_hash_is_domainbeds():
    hashes = [seed_hash(0, environment) for environment in range(4)]
    assert hashes == [894182419, 1514274641, 1325548499, 1796103049]


@pytest.mark.parametrize(
    "index, order",
    [(0, [2, 3, 8, 1, 4, 5, 0, 9, 6, 7]), (1, [5, 0, 3, 7, 8, 6, 1, 2, 9, 4])],
)
def test_domainbed_permutations_of_ten(index, order):
    train, val = make_split("domainbed").cut(domain_of(10), index, 0)
    assert [*val, *train] == order and len(val) == 2
    _, every = make_split("domainbed:fraction=1").cut(domain_of(10), index, 0)
    assert every.tolist() == order


def test_domainbed_photo_starts_as_published():
    _, val = make_split("domainbed").cut(domain_of(1670), 2, 0)
    assert val[:5].tolist() == [1441, 1432, 282, 669, 637]


@pytest.mark.parametrize(
    "index, count, out_size, in_size",
    [(0, 2048, 409, 1639), (1, 2344, 468, 1876), (2, 1670, 334, 1336), (3, 3929, 785, 3144)],
)
def test_domainbed_sizes_of_pacs(index, count, out_size, in_size):
    train, val = make_split("domainbed").cut(domain_of(count), index, 0)
    assert (len(val), len(train)) == (out_size, in_size)


@pytest.mark.parametrize("count", [0, 1, 7, 172_947])
def test_domainbed_shuffles_as_a_list_is_shuffled(count):
    rows = list(range(count))
    np.random.RandomState(seed_hash(3, 4)).shuffle(rows)
    train, val = make_split("domainbed").cut(domain_of(count), 4, 3)
    assert np.array_equal(np.r_[val, train], rows)
    assert train.dtype == val.dtype == np.int64


@pytest.mark.parametrize("name", ["domainbed", "random"])
@few
@given(
    count=st.integers(0, 500),
    index=st.integers(0, 5),
    seed=st.integers(0, 2**32),
    fraction=st.sampled_from([0.1, 0.2, 0.3]),
)
def test_a_cut_is_complete_repeatable_and_leaves_global_randomness(
    name, count, index, seed, fraction
):
    split, data = make_split(f"{name}:fraction={fraction}"), domain_of(count)
    np.random.seed(1)
    train, val = split.cut(data, index, seed)
    np.random.seed(2)
    before = np.random.get_state()[1].copy()
    again = split.cut(data, index, seed)
    assert np.array_equal(np.random.get_state()[1], before)
    assert np.array_equal(train, again[0]) and np.array_equal(val, again[1])
    assert len(val) == int(count * fraction)
    assert np.array_equal(np.sort(np.r_[train, val]), np.arange(count))


@pytest.mark.parametrize("name", ["domainbed", "random"])
def test_seed_and_domain_both_change_the_cut(name):
    split = make_split(name)
    cuts = [split.cut(domain_of(50), index, seed)[1] for index, seed in ((0, 0), (1, 0), (0, 1))]
    assert len({tuple(sorted(val)) for val in cuts}) == 3


def test_official_takes_the_published_lists():
    data = domain_of(6, train=[4, 0, 2], val=[5, 1], test=[3])
    train, val = make_split("official").cut(data, 0, 0)
    assert train.tolist() == [4, 0, 2] and val.tolist() == [5, 1]
    assert train.dtype == val.dtype == np.int64
    assert make_split("official").needs_parts and not make_split("domainbed").needs_parts


@pytest.mark.parametrize("parts, named", [({}, "train and val"), ({"train": [0, 1]}, "val")])
def test_official_needs_lists(parts, named):
    with pytest.raises(UserError, match=f"without a published {named} list; choose"):
        make_split("official").cut(domain_of(6, **parts), 1, 0)


def test_splits_have_one_spelling_and_refuse_what_they_do_not_know():
    assert canonical_split("random") == canonical_split("random:fraction=0.10")
    assert canonical_split("official") == "official"
    with pytest.raises(UserError, match="did you mean 'random'"):
        make_split("randon")
    with pytest.raises(UserError, match="did you mean 'fraction'"):
        make_split("random:fractoin=0.1")
    with pytest.raises(UserError, match="too large: at most 1"):
        make_split("domainbed:fraction=1.5")
