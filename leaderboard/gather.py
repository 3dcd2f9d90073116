"""Everything a store holds: results, and notes about runs that failed."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

from benchmark.errors import UserError
from benchmark.results import Collection, ResultStore
from benchmark.spec import RunSpec


def gather(root: Path) -> Collection:
    """All results of a store with the runs that failed; damaged files are named on stderr."""
    store = ResultStore(root)
    found = store.collect()
    for path, reason in found.damaged.items():
        print(f"damaged, skipped: {path}: {reason}", file=sys.stderr)
    if found.damaged:
        print(f"{len(found.damaged)} damaged result files skipped", file=sys.stderr)
    if not found.results:
        raise UserError(f"no results in {root}; run python -m benchmark.sweep first")
    return dataclasses.replace(found, failed=failures(store))


def failures(store: ResultStore) -> dict[RunSpec, str]:
    """Runs whose last attempt failed, with the reason; a note that cannot be read is skipped, for
    the run it is about will be tried again anyway."""
    failed = {}
    for path in sorted(store.root.glob("*/*/*.failed.json")):
        try:
            data = json.loads(path.read_text())
            failed[RunSpec.from_json(data["spec"])] = str(data["reason"])
        except (OSError, ValueError, KeyError, TypeError, UserError):
            print(f"damaged, skipped: {path}", file=sys.stderr)
    return failed
