"""Statistics as tables: intervals, ranks with their test, wins and losses, paired comparisons."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pandas as pd

from benchmark.errors import unknown
from benchmark.results import Collection
from leaderboard.aggregate import over_domains
from leaderboard.select import titled
from leaderboard.sheets import Block, Cell, Column, Row, Sheet
from leaderboard.stats import (
    TIE,
    Blocks,
    Friedman,
    Paired,
    Scores,
    average_ranks,
    bootstrap_interval,
    complete_blocks,
    friedman,
    paired,
    scores,
    wins,
)

INTERVALS = ("std", "bootstrap")


def stats_sheets(
    found: Collection,
    rule: str = "training_domain",
    interval: str = "bootstrap",
    each_seed: bool = False,
    alpha: float = 0.05,
    against: str | None = None,
) -> list[Sheet]:
    """All statistics of a store under one selection rule."""
    given = scores(found, rule)
    if against is not None and against not in given.labels:
        raise unknown("method in --against", against, given.labels)
    blocks = complete_blocks(given, each_seed)
    return [
        *accuracy_sheets(given, found, rule, interval),
        rank_sheet(given, blocks, rule, each_seed, alpha),
        win_sheet(blocks),
        paired_sheet(given, list(blocks.table.columns), against),
    ]


def accuracy_sheets(given: Scores, found: Collection, rule: str, interval: str) -> list[Sheet]:
    """Accuracy per held-out domain with its spread over seeds, one table per setting."""
    settings = {result.spec.setting: result.spec for result in found.results}
    spread = "standard deviation" if interval == "std" else "bootstrap 95% interval"
    sheets = []
    for setting, frame in given.frame.groupby("setting", sort=False):
        spec = settings[setting]
        targets = [*found.domains[spec.dataset], "average"]
        averages = over_domains(frame, ["label"], found.domains, "value").assign(target="average")
        groups = pd.concat([frame, averages]).groupby(["label", "target"])["value"]
        values = {key: list(group) for key, group in groups}
        seeds = max(len(group) for group in values.values())
        rows = [
            Row(label, tuple(_cell(values.get((label, t), []), interval, seeds) for t in targets))
            for label in dict.fromkeys(frame["label"])
        ]
        sheets.append(
            Sheet(
                f"Accuracy: {spec.dataset}, {spec.backbone}, {spec.partition}",
                f"accuracy in % on the unseen domain, mean and {spread} over {seeds} "
                f"seed{'s' * (seeds != 1)}, selection: {titled(rule)}",
                tuple(Column(target, derived=target == "average") for target in targets),
                (Block("", tuple(rows)),),
            )
        )
    return sheets


def _cell(values: Sequence[float], interval: str, planned: int) -> Cell:
    if not values:
        return Cell(planned=planned)
    series = pd.Series(values)
    if interval == "std":
        return Cell(series.mean(), series.std(), len(values), planned)
    low, high = bootstrap_interval(values)
    return Cell(series.mean(), seeds=len(values), planned=planned, low=low, high=high)


def rank_sheet(given: Scores, blocks: Blocks, rule: str, each_seed: bool, alpha: float) -> Sheet:
    """Average ranks with Friedman's test and Nemenyi's critical difference."""
    table = blocks.table
    test = friedman(table, alpha)
    kind = "domains and seeds" if each_seed else "domains, seeds averaged"
    note = f"over {len(table)} blocks ({kind}), selection: {titled(rule)}"
    if blocks.incomplete:
        note += f", {blocks.incomplete} blocks without every method left out"
    if test is None:
        note += "; too few methods or blocks for Friedman's test"
    else:
        note += (
            f"; Friedman χ² = {test.statistic:.2f}, p = {test.p:.3g}; Nemenyi's critical "
            f"difference of ranks {test.critical_difference:.2f} at α = {alpha:g}"
        )
    columns = (
        Column("average rank", ranked=False),
        Column("mean accuracy"),
        Column("not told apart from", ranked=False),
    )
    return Sheet(
        "Average ranks",
        note,
        columns,
        (Block("", tuple(_ranked(table, test))),),
        footnotes=tuple(f"left out: {text}" for text in given.left_out),
    )


def _ranked(table: pd.DataFrame, test: Friedman | None) -> Iterator[Row]:
    ranks = average_ranks(table)
    for label, rank in ranks.items():
        alike = "untested"
        if test is not None:
            others = [name for name in ranks.index if name != label]
            near = [name for name in others if test.pairs.loc[label, name] >= test.alpha]
            alike = ", ".join(near) or "none"
        yield Row(label, (Cell(rank, decimals=2), Cell(table[label].mean()), Cell(text=alike)))


def win_sheet(blocks: Blocks) -> Sheet:
    """Wins, ties and losses of the row against the column."""
    labels = list(blocks.table.columns)
    found = wins(blocks.table)
    rows = [
        Row(
            one,
            tuple(
                Cell(text=" " if one == other else "/".join(map(str, found[one, other])))
                for other in labels
            ),
        )
        for one in labels
    ]
    return Sheet(
        "Wins / ties / losses",
        f"of the row against the column over {len(blocks.table)} blocks; a tie is less than "
        f"{TIE:g} points",
        tuple(Column(label, ranked=False) for label in labels),
        (Block("", tuple(rows)),),
    )


def paired_sheet(given: Scores, order: Sequence[str], against: str | None) -> Sheet:
    """Mean difference of the row and the column with Wilcoxon's p, corrected after Holm."""
    found = {(c.one, c.other): c for c in paired(given, against)}
    others = [against] if against else list(order)
    rows = []
    for one in order:
        if one != against:
            cells = tuple(Cell(text=_compared(found, one, other)) for other in others)
            rows.append(Row(one, cells))
    count = len(found)
    return Sheet(
        "Paired comparisons",
        "mean difference in points, row minus column, over all (dataset, domain, seed) that both "
        f"have, n pairs; p of Wilcoxon's signed-rank test, Holm's correction over {count} "
        f"comparison{'s' * (count != 1)}",
        tuple(Column(f"against {other}", ranked=False) for other in others),
        (Block("", tuple(rows)),),
    )


def _compared(found: dict[tuple[str, str], Paired], one: str, other: str) -> str:
    """`+1.25 (n 12, p 0.03)`; the same test read from either side."""
    sign = 1.0 if (one, other) in found else -1.0
    pair = found.get((one, other)) or found.get((other, one))
    if pair is None:
        return " "
    if not pair.pairs:
        return "no pair"
    p = "" if math.isnan(pair.adjusted) else f", p {pair.adjusted:.2g}"
    difference = round(sign * pair.difference, 2) + 0.0  # no minus before a zero
    return f"{difference:+.2f} (n {pair.pairs}{p})"
