"""The page made from the snapshot's rows: a table, and what it says in words."""

from __future__ import annotations

import textwrap

import pandas as pd
from tabulate import tabulate

from leaderboard.snapshot.rows import BASELINE, DATASET, PAPERS, PROTOCOL

PAGE = """\
# Where the four papers' methods stand on {dataset}

Measured, not cited: {runs} runs under the protocol `{protocol}` ({methods} methods, {domains}
held-out domains, {seeds} seeds each), made with the code of commit {commit}. {dataset} is the small
embedded dataset, here with a tiny network and ten rounds; **these are not the papers' datasets,
networks or budgets, and nothing here says whether their numbers can be reproduced.** Nothing was
tuned: every method has its default hyper-parameters, which are its paper's where that states them.

{table}

Accuracy in percent on the unseen domain, in the round with the best validation accuracy on the
source domains: mean ± standard deviation over {seeds} seeds; the average is over domains, seed by
seed. *− FedAvg*: mean ± standard deviation of the {pairs} differences to FedAvg on the same domain
and seed, in percentage points; *better*: in how many of the {pairs} it is positive. *last* and
*oracle*: the average with the last round, and with the round that is best on the unseen domain
itself, which no one could have chosen. *validation*: the average on the source domains in the
chosen round, which tells a method that is not trained to the end from one that does not generalise.
Ordered by average. SiloBN is FedAvg here: it keeps nothing but running statistics, which training
does not read, and with every client in every round their average is the same.

{words}

Remade by `python -m leaderboard.snapshot RUNS` from the runs of

```sh
python -m benchmark.sweep --protocol {protocol} --seeds {seed_list} --out RUNS --methods \\
    {method_list}
```

which are one by one in [`minidigits.csv`](../leaderboard/snapshot/minidigits.csv).
"""


def page(rows: pd.DataFrame) -> str:
    """The whole page; a pure function of the rows."""
    table = summary(rows)
    methods = list(dict.fromkeys(rows["method"]))
    seeds = sorted(rows["seed"].unique())
    pairs = rows["target"].nunique() * len(seeds)
    return PAGE.format(
        dataset=DATASET,
        protocol=PROTOCOL,
        runs=len(rows),
        methods=len(methods),
        domains=rows["target"].nunique(),
        seeds=len(seeds),
        pairs=pairs,
        commit=", ".join(dict.fromkeys(rows["commit"])),
        table=table_text(table, list(dict.fromkeys(rows["target"]))),
        words=words(table, pairs),
        seed_list=" ".join(map(str, seeds)),
        method_list=" \\\n    ".join(textwrap.wrap(" ".join(methods), 90)),
    )


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per method, best average first, all in percent: for every domain, for `average`
    and for `gain` the mean and (with `±`) the standard deviation; `better`; means of the rest."""
    lines = {}
    base = rows[rows["method"] == BASELINE].set_index(["target", "seed"])["training_domain"]
    for method, own in rows.groupby("method", sort=False):
        line = {"label": own["label"].iloc[0]}
        for target, part in own.groupby("target", sort=False):
            line |= _spread(target, part["training_domain"])
        line |= _spread("average", own.groupby("seed")["training_domain"].mean())
        gain = own.set_index(["target", "seed"])["training_domain"] - base
        line |= _spread("gain", gain)
        line["better"] = int((gain > 0).sum())
        for name in ("last", "oracle", "validation"):
            line[name] = 100 * own[name].mean()
        lines[method] = line
    table = pd.DataFrame.from_dict(lines, orient="index")
    return table.sort_values("average", ascending=False, kind="stable")


def _spread(name: str, values: pd.Series) -> dict[str, float]:
    return {name: 100 * values.mean(), f"{name} ±": 100 * values.std()}


def table_text(table: pd.DataFrame, domains: list[str]) -> str:
    """The table in Markdown."""
    lines = []
    for method, line in table.iterrows():
        cells = [f"{line[name]:.1f} ± {line[f'{name} ±']:.1f}" for name in (*domains, "average")]
        gain = "" if method == BASELINE else f"{line['gain']:+.1f} ± {line['gain ±']:.1f}"
        better = "" if method == BASELINE else str(line["better"])
        rest = [f"{line[name]:.1f}" for name in ("last", "oracle", "validation")]
        lines.append([line["label"], f"`{method}`", *cells, gain, better, *rest])
    header = ["method", "expression", *domains, "average", "− FedAvg", "better"]
    header += ["last", "oracle", "validation"]
    align = ["left", "left", *["right"] * (len(header) - 2)]
    return tabulate(lines, header, tablefmt="pipe", disable_numparse=True, colalign=align)


def words(table: pd.DataFrame, pairs: int) -> str:
    """What the table says about each paper, in its own numbers."""
    others = table.drop(index=BASELINE)
    above = int((others["gain"] > 0).sum())
    best = table.iloc[0]
    texts = [
        f"FedAvg reaches {table.loc[BASELINE, 'average']:.1f} on average; {above} of the "
        f"{len(others)} other methods are above it, and {best['label']} is first with "
        f"{best['average']:.1f}."
    ]
    for paper, methods in PAPERS.items():
        parts = [
            f"{table.loc[name, 'label']} {table.loc[name, 'gain']:+.1f} "
            f"(better in {table.loc[name, 'better']} of {pairs})"
            for name in methods
        ]
        texts.append(f"{paper}'s paper: {', '.join(parts)}.")
    worst = table.iloc[-1]
    texts.append(
        f"{worst['label']} is last, with a validation accuracy of {worst['validation']:.1f} where "
        f"FedAvg has {table.loc[BASELINE, 'validation']:.1f}."
    )
    texts.append(
        "Seeds of one domain are not independent cases, so four domains cannot establish a small "
        "difference as an order of the methods."
    )
    return textwrap.fill(" ".join(texts), 100)
