"""LaTeX for a paper that uses booktabs; grey where the paper also loads xcolor."""

from __future__ import annotations

import math
from collections.abc import Sequence

from leaderboard.formats.parts import blank, grouped, number, spread, stub_columns, walk
from leaderboard.sheets import Cell, Sheet

GREY = r"\providecommand{\fdbgrey}[1]{\ifdefined\textcolor\textcolor[gray]{0.45}{#1}\else#1\fi}"
"""Defined in front of a table that needs it, so that the table compiles as it stands."""
FIT = (
    r"\providecommand{\fdbfit}[1]{\sbox0{#1}\ifdim\wd0>\linewidth\ifdefined\resizebox"
    r"\resizebox{\linewidth}{!}{\usebox0}\else\makebox[\linewidth]{\usebox0}\fi"
    r"\else\leavevmode\usebox0\fi}"
)
"""A table wider than the text shrinks where graphicx is loaded and is centred where it is not."""


def latex(sheet: Sheet) -> str:
    stubs = stub_columns(sheet)
    columns = len(sheet.columns)
    kind = "table*" if columns > 5 else "table"
    small = r"\scriptsize\setlength{\tabcolsep}{3pt}" if columns > 7 else ""
    notes = [rf"\par\smallskip{{\scriptsize {escape(note)}\par}}" for note in sheet.footnotes]
    return "\n".join(
        [
            *([GREY] if any(row.shares for row in sheet.rows) else []),
            FIT,
            rf"\begin{{{kind}}}[t]",
            rf"\centering{small}",
            rf"\caption{{{escape(sheet.title)}: {escape(sheet.caption())}.}}\smallskip",
            rf"\fdbfit{{\begin{{tabular}}{{{'l' * len(stubs)}{'c' * columns}}}",
            r"\toprule",
            *_header(sheet, stubs),
            r"\midrule",
            *_body(sheet, stubs),
            r"\bottomrule",
            r"\end{tabular}}",
            *notes,
            rf"\end{{{kind}}}",
        ]
    )


def _header(sheet: Sheet, stubs: Sequence[int]) -> list[str]:
    groups = grouped(sheet)
    lines = []
    if len(groups) > 1:
        parts = [
            rf"\multicolumn{{{n}}}{{c}}{{{escape(name)}}}" if name else " & " * (n - 1)
            for name, _, n in groups
        ]
        lines.append(" & ".join([*[""] * len(stubs), *parts]).lstrip() + r" \\")
        left = len(stubs)
        spans = [(left + start + 1, left + start + n) for name, start, n in groups if name]
        lines.append("".join(rf"\cmidrule(lr){{{first}-{end}}}" for first, end in spans))
    names = [escape(sheet.headings[k]) for k in stubs]
    names = [name[:1].upper() + name[1:] for name in names]
    return [*lines, " & ".join([*names, *(escape(c.name) for c in sheet.columns)]) + r" \\"]


def _body(sheet: Sheet, stubs: Sequence[int]) -> list[str]:
    lines = []
    for number_, (names, row, places) in enumerate(walk(sheet)):
        if number_ and (names[0] or names[1]):
            lines.append(r"\midrule")
        texts = [escape(names[k]) for k in stubs[-2:] if k >= 2]
        texts += [_text(c, p, sheet) for c, p in zip(row.cells, places, strict=True)]
        if row.shares:
            texts = [rf"\fdbgrey{{{text}}}" if text else "" for text in texts]
        front = [escape(names[k]) for k in stubs if k < 2]
        lines.append(" & ".join([*front, *texts]) + r" \\")
    return lines


def _text(cell: Cell, place: int, sheet: Sheet) -> str:
    if math.isnan(cell.mean):
        value = escape(blank(cell))
    else:
        value = number(cell).replace("-", "$-$")
        value = {1: rf"\textbf{{{value}}}", 2: rf"\underline{{{value}}}"}.get(place, value)
        if around := spread(cell, sheet.brackets):
            around = around.replace("± ", r"$\pm$").replace("-", "$-$")
            value += rf" {{\scriptsize {around}}}"
    partial = rf" {{\scriptsize ({cell.partial})}}" if cell.partial else ""
    return value + escape(cell.mark) + partial


SIGNS = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": "--",
    "±": r"$\pm$",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "Δ": r"$\Delta$",
    "α": r"$\alpha$",
    "λ": r"$\lambda$",
    "μ": r"$\mu$",
    "χ": r"$\chi$",
    "²": r"\textsuperscript{2}",
    **{sign: "\\" + sign for sign in "&%$#_{}"},
}


def escape(text: str) -> str:
    """Text that LaTeX prints as it stands, in one line."""
    return "".join(SIGNS.get(sign, sign) for sign in " ".join(text.split()))
