"""Packs and arrays: nothing lost, nothing twice, within the limits."""

from hypothesis import given
from hypothesis import strategies as st

from slurm.packing import deal, pack

COSTS = st.lists(st.floats(0.1, 5000), max_size=60)


@given(COSTS, st.floats(0, 4000))
def test_every_run_is_in_one_task_and_tasks_keep_to_their_capacity(seconds, capacity):
    tasks = pack(seconds, capacity)
    assert sorted(k for task in tasks for k in task) == list(range(len(seconds)))
    for task in tasks:
        assert len(task) == 1 or sum(seconds[k] for k in task) <= capacity * (1 + 1e-9)
        costs = [seconds[k] for k in task]
        assert costs == sorted(costs, reverse=True)


def test_tasks_are_few_and_even():
    assert [len(task) for task in pack([10.0] * 24, 60)] == [6] * 4
    assert [len(task) for task in pack([10.0] * 10, 60)] == [5, 5]
    assert pack([1.0, 100.0, 1.0, 200.0], 60) == [[3], [1], [0, 2]]
    assert pack([3.0, 1.0], 0) == [[0], [1]]
    assert pack([], 60) == []


@given(st.lists(st.integers(), max_size=50), st.integers(1, 20))
def test_arrays_are_within_the_limit_and_alike(tasks, largest):
    arrays = deal(tasks, largest)
    assert sorted(task for array in arrays for task in array) == sorted(tasks)
    sizes = [len(array) for array in arrays]
    assert all(0 < size <= largest for size in sizes)
    assert not sizes or max(sizes) - min(sizes) <= 1
    assert len(arrays) == -(-len(tasks) // largest)


def test_every_array_begins_with_its_longest_tasks():
    assert deal([9, 8, 7, 6, 5], 2) == [[9, 6], [8, 5], [7]]
