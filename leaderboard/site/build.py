"""From a store, published numbers and entries to the files of the site."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmark.errors import UserError
from benchmark.results import Collection, ResultStore
from datasets.base import write_atomically
from leaderboard.site.facts import (
    DatasetFacts,
    DomainNames,
    MethodFacts,
    dataset_facts,
    method_facts,
    protocol_names,
)
from leaderboard.site.index import index_page
from leaderboard.site.pages import dataset_page, method_page
from leaderboard.site.printed import printed_costs, printed_rows
from leaderboard.site.rows import SUBMITTED, Row, mark_best, measured_rows
from leaderboard.submissions.entry import Entry, read_entry
from leaderboard.submissions.protocols import examine_protocol
from leaderboard.submissions.verify import Report, examine

ENTRIES = Path(__file__).parent.parent / "entries"


@dataclasses.dataclass(frozen=True)
class Board:
    """Everything the pages show."""

    rows: list[Row]
    methods: dict[str, MethodFacts]
    datasets: dict[str, DatasetFacts]
    domains: dict[str, list[str]]
    entries: list[tuple[str, ...]]


def read_entries(folder: Path) -> list[tuple[Path, Entry]]:
    """The sound entries of a folder; any other is left out, with the reason on standard error."""
    found = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else []:
        try:
            if path.resolve().parent != folder.resolve():
                raise UserError("it is a link to another place")
            entry = read_entry(path)
            report = examine(entry)
            _check_protocol(entry, report)
            if report.problems:
                more = f" ({len(report.problems)} problems)" if len(report.problems) > 1 else ""
                raise UserError(f"{report.problems[0]}{more}")
        except UserError as error:
            print(f"entry left out: {path.name}: {error}", file=sys.stderr)
            continue
        found.append((path, entry))
    return found


def _check_protocol(entry: Entry, report: Report) -> None:
    try:
        examine_protocol(entry, report)
    except ImportError as error:
        if entry.protocol is not None:
            raise UserError(f"its protocol cannot be compared here ({error})") from error


def make_board(
    found: Collection,
    entries: Sequence[tuple[Path, Entry]] = (),
    published: bool = True,
    registry: bool = True,
) -> Board:
    """All rows, from a store, from entries and from the papers."""
    methods = method_facts() if registry else {}
    everything = [*found.results, *(r for _, entry in entries for r in entry.results)]
    known = {r.spec.dataset: tuple(r.about["domains"]) for r in everything}
    protocols = protocol_names(everything) if registry else {}
    rows = measured_rows(found, protocols)
    for _, entry in entries:
        rows += measured_rows(entry.found, protocols, SUBMITTED, f"submitted by {entry.name}")
    if published:
        rows += printed_rows(methods, DomainNames(known, bool(methods)))
    names = sorted({row.dataset for row in rows}, key=str.lower)
    datasets = dataset_facts(names) if registry else {}
    known |= {name: facts.domains for name, facts in datasets.items()}
    domains = {
        name: list(
            dict.fromkeys(
                [
                    *known.get(name, ()),
                    *(d for row in rows if row.dataset == name for d in row.cells),
                ]
            )
        )
        for name in names
    }
    return Board(mark_best(rows), methods, datasets, domains, [_about(*pair) for pair in entries])


def _about(path: Path, entry: Entry) -> tuple[str, ...]:
    runs = str(len(entry.results))
    return entry.name, entry.contact, entry.protocol or "none", runs, path.name, entry.hash[:16]


def render(board: Board) -> dict[str, str]:
    """The text of every file by its path."""
    labels = {name: facts.label for name, facts in board.methods.items()}
    for row in board.rows:
        for part in row.parts:
            labels.setdefault(part, row.label if row.parts == (part,) else part)
    links = _slugs("methods", labels)
    homes = _slugs("datasets", board.domains)
    methods = {name: (labels[name], links[name]) for name in labels}
    files = {"index.html": index_page(board.rows, methods, homes, board.domains, board.entries)}
    costs = printed_costs()
    for name, label in labels.items():
        own = [row for row in board.rows if name in row.parts]
        files[links[name]] = method_page(
            name, label, board.methods.get(name), own, links, board.domains, costs.get(name)
        )
    for name, path in homes.items():
        own = [row for row in board.rows if row.dataset == name]
        files[path] = dataset_page(name, board.datasets.get(name), own, links, board.domains[name])
    return files


def _slugs(folder: str, names: Mapping[str, object]) -> dict[str, str]:
    """A file name for every name: letters, digits, dashes; unlike names never share one, whatever
    a file system makes of capitals."""
    taken: set[str] = set()
    found = {}
    for name in names:
        slug = base = re.sub(r"[^a-z0-9_-]+", "-", name.lower())[:60].strip("-") or "unnamed"
        number = 1
        while slug in taken:
            number += 1
            slug = f"{base}-{number}"
        taken.add(slug)
        found[name] = f"{folder}/{slug}.html"
    return found


def write_site(files: Mapping[str, str], out: Path) -> int:
    """Write every file whole; gives back the bytes."""
    total = 0
    for path, text in files.items():
        data = text.encode()
        total += len(data)
        write_atomically(out / path, lambda temporary, data=data: temporary.write_bytes(data))
    return total


def build_site(
    runs: Path | None, out: Path, entries: Path = ENTRIES, published: bool = True
) -> tuple[Path, int, Board]:
    """The site in a folder: its index, its size in bytes, and what it shows."""
    if runs is not None and not runs.is_dir():
        raise UserError(f"no result store at {str(runs)!r}; run python -m benchmark.sweep first")
    found = Collection([], [], {}, {}) if runs is None else ResultStore(runs).collect()
    for path, reason in found.damaged.items():
        print(f"damaged, skipped: {path}: {reason}", file=sys.stderr)
    board = make_board(found, read_entries(entries), published)
    try:
        size = write_site(render(board), out)
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot write to --out {str(out)!r}: {reason}") from error
    return out / "index.html", size, board
