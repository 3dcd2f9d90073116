"""How things are timed: repeats in turns, medians, spread, ratios; and how that is shown."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from tabulate import tabulate


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds of one contender."""

    median: float
    spread: float

    def __str__(self) -> str:
        return f"{shown(self.median)} ± {shown(self.spread)}"


@dataclasses.dataclass(frozen=True)
class Table:
    """One section of the report."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def markdown(self) -> str:
        body = tabulate(self.rows, self.header, "github", disable_numparse=True)
        return "\n\n".join(part for part in (f"### {self.title}", self.note, body) if part)


def shown(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{1e6 * seconds:.0f} µs"
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"


def compare(contenders: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, Timing]:
    """Time contenders in turns, so that all meet the same machine; one turn before is not
    counted."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(repeats + 1):
        for name, run in contenders.items():
            began = time.perf_counter()
            run()
            if repeat:
                times[name].append(time.perf_counter() - began)
    return {
        name: Timing(statistics.median(values), statistics.pstdev(values))
        for name, values in times.items()
    }


def against(timings: Mapping[str, Timing], reference: str) -> list[tuple[str, str, str]]:
    """Rows of name, time and ratio to a reference."""
    base = timings[reference].median
    return [(name, str(one), f"{one.median / base:.3f}") for name, one in timings.items()]
