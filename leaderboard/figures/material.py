"""What figures are drawn from, worked out once: chosen rounds, curves, names, costs."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence

import pandas as pd

from benchmark.results import Collection
from benchmark.spec import RunSpec
from leaderboard.costs import cost_frame
from leaderboard.select import SELECTIONS, choose_configurations, rounds_of


@dataclasses.dataclass(frozen=True)
class Material:
    """The results of one setting, with centralised runs of the same budget as references. Every
    method is shown by its own way of predicting."""

    spec: RunSpec
    found: Collection
    rule: str
    curves: pd.DataFrame
    """Every evaluated round of every run."""

    @property
    def domains(self) -> list[str]:
        return self.found.domains[self.spec.dataset]

    @property
    def title(self) -> str:
        return f"{self.spec.dataset}, {self.spec.backbone}, {self.spec.partition}"

    @property
    def slug(self) -> str:
        """The beginning of file names; settings that differ in less add their hash."""
        return re.sub(r"[^\w.]+", "-", self.title).strip("-").lower()

    @functools.cached_property
    def labels(self) -> Mapping[str, str]:
        return {name: about["label"] for name, about in self.found.about.items()}

    @functools.cached_property
    def categories(self) -> Mapping[str, str]:
        """By label."""
        about = self.found.about
        return {facts["label"]: facts["category"] for facts in about.values()}

    def chosen(self, rule: str | None = None, every_configuration: bool = False) -> pd.DataFrame:
        """One row per run, accuracies in percent: the round a rule takes."""
        rule = rule or self.rule
        table = SELECTIONS[rule](self.curves)
        if not every_configuration:
            table = choose_configurations(table, rule)
        return self.named(table)

    def named(self, table: pd.DataFrame) -> pd.DataFrame:
        return table.assign(
            label=table["method"].map(self.labels).astype(object),
            val=100 * table["val"],
            test=100 * table["test"],
        )

    def averages(self, table: pd.DataFrame | None = None) -> pd.DataFrame:
        """Mean over domains by label, of methods that have all of them; best first."""
        table = self.chosen() if table is None else table
        per_domain = table.groupby(["label", "target"])[["val", "test"]].mean().reset_index()
        groups = per_domain.groupby("label")
        whole = groups["target"].nunique() == len(self.domains)
        means = groups[["val", "test"]].mean()[whole]
        return means.sort_values("test", ascending=False, kind="stable")

    @functools.cached_property
    def costs(self) -> pd.DataFrame:
        """Mean costs by label, of the runs that are shown."""
        shown = set(self.chosen()["id"])
        results = [result for result in self.found.results if result.spec.id in shown]
        frame = cost_frame(results).drop(columns="id")
        frame["label"] = [self.labels[result.spec.method] for result in results]
        return frame.groupby("label").mean()


def materials(found: Collection, rule: str) -> list[Material]:
    """One for every setting in a store."""
    curves = rounds_of(found.frame())
    own = {name: about["predictor"] for name, about in found.about.items()}
    curves = curves[curves["predictor"].astype(object) == curves["method"].map(own).astype(object)]
    specs: dict[str, RunSpec] = {}
    for result in found.results:
        specs.setdefault(result.spec.setting, result.spec)
    pooled = [spec for spec in specs.values() if spec.partition.startswith("pooled")]
    federated = [spec for spec in specs.values() if spec not in pooled]
    company = {spec.pooled_setting for spec in federated}
    made = []
    for spec in [*federated, *(s for s in pooled if s.pooled_setting not in company)]:
        references = [s for s in pooled if s.pooled_setting == spec.pooled_setting]
        made.append(_material(found, rule, curves, spec, {spec.setting, *_settings(references)}))
    return made


def _settings(specs: Sequence[RunSpec]) -> list[str]:
    return [spec.setting for spec in specs]


def _material(
    found: Collection, rule: str, curves: pd.DataFrame, spec: RunSpec, settings: set[str]
) -> Material:
    part = dataclasses.replace(
        found, results=[r for r in found.results if r.spec.setting in settings]
    )
    return Material(spec, part, rule, curves[curves["setting"].isin(settings)])
