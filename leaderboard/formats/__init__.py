"""A sheet as text: markdown for GitHub, LaTeX with booktabs, a piece of HTML, tidy CSV.

Best of a column is bold, second underlined; a method of which more than weights leaves a client is
grey where there is colour and carries a mark everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from leaderboard.formats.html import html
from leaderboard.formats.latex import latex
from leaderboard.formats.markdown import markdown
from leaderboard.formats.tidy import tidy
from leaderboard.sheets import Sheet

FORMATS: dict[str, Callable[[Sheet], str]] = {
    "markdown": markdown,
    "latex": latex,
    "html": html,
    "csv": lambda sheet: tidy([sheet]),
}


def render(sheets: Sequence[Sheet], form: str) -> str:
    """Several sheets as one text; of CSV, with one header."""
    if form == "csv":
        return tidy(sheets)
    return "\n\n".join(FORMATS[form](sheet) for sheet in sheets) + "\n"


__all__ = ["FORMATS", "html", "latex", "markdown", "render", "tidy"]
