"""The index: the whole board on one page, its rows as JSON, filtered and sorted by a script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from leaderboard.site.parts import CHECKED, embedded, footer, head, list_table, page
from leaderboard.site.rows import PUBLISHED, Cell, Row

COLUMNS = (
    *("label", "parts", "page", "variant", "dataset", "setting", "protocol", "backbone"),
    *("category", "shares", "cells", "average", "seeds", "source", "origin", "detail"),
    *("traffic", "best"),
)
SELECTS = {
    "setting": "Setting",
    "protocol": "Protocol",
    "backbone": "Backbone",
    "category": "Category",
    "shares": "Shares besides weights",
}
SOURCES = {"": "All", "published": "Published", "ours": "Measured"}


def index_page(
    rows: Sequence[Row],
    methods: Mapping[str, tuple[str, str]],
    datasets: Mapping[str, str],
    domains: Mapping[str, Sequence[str]],
    entries: Sequence[Sequence[str]],
) -> str:
    """`methods` gives label and page by name, `datasets` the page by name."""
    intro = (
        '<p class="lead">The leaderboard of federated domain generalization: accuracies on a '
        "domain that no client has ever seen, as the papers print them and as this suite "
        "measures them."
        f'</p><p class="lead soft">{escape(CHECKED)}</p>'
        f'<ul class="counts">{_counts(rows, methods, datasets)}</ul>'
    )
    body = (
        head("Trained together, judged elsewhere", "index.html", intro)
        + '<main class="wrap" id="main">'
        + _controls(first_dataset(rows), datasets)
        + _board()
        + _lists(methods, datasets, entries)
        + "</main>"
        + footer()
    )
    text = embedded(board_data(rows, methods, domains))
    return page(
        "FedDomainBed leaderboard",
        body,
        ("theme.js", "board.js"),
        ("style.css", "board.css"),
        f'<script type="application/json" id="data">{text}</script>',
    )


def _counts(rows: Sequence[Row], methods: Mapping, datasets: Mapping) -> str:
    measured = [row for row in rows if row.source != PUBLISHED]
    runs = {result.spec.id for row in measured for result in row.results}
    counts = (
        (len(methods), "methods"),
        (len(datasets), "datasets"),
        (len(rows) - len(measured), "published rows"),
        (len(measured), "measured rows"),
        (len(runs), "runs behind them"),
    )
    return "".join(f"<li><b>{count:,}</b> {what}</li>" for count, what in counts)


def first_dataset(rows: Sequence[Row]) -> str:
    """The dataset that is shown first: the one with most measured rows, then most rows."""
    tally: dict[str, list[int]] = {}
    for row in rows:
        count = tally.setdefault(row.dataset, [0, 0])
        count[0] += row.source != PUBLISHED
        count[1] += 1
    return max(tally, key=lambda name: tally[name]) if tally else "all"


def board_data(
    rows: Sequence[Row], methods: Mapping[str, tuple[str, str]], domains: Mapping[str, Sequence]
) -> dict[str, Any]:
    names = list(methods)
    place = {name: k for k, name in enumerate(names)}
    return {
        "columns": COLUMNS,
        "rows": [_values(row, place) for row in rows],
        "pages": [methods[name][1] for name in names],
        "domains": domains,
        "first": first_dataset(rows),
    }


def _values(row: Row, place: Mapping[str, int]) -> list[Any]:
    special = {
        "parts": " ".join(row.parts),
        "page": place.get(row.parts[0]) if row.parts else None,
        "cells": {domain: _numbers(cell) for domain, cell in row.cells.items()},
        "average": _numbers(row.average),
        "traffic": None if row.traffic is None else float(f"{row.traffic:.4g}"),
        "best": sorted(row.best),
    }
    return [special[key] if key in special else getattr(row, key) for key in COLUMNS]


def _numbers(cell: Cell | None) -> list[Any] | None:
    if cell is None:
        return None
    return [round(cell.mean, 2), None if cell.std is None else round(cell.std, 2), cell.seeds]


def _controls(first: str, datasets: Mapping[str, str]) -> str:
    tabs = _radios("dataset", "Dataset", {"all": "All"} | {name: name for name in datasets}, first)
    sources = _radios("source", "Numbers", SOURCES, "")
    selects = "".join(
        f'<label><span>{label}</span><select id="{key}"><option value="">any</option></select>'
        "</label>"
        for key, label in SELECTS.items()
    )
    return (
        f'<form class="controls" aria-label="Filters">{tabs}'
        f'<div class="filters">{sources}<details class="more" id="more"><summary>Filters'
        f'</summary><div>{selects}</div></details><label class="grow"><span>Search</span>'
        '<input type="search" id="search" placeholder="method, paper, setting…  ( / )" '
        'autocomplete="off" spellcheck="false"></label>'
        '<label class="check"><input type="checkbox" id="ablations">ablations and controls</label>'
        "</div></form>"
    )


def _radios(name: str, legend: str, options: Mapping[str, str], chosen: str) -> str:
    inner = "".join(
        f'<label><input type="radio" name="{name}" value="{escape(value)}"'
        f"{' checked' if value == chosen else ''}><span>{escape(text)}</span></label>"
        for value, text in options.items()
    )
    return f'<fieldset><legend>{legend}</legend><div class="tabs">{inner}</div></fieldset>'


def _board() -> str:
    return (
        '<div class="bar"><span id="status" role="status" aria-live="polite"></span>'
        '<button class="plain" id="reset" type="button">Clear filters</button></div>'
        '<noscript><p class="lead">This table needs JavaScript; the pages below do not.</p>'
        '</noscript><div class="scroll" tabindex="0" role="region" aria-label="Results">'
        '<table class="board" aria-label="Accuracy of methods on unseen domains">'
        '<thead id="head"></thead><tbody id="body"></tbody></table></div>'
        '<p class="empty" id="empty" hidden>No row fits. Loosen a filter, or clear them all.</p>'
    )


def _lists(
    methods: Mapping[str, tuple[str, str]],
    datasets: Mapping[str, str],
    entries: Sequence[Sequence[str]],
) -> str:
    named = sorted(methods.values(), key=lambda pair: pair[0].lower())
    text = f"<h2>Methods</h2>{_names(named)}"
    text += f"<h2>Datasets</h2>{_names(list(datasets.items()))}"
    if entries:
        heads = ("Submitted by", "Contact", "Protocol", "Runs", "File", "SHA-256")
        text += f"<h2>Submissions</h2>{list_table(heads, entries)}"
    return text


def _names(pairs: Sequence[tuple[str, str]]) -> str:
    inner = "".join(
        f'<li><a href="{escape(link)}">{escape(label)}</a></li>' for label, link in pairs
    )
    return f'<ul class="names">{inner}</ul>'
