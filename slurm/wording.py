"""Numbers in sentences."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def are(number: int) -> str:
    return "is" if number == 1 else "are"
