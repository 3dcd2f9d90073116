"""A piece of HTML that stands alone: its own small style, no script, every text escaped."""

from __future__ import annotations

import math
from html import escape

from leaderboard.formats.parts import blank, grouped, number, spread, stub_columns, walk
from leaderboard.sheets import Cell, Sheet

STYLE = """<style>
.fdb{font:14px/1.45 system-ui,sans-serif;margin:1em 0;overflow-x:auto}
.fdb table{border-collapse:collapse;font-variant-numeric:tabular-nums}
.fdb th,.fdb td{padding:.2em .6em;text-align:right;white-space:nowrap}
.fdb th{font-weight:600}
.fdb tbody th{font-weight:400}
.fdb tbody th,.fdb .stub{text-align:left}
.fdb th[scope=colgroup]{text-align:center;border-bottom:1px solid #8888}
.fdb thead tr:first-child,.fdb tbody,.fdb table{border-top:1.5px solid currentColor}
.fdb table{border-bottom:1.5px solid currentColor}
.fdb .group{border-top:1px solid #8888}
.fdb .shares td,.fdb .shares .method{color:#767676}
.fdb small{opacity:.75}
.fdb .shares small{opacity:1}
.fdb figcaption{max-width:80ch;margin-top:.5em}
</style>"""

METHOD = ' class="method"'


def html(sheet: Sheet) -> str:
    body = "\n".join(_bodies(sheet))
    notes = "".join(f"<br><small>{escape(note)}</small>" for note in sheet.footnotes)
    title, caption = escape(sheet.title), escape(sheet.caption())
    return (
        f'{STYLE}\n<figure class="fdb">\n<table>\n<thead>\n{_head(sheet)}\n</thead>\n{body}\n'
        f"</table>\n<figcaption><b>{title}</b><br>{caption}{notes}</figcaption>\n</figure>"
    )


def _head(sheet: Sheet) -> str:
    stubs = stub_columns(sheet)
    groups = grouped(sheet)
    names = [f'<th scope="col" class="stub">{escape(sheet.headings[k])}</th>' for k in stubs]
    heads = [f'<th scope="col">{escape(column.name)}</th>' for column in sheet.columns]
    rows = [f"<tr>{''.join([*names, *heads])}</tr>"]
    if len(groups) > 1:
        spans = [f'<th scope="colgroup" colspan="{n}">{escape(g)}</th>' for g, _, n in groups]
        rows.insert(0, f'<tr><td colspan="{len(stubs)}"></td>{"".join(spans)}</tr>')
    return "\n".join(rows)


def _bodies(sheet: Sheet) -> list[str]:
    stubs = stub_columns(sheet)
    lines = ["<tbody>"]
    for count, (names, row, places) in enumerate(walk(sheet)):
        if count and names[0]:
            lines.append("</tbody>\n<tbody>")
        kinds = ["shares"] * row.shares + ["group"] * bool(count and names[1])
        kind = f' class="{" ".join(kinds)}"' if kinds else ""
        texts = [
            f'<th scope="row"{METHOD if k == 2 else ""}>{escape(names[k])}</th>' for k in stubs
        ]
        texts += [
            f"<td>{_text(cell, place, sheet)}</td>"
            for cell, place in zip(row.cells, places, strict=True)
        ]
        lines.append(f"<tr{kind}>{''.join(texts)}</tr>")
    return [*lines, "</tbody>"]


def _text(cell: Cell, place: int, sheet: Sheet) -> str:
    if math.isnan(cell.mean):
        value = escape(blank(cell))
    else:
        value = number(cell)
        value = {1: f"<b>{value}</b>", 2: f"<u>{value}</u>"}.get(place, value)
        if around := spread(cell, sheet.brackets):
            value += f" <small>{around}</small>"
    return value + escape(cell.mark) + (f" <small>({cell.partial})</small>" if cell.partial else "")
