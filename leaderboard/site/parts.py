"""The parts all pages are made of. Whatever is put into HTML goes through `html.escape`."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from leaderboard.site.rows import Cell, Row

ASSETS = Path(__file__).parent / "assets"
CHECKED = (
    "How a row is checked: a measured or submitted row rests on stored runs, each named by a hash "
    "of all that decides its numbers, so anyone can repeat one and compare to the bit; a published "
    "row names the table that prints it."
)


@functools.cache
def asset(name: str) -> str:
    """A file of the template, without the white space that only its author needs."""
    lines = (ASSETS / name).read_text(encoding="utf-8").splitlines()
    kept = (line.strip() for line in lines)
    return "\n".join(line for line in kept if line and not line.startswith("// "))


def embedded(value: Any) -> str:
    """JSON that is safe inside a script element: no sign in it can end the element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    signs = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
    return "".join(signs.get(sign, sign) for sign in text)


def page(
    title: str,
    body: str,
    scripts: Sequence[str] = ("theme.js",),
    styles: Sequence[str] = ("style.css",),
    data: str = "",
) -> str:
    """A whole page. The policy forbids any request and any script but the page's own."""
    style = "".join(asset(name).replace("\n", "") for name in styles)
    hashes = " ".join(f"'sha256-{_digest(asset(name))}'" for name in scripts)
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {hashes}; img-src data:"
    later = "".join(f"<script>{asset(name)}</script>" for name in scripts[1:])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{style}</style>"
        f"<script>{asset(scripts[0])}</script></head><body>"
        f'<a class="skip" href="#main">Skip to the content</a>{body}{data}{later}</body></html>\n'
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def head(title: str, home: str, inner: str) -> str:
    """The top of every page, with the way home and the switch of the theme."""
    brand = f'<a class="brand" href="{home}">FedDomainBed</a>'
    switch = '<button class="plain" id="theme" type="button" hidden aria-label="Switch theme">'
    return (
        f'<header class="wrap"><div class="top">{brand}{switch}</button></div>'
        f"<h1>{escape(title)}</h1>{inner}</header>"
    )


def prose(text: str) -> str:
    """A docstring as paragraphs and lists; what is indented as a whole stays as it is set."""
    return "".join(_block(block) for block in text.split("\n\n") if block.strip())


def _block(block: str) -> str:
    lines = block.splitlines()
    if lines[0].startswith((" ", "|")):
        return f"<pre>{escape(textwrap.dedent(block))}</pre>"
    first = next((k for k, line in enumerate(lines) if line.startswith(("- ", "* "))), None)
    if first is None:
        return f"<p>{_inline(lines)}</p>"
    items: list[list[str]] = []
    for line in lines[first:]:
        if line.startswith(("- ", "* ")):
            items.append([line[2:]])
        else:
            items[-1].append(line.strip())
    before = f"<p>{_inline(lines[:first])}</p>" if first else ""
    return before + f"<ul>{''.join(f'<li>{_inline(item)}' for item in items)}</ul>"


def _inline(lines: Sequence[str]) -> str:
    """Text in one line, with `code` set as such."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(" ".join(lines)))


def list_table(headings: Sequence[str], lines: Iterable[Sequence[str]], caption: str = "") -> str:
    """A plain table of texts, all escaped; the first column heads its line."""
    body = "".join(
        f"<tr><th scope=row>{escape(first)}" + "".join(f"<td>{escape(text)}" for text in rest)
        for first, *rest in lines
    )
    top = "".join(f"<th scope=col>{escape(text)}" for text in headings)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f"<div class=scroll><table class=texts>{title}<thead><tr>{top}<tbody>{body}</table></div>"
    )


def rows_table(
    rows: Sequence[Row], links: Mapping[str, str], domains: Sequence[str], here: str = ""
) -> str:
    """Rows of one dataset, with a column per domain; methods link to their pages, but not from
    there."""
    heads = ["Method", "Setting", "Backbone", *domains, "Average", "Seeds", "Source"]
    numbers = range(3, len(heads) - 1)
    top = "".join(
        f"<th scope=col{' class=n' if k in numbers else ''}>{escape(text)}"
        for k, text in enumerate(heads)
    )
    lines = "".join(_row(row, links, domains, here) for row in rows)
    return f"<div class=scroll><table class=rows><thead><tr>{top}<tbody>{lines}</table></div>"


def _row(row: Row, links: Mapping[str, str], domains: Sequence[str], here: str) -> str:
    label = escape(row.label)
    if row.parts and links.get(row.parts[0], here) != here:
        label = f'<a href="../{escape(links[row.parts[0]])}">{label}</a>'
    variant = f"<small>{escape(row.variant)}</small>" if row.variant else ""
    detail = f"<br><small>{escape(row.detail)}</small>" if row.detail else ""
    cells = "".join(_cell(row.cells.get(domain), domain in row.best, row) for domain in domains)
    seeds = "–" if row.seeds is None else row.seeds
    return (
        f"<tr><th scope=row>{label}{variant}<td class=wide>{escape(row.setting)}{detail}"
        f"<td class=wide>{escape(row.backbone)}{cells}{_cell(row.average, '' in row.best, row)}<td>"
        f'{seeds}<td class="wide dot {row.source}">{escape(row.origin)}'
    )


def _cell(cell: Cell | None, best: bool, row: Row) -> str:
    if cell is None:
        return "<td>–"
    value = f"<b class=best>{cell.mean:.1f}</b>" if best else f"{cell.mean:.1f}"
    spread = "" if cell.std is None else f" <small>±{cell.std:.1f}</small>"
    partial = ""
    if cell.seeds is not None and row.seeds and cell.seeds < row.seeds:
        partial = f" <small>({cell.seeds}/{row.seeds})</small>"
    return f"<td>{value}{spread}{partial}"


def footer() -> str:
    return (
        '<footer class="wrap"><p>Accuracy in %, mean ± standard deviation over seeds, rounds '
        "chosen on the training domains. Bold: best of the rows made under the same setting. "
        f"–: no such number.</p><p>{escape(CHECKED)}</p></footer>"
    )
