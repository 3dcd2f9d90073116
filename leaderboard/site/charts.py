"""Accuracy over rounds as inline SVG: no script, colours from the page's theme."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 340, 190
LEFT, RIGHT, TOP, BOTTOM = 34, 8, 8, 24
POINTS = 16
"""At most so many points of a line are drawn; first and last are always among them."""
COLOURS = 8


def curve_chart(curves: Mapping[str, Sequence[tuple[int, float]]], title: str, caption: str) -> str:
    """One line per held-out domain; `title` is for those who cannot see it."""
    lines = {target: thinned(points) for target, points in curves.items() if points}
    if not lines or max(len(points) for points in lines.values()) < 2:
        return ""
    values = [value for points in lines.values() for _, value in points]
    rounds = [number for points in lines.values() for number, _ in points]
    low, high = 10 * math.floor(min(values) / 10), 10 * math.ceil((max(values) + 1e-9) / 10)
    first, last = min(rounds), max(rounds)

    def x(number: float) -> float:
        return LEFT + (number - first) / max(1, last - first) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) / max(1, high - low) * (HEIGHT - TOP - BOTTOM)

    step = 10 if high - low <= 50 else 20
    marks = range(low, high + 1, step)
    lattice = "".join(f"M{LEFT} {y(v):.0f}H{WIDTH - RIGHT}" for v in marks)
    heights = "".join(f"<text x={LEFT - 6} y={y(v) + 4:.0f} class=e>{v}</text>" for v in marks)
    ends = (
        f"<text x={LEFT} y={HEIGHT - 6}>round {first}</text>"
        f"<text x={WIDTH - RIGHT} y={HEIGHT - 6} class=e>{last}</text>"
    )
    drawn = "".join(
        f'<path class="c{k % COLOURS} l" d="{_way([(x(n), y(v)) for n, v in points])}"/>'
        for k, points in enumerate(lines.values())
    )
    legend = "".join(
        f"<li class=c{k % COLOURS}>{escape(target)}</li>" for k, target in enumerate(lines)
    )
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f'<path class="grid" d="{lattice}"/>{heights}{ends}{drawn}</svg>'
        f'<figcaption>{escape(caption)}<ul class="legend">{legend}</ul></figcaption></figure>'
    )


def _way(points: Sequence[tuple[float, float]]) -> str:
    """A line from point to point in whole pixels, written as steps, which is half as long."""
    places = [(round(x), round(y)) for x, y in points]
    steps = (f"{c - a} {d - b}" for (a, b), (c, d) in itertools.pairwise(places))
    return f"M{places[0][0]} {places[0][1]}l" + " ".join(steps).replace(" -", "-")


def thinned(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """Evenly chosen points of a long curve."""
    if len(points) <= POINTS:
        return list(points)
    places = {round(k * (len(points) - 1) / (POINTS - 1)) for k in range(POINTS)}
    return [points[k] for k in sorted(places)]
