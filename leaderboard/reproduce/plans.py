"""From a printed table to the runs that reproduce it, and back to the line each run belongs to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from benchmark.protocol import Settings, plan, protocols
from benchmark.spec import RunSpec
from datasets.base import open_dataset
from leaderboard.published import KEYS, table_rows
from leaderboard.reproduce import fedadg, fedfd_a, gperxan, stablefdg
from leaderboard.reproduce.reading import Paper, Reading

PAPERS: dict[str, Paper] = {
    "fedfd_a": fedfd_a.PAPER,
    "gperxan": gperxan.PAPER,
    "stablefdg": stablefdg.PAPER,
    "fedadg": fedadg.PAPER,
}


@dataclasses.dataclass(frozen=True)
class Line:
    """One printed line and its runs here; without runs, the reason."""

    key: dict[str, str]
    cells: pd.DataFrame
    reading: Reading | None
    specs: list[RunSpec]
    reason: str = ""

    @property
    def selection(self) -> str:
        """The rule of the paper's protocol for choosing a round."""
        name, _ = PAPERS[self.key["paper"]].settings[self.key["setting"]]
        return protocols[name].selection

    @property
    def where(self) -> str:
        key = self.key
        return f"{key['paper']}/{key['table']} {self.title} on {key['dataset']}"

    @property
    def title(self) -> str:
        return f"{self.key['method']} {self.key['variant']}".strip()


def lines_of(table: str, changes: Mapping[str, Any] | None = None) -> list[Line]:
    """Every line of a table in the order of the paper."""
    rows = table_rows(table)
    return [
        _line(dict(zip(KEYS, key, strict=True)), cells, changes or {})
        for key, cells in rows.groupby(KEYS, sort=False)
    ]


def specs_of(table: str, changes: Mapping[str, Any] | None = None) -> list[RunSpec]:
    """The runs of a table, each once."""
    found = {spec.id: spec for line in lines_of(table, changes) for spec in line.specs}
    return list(found.values())


def _line(key: dict[str, str], cells: pd.DataFrame, changes: Mapping[str, Any]) -> Line:
    paper = PAPERS[key["paper"]]
    reason = _match(paper.unplanned, key["table"], key["dataset"], key["method"])
    if reason:
        return Line(key, cells, None, [], reason)
    reading = _match(paper.variants, key["table"], key["method"], key["variant"])
    if reading is None and not key["variant"]:
        reading = paper.methods.get(key["method"])
    if reading is None:
        return Line(key, cells, None, [], "no reading of this line")
    specs = list(_specs(paper, key, cells, reading, changes))
    return Line(key, cells, reading, specs)


def _match(facts: Mapping[tuple[str, str, str], Any], *wanted: str) -> Any:
    """The fact for three names, a `*` standing for any; the most particular wins."""
    fitting = [
        (sum(name == "*" for name in names), value)
        for names, value in facts.items()
        if all(a in ("*", b) for a, b in zip(names, wanted, strict=True))
    ]
    return min(fitting, key=lambda found: found[0])[1] if fitting else None


def _specs(
    paper: Paper, key: dict, cells: pd.DataFrame, reading: Reading, changes: Mapping[str, Any]
) -> Iterator[RunSpec]:
    name, setting = paper.settings[key["setting"]]
    setting = dict(setting)
    changes = dict(changes)
    users = changes.pop("training", {})
    training = {**setting.pop("training", {}), **reading.training, **users}
    fields = {**setting, **reading.changes}
    backbone = paper.backbones.get(key["backbone"])
    if backbone is not None:
        fields.setdefault("backbone", backbone)
    protocol = protocols[name]
    stated = {
        m: {**protocol.overrides.get(m, {}), **values} for m, values in reading.overrides.items()
    }
    protocol = dataclasses.replace(protocol, overrides={**protocol.overrides, **stated})
    for dataset in key["dataset"].split("+"):
        planned = plan(
            protocol,
            [reading.expression],
            datasets=[dataset],
            targets=_targets(dataset, cells),
            settings=Settings({}, training),
            changes={**fields, **changes},
        )
        yield from planned.specs


def _targets(dataset: str, cells: pd.DataFrame) -> list[str]:
    """The domains a line's cells name; an average alone stands for all of them."""
    names = [name for name in cells["target"].unique() if name != "avg"]
    if not names or "avg" in set(cells["target"]):
        return ["all"]
    known = open_dataset(dataset)
    return [known.find_domain(name) for name in names]
