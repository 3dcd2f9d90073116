"""Protocols are data, and a plan is a list of specs: protocol × methods × targets × seeds."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmark.backbones.base import backbones, check_image_size
from benchmark.errors import UserError, unknown
from benchmark.hparams import resolve, trial
from benchmark.method import Method, compose, methods, parts_of
from benchmark.registry import Registry
from benchmark.spec import RunSpec, Training
from datasets.base import Dataset, open_dataset
from datasets.partition import canonical_partition, make_partition
from datasets.splits import canonical_split
from datasets.transforms import transforms

TEST_PARTS = ("all", "in", "listed")
"""Of the target: every image, those outside its own validation part, or its published test part."""


@dataclasses.dataclass(frozen=True)
class Protocol:
    """One paper's setting: everything a run needs besides method, target and seed."""

    doc: str
    datasets: tuple[str, ...]
    backbone: str
    training: Training
    seeds: tuple[int, ...]
    pretrained: str = "none"
    transform: str = "digits"
    image_size: int = 32
    split: str = "domainbed"
    partition: str = "single_domain"
    test_part: str = "all"
    selection: str = "training_domain"
    overrides: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """Hyper-parameters a paper states for a method, by method name."""
    by_dataset: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """Fields that differ on a dataset; of `training`, only the differing ones."""

    def on(self, dataset: str, changes: Mapping[str, Any]) -> Protocol:
        """The protocol for one dataset, with the user's changes over the paper's."""
        stated = dict(self.by_dataset.get(dataset, {}))
        training = self.training.changed(stated.pop("training", {}))
        given = dict(changes)
        training = training.changed(given.pop("training", {}))
        return dataclasses.replace(self, **{**stated, **given, "training": training})


protocols: Registry[Protocol] = Registry("protocol", "benchmark.protocols")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What `--set` changed: hyper-parameters by method, and the training budget."""

    methods: Mapping[str, Mapping[str, str]]
    training: Mapping[str, str]

    @classmethod
    def parse(cls, assignments: Iterable[str]) -> Settings:
        """`["fedprox.mu=0.1", "training.rounds=5"]` as settings, every name checked."""
        by_method: dict[str, dict[str, str]] = {}
        training: dict[str, str] = {}
        for text in assignments:
            path, sign, value = text.partition("=")
            scope, dot, key = path.strip().rpartition(".")
            if not (sign and dot and scope and key):
                raise UserError(f"--set {text!r}: write METHOD.NAME=VALUE or training.NAME=VALUE")
            if scope == "training":
                training[key] = value.strip()
            elif scope in methods:
                by_method.setdefault(scope, {})[key] = value.strip()
            else:
                raise unknown("method in --set", scope, [*methods.names(), "training"])
        return cls(by_method, training)


@dataclasses.dataclass(frozen=True)
class Plan:
    """The runs of a sweep, and what a pattern named that could not be planned, with the reason."""

    specs: list[RunSpec]
    left_out: list[str]
    selection: str
    """The protocol's rule for choosing a round."""


def plan(
    protocol: Protocol,
    patterns: Sequence[str],
    *,
    datasets: Sequence[str] | None = None,
    targets: Sequence[str] = ("all",),
    trials: int = 1,
    settings: Settings | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Plan:
    """All runs of a sweep, ordered by dataset, method, target, configuration and seed.

    `patterns` are method names, shell patterns, compositions or `all`; `changes` are fields of the
    protocol that the user sets.
    """
    settings = settings or Settings({}, {})
    if trials < 1:
        raise UserError(f"--trials {trials}: at least 1")
    kinds = [open_dataset(name) for name in datasets or protocol.datasets]
    held_out = _targets(kinds, targets)
    specs: dict[str, RunSpec] = {}
    left_out: list[str] = []
    used: set[str] = set()
    for dataset in kinds:
        given = {**(changes or {}), "training": settings.training}
        setting = protocol.on(dataset.name, given)
        _check_setting(setting)
        expressions, unfit = expand_methods(patterns, setting)
        left_out += unfit
        used |= {part for expression in expressions for part in parts_of(expression)}
        domains = held_out[dataset.name]
        for spec in _specs(setting, dataset, expressions, domains, trials, settings):
            specs[spec.id] = spec  # trials of a method without a space coincide
    for name in settings.methods:
        if name not in used:
            raise UserError(f"--set {name}.…: no planned run uses {name!r}; add it to --methods")
    return Plan(list(specs.values()), list(dict.fromkeys(left_out)), protocol.selection)


def _specs(
    setting: Protocol,
    dataset: Dataset,
    expressions: Sequence[str],
    targets: Sequence[str],
    trials: int,
    settings: Settings,
) -> Iterator[RunSpec]:
    split = canonical_split(setting.split)
    for expression in expressions:
        partition = _partition_for(expression, setting, dataset)
        configurations = [_hparams(expression, k, setting, settings) for k in range(trials)]
        for target in targets:
            for hparams in configurations:
                for seed in setting.seeds:
                    yield RunSpec(
                        dataset=dataset.name,
                        target=target,
                        method=expression,
                        hparams=hparams,
                        backbone=setting.backbone,
                        pretrained=setting.pretrained,
                        transform=setting.transform,
                        image_size=setting.image_size,
                        split=split,
                        partition=partition,
                        test_part=setting.test_part,
                        training=setting.training,
                        seed=seed,
                    )


def expand_methods(patterns: Sequence[str], setting: Protocol) -> tuple[list[str], list[str]]:
    """Method expressions for names, patterns, compositions and `all`; and why some that a pattern
    means are left out. A method asked for by name must fit the setting."""
    chosen: list[str] = []
    unfit: list[str] = []
    for pattern in patterns:
        for expression in [pattern] if "+" in pattern else methods.match(pattern):
            problem = misfit(compose(expression), setting)
            if problem is None:
                chosen.append(compose(expression).name)
            elif expression == pattern:
                raise UserError(problem)
            else:
                unfit.append(problem)
    return list(dict.fromkeys(chosen)), unfit


def misfit(method: type[Method], setting: Protocol) -> str | None:
    """Why a method cannot run in a setting, or None."""
    backbone, training = setting.backbone, setting.training
    if method.info.needs_batchnorm and not backbones[backbone].batchnorm:
        choice = {"cnn_digitsdg": "cnn_small_bn", "alexnet": "alexnet_bn"}.get(backbone, "resnet18")
        return f"{method.name} needs batch normalisation; {backbone} has none; choose {choice}"
    if method.info.needs_tokens and not backbones[backbone].tokens:
        return f"{method.name} works on the tokens of a transformer; choose --backbone vit_b16"
    if method.info.needs_fresh_sgd and training.keep_optimizer:
        return f"{method.name} needs a fresh optimiser: set training.keep_optimizer=false"
    if method.info.needs_fresh_sgd and training.optimizer != "sgd":
        return f"{method.name} needs SGD: set training.optimizer=sgd"
    return None


def _hparams(expression: str, index: int, setting: Protocol, settings: Settings) -> dict[str, Any]:
    """Every hyper-parameter of one configuration: drawn, then the protocol's, then the user's."""
    given: dict[str, Any] = dict(trial(compose(expression), index, expression))
    for part in parts_of(expression):
        stated = setting.overrides.get(part, {}) if index == 0 else {}
        given |= {**stated, **settings.methods.get(part, {})}
    return resolve(compose(expression), given, expression)


def _partition_for(expression: str, setting: Protocol, dataset: Dataset) -> str:
    """The partition a method runs on: the protocol's, or pooled for a centralised method."""
    if compose(expression).info.centralised:
        return canonical_partition("pooled")
    clients = make_partition(setting.partition).client_count(len(dataset.domains) - 1)
    wanted = setting.training.clients_per_round
    if wanted is not None and wanted > clients:
        raise UserError(
            f"training.clients_per_round={wanted}, but partition {setting.partition} of "
            f"{dataset.name} makes {clients} clients; choose at most {clients}"
        )
    return canonical_partition(setting.partition)


def _check_setting(setting: Protocol) -> None:
    if not setting.seeds:
        raise UserError("no seeds: name at least one, e.g. --seeds 0")
    if setting.test_part not in TEST_PARTS:
        raise unknown("test part", setting.test_part, TEST_PARTS)
    transforms[setting.transform]
    check_image_size(setting.backbone, setting.image_size)


def _targets(kinds: Sequence[Dataset], names: Sequence[str]) -> dict[str, list[str]]:
    """The domains to hold out of each dataset; a letter or any usual spelling will do."""
    if "all" in names:
        return {dataset.name: list(dataset.domains) for dataset in kinds}
    chosen: dict[str, list[str]] = {dataset.name: [] for dataset in kinds}
    for name in names:
        found = {}
        for dataset in kinds:
            with contextlib.suppress(UserError):
                found[dataset.name] = dataset.find_domain(name)
        if not found:
            everywhere = [domain for dataset in kinds for domain in dataset.domains]
            raise unknown(f"target domain of {', '.join(chosen)}", name, everywhere)
        for dataset, domain in found.items():
            chosen[dataset].append(domain)
    return {dataset: list(dict.fromkeys(domains)) for dataset, domains in chosen.items()}
