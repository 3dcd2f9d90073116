"""Which runs share a task, and which tasks share an array. Pure functions of estimated costs."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def pack(seconds: Sequence[float], capacity: float) -> list[list[int]]:
    """Positions of the runs of each task: longest first, every task at most `capacity` seconds
    unless it holds one run alone. Tasks come out even, the longest first."""
    order = sorted(range(len(seconds)), key=lambda k: (-seconds[k], k))
    large = [[k] for k in order if seconds[k] >= capacity]
    small = order[len(large) :]
    total = sum(seconds[k] for k in small)
    count = math.ceil(total / capacity) if small else 0
    tasks: list[list[int]] = [[] for _ in range(count)]
    loads = [(0.0, task) for task in range(count)]
    for k in small:
        load, task = loads[0]
        if load + seconds[k] > capacity:
            task = len(tasks)
            tasks.append([k])
            heapq.heappush(loads, (seconds[k], task))
        else:
            tasks[task].append(k)
            heapq.heapreplace(loads, (load + seconds[k], task))
    filled = [task for task in tasks if task]
    filled.sort(key=lambda task: -sum(seconds[k] for k in task))
    return large + filled


def deal(tasks: Sequence[T], largest: int) -> list[list[T]]:
    """Tasks dealt to as few arrays as their largest size allows, so that each is like the others
    and begins with its longest tasks."""
    count = math.ceil(len(tasks) / largest)
    return [list(tasks[k::count]) for k in range(count)]
