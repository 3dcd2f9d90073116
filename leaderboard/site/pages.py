"""The page of a method and the page of a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

import pandas as pd

from leaderboard.site.charts import curve_chart
from leaderboard.site.facts import DatasetFacts, MethodFacts
from leaderboard.site.parts import footer, head, list_table, page, prose, rows_table
from leaderboard.site.rows import PUBLISHED, SUBMITTED, Row

IDS_SHOWN = 20


def method_page(
    part: str,
    label: str,
    facts: MethodFacts | None,
    rows: Sequence[Row],
    links: Mapping[str, str],
    domains: Mapping[str, Sequence[str]],
    printed_costs: pd.DataFrame | None,
) -> str:
    """Idea, paper, hyper-parameters, rows, curves and costs of one method."""
    known = ""
    if facts is not None:
        shares = ", ".join(facts.shares) or "nothing"
        known = (
            '<dl class="facts">'
            f"<dt>Paper</dt><dd><cite>{escape(facts.paper)}</cite>, {escape(facts.venue)}</dd>"
            f"<dt>Category</dt><dd>{escape(facts.category)}</dd>"
            f"<dt>Leaves a client besides weights</dt><dd>{escape(shares)}</dd>"
            f"<dt>Run it</dt><dd><code>python -m benchmark.sweep --methods {escape(part)}</code>"
            "</dd></dl>"
        )
    sections = [head(label, "../index.html", known), '<main class="wrap" id="main">']
    if facts is not None and facts.idea:
        sections.append(f'<h2>Idea</h2><div class="idea">{prose(facts.idea)}</div>')
    if facts is not None and facts.hparams:
        heads = ("Name", "Default", "Search space", "Meaning")
        sections.append(f"<h2>Hyper-parameters</h2>{list_table(heads, facts.hparams)}")
    sections += _results(rows, links, domains, links[part])
    charts = [_chart(row) for row in rows if row.curves]
    if any(charts):
        sections.append(
            '<h2>Curves</h2><p class="soft">Accuracy in % on the held-out domain over rounds, the '
            f'mean over seeds.</p><div class="charts">{"".join(charts)}</div>'
        )
    sections.append(_costs(rows, printed_costs))
    sections.append(_runs(rows))
    sections.append("</main>" + footer())
    return page(f"{label}, FedDomainBed", "".join(sections))


def _results(rows: Sequence[Row], links: Mapping, domains: Mapping, here: str) -> Iterable[str]:
    if not rows:
        yield "<h2>Results</h2><p class=soft>No row of the board uses this method yet.</p>"
    for dataset in dict.fromkeys(row.dataset for row in rows):
        own = [row for row in rows if row.dataset == dataset]
        yield f"<h2>{escape(dataset)}</h2>{rows_table(own, links, domains[dataset], here)}"


def _chart(row: Row) -> str:
    caption = f"{row.dataset}, {row.setting}, {row.backbone}"
    if row.source == SUBMITTED:
        caption += f", {row.origin}"
    return curve_chart(
        row.curves, f"Accuracy of {row.label} over rounds", f"{row.label} on {caption}"
    )


def _costs(rows: Sequence[Row], printed: pd.DataFrame | None) -> str:
    lines = [_cost_line(row) for row in rows if row.results]
    text = ""
    if lines:
        heads = ("Run", "Parameters", "Up per round", "Down per round", "Step", "Image", "Memory")
        text += list_table(heads, lines, "measured in the runs, means over them")
    if printed is not None and len(printed):
        said = [
            (
                str(row.metric).replace("_", " "),
                f"{row.value} {row.unit}".strip(),
                f"{row.paper}, {row.table}",
                str(row.context),
                str(row.note),
            )
            for row in printed.itertuples()
        ]
        text += list_table(("Cost", "Value", "Source", "Context", "Note"), said, "as printed")
    return f"<h2>Costs</h2>{text}" if text else ""


def _cost_line(row: Row) -> tuple[str, ...]:
    costs = pd.DataFrame([dict(result.costs) for result in row.results])
    traffic = pd.DataFrame([dict(cost) for cost in costs["bytes_per_round"]]).fillna(0).mean()

    def direction(name: str) -> str:
        kinds = {k.partition("/")[2]: v for k, v in traffic.items() if k.startswith(name + "/")}
        return ", ".join(f"{kind} {size / 1e6:.3g} MB" for kind, size in sorted(kinds.items()))

    return (
        f"{row.label} on {row.dataset}, {row.backbone}",
        f"{costs['parameters'].mean() / 1e6:.3g} M",
        direction("up"),
        direction("down"),
        f"{costs['ms_per_step'].mean():.3g} ms",
        f"{costs['ms_per_evaluated_image'].mean():.3g} ms",
        f"{costs['peak_memory_mb'].mean():.0f} MB",
    )


def _runs(rows: Sequence[Row]) -> str:
    """The names of the runs behind measured rows, with where they were made."""
    parts = []
    for row in rows:
        if not row.results:
            continue
        specs = [result.spec for result in row.results]
        ids = escape(" ".join(spec.id for spec in specs[:IDS_SHOWN]))
        more = f" and {len(specs) - IDS_SHOWN} more" if len(specs) > IDS_SHOWN else ""
        where = row.results[0].environment
        made = ", ".join(
            f"{key} {where[key]}"
            for key in ("commit", "torch", "device")
            if where.get(key) is not None
        )
        settings = ", ".join(f"{key}={value}" for key, value in specs[0].hparams.items())
        title = f"{row.label} on {row.dataset}, {row.setting}: {len(specs)} runs, {row.origin}"
        parts.append(
            f"<details><summary>{escape(title)}</summary><p>{escape(settings or 'no settings')}; "
            f"{escape(made)}</p><p><code>{ids}</code>{more}</p></details>"
        )
    return f"<h2>Check these rows</h2>{''.join(parts)}" if parts else ""


def dataset_page(
    name: str,
    facts: DatasetFacts | None,
    rows: Sequence[Row],
    links: Mapping[str, str],
    domains: Sequence[str],
) -> str:
    """One dataset: what it is, and its rows, best averages first."""
    known = ""
    if facts is not None:
        listed = (f"{d} ({facts.counts[d]:,})" if d in facts.counts else d for d in facts.domains)
        known = (
            f'<dl class="facts"><dt>Domains</dt><dd>{escape(", ".join(listed))}</dd>'
            f"<dt>Classes</dt><dd>{facts.classes}</dd>"
            f"<dt>Citation</dt><dd>{escape(facts.citation)}</dd>"
            f"<dt>Licence</dt><dd>{escape(facts.licence)}</dd></dl>"
            f'<div class="idea">{prose(facts.about)}</div>'
        )
    sections = [head(name, "../index.html", known), '<main class="wrap" id="main">']
    for title, own in (
        ("Measured", [row for row in rows if row.source != PUBLISHED]),
        ("Published", [row for row in rows if row.source == PUBLISHED and not row.variant]),
    ):
        if own:
            own.sort(key=lambda row: -(row.average.mean if row.average else -1))
            sections.append(f"<h2>{title}</h2>{rows_table(own, links, domains)}")
    sections.append("</main>" + footer())
    return page(f"{name}, FedDomainBed", "".join(sections))
