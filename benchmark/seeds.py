"""Randomness is derived, not stored: every stream is a pure function of what it is for."""

from __future__ import annotations

import hashlib


def seed_for(seed: int, purpose: str, *where: int | str) -> int:
    """A 63-bit seed for one purpose at one place, e.g. `seed_for(0, "batches", round, client)`."""
    text = repr((int(seed), purpose, *where)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
