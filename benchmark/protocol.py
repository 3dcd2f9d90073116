"""Protocols are data, and a plan is a list of specs: protocol × methods × targets × seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
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


def expand_methods(patterns: Sequence[str], backbone: str) -> tuple[list[str], list[str]]:
    """Method expressions for names, patterns, compositions and `all`; and, for patterns, those that
    the backbone cannot carry. A method asked for by name must fit."""
    chosen: list[str] = []
    unfit: list[str] = []
    for pattern in patterns:
        for expression in [pattern] if "+" in pattern else methods.match(pattern):
            problem = misfit(compose(expression), backbone)
            if problem is None:
                chosen.append(compose(expression).name)
            elif expression == pattern:
                raise UserError(problem)
            else:
                unfit.append(problem)
    return list(dict.fromkeys(chosen)), unfit


def misfit(method: type[Method], backbone: str) -> str | None:
    """Why a method cannot run on a backbone, or None."""
    if method.info.needs_batchnorm and not backbones[backbone].batchnorm:
        choice = {"cnn_digitsdg": "cnn_small_bn", "alexnet": "alexnet_bn"}.get(backbone, "resnet18")
        return f"{method.name} needs batch normalisation; {backbone} has none; choose {choice}"
    return None


def plan(
    protocol: Protocol,
    expressions: Sequence[str],
    *,
    targets: Sequence[str] = ("all",),
    trials: int = 1,
    settings: Settings | None = None,
) -> list[RunSpec]:
    """All runs of a sweep, ordered by dataset, method, target, configuration and seed."""
    settings = settings or Settings({}, {})
    if trials < 1:
        raise UserError(f"--trials {trials}: at least 1")
    if not protocol.seeds:
        raise UserError("no seeds: name at least one, e.g. --seeds 0")
    training = protocol.training.changed(settings.training)
    transforms[protocol.transform]
    check_image_size(protocol.backbone, protocol.image_size)
    if protocol.test_part not in ("all", "in"):
        raise unknown("test part", protocol.test_part, ("all", "in"))
    _check_used(settings, expressions)
    kinds = [open_dataset(name) for name in protocol.datasets]
    _check_targets(kinds, targets)
    specs = {}
    for dataset in kinds:
        domains = [d for d in dataset.domains if "all" in targets or d in targets]
        for expression in expressions:
            partition = _partition_for(expression, protocol, training, dataset)
            for target in domains:
                for index in range(trials):
                    hparams = _hparams(expression, index, protocol, settings)
                    for seed in protocol.seeds:
                        spec = RunSpec(
                            dataset=dataset.name,
                            target=target,
                            method=expression,
                            hparams=hparams,
                            backbone=protocol.backbone,
                            pretrained=protocol.pretrained,
                            transform=protocol.transform,
                            image_size=protocol.image_size,
                            split=canonical_split(protocol.split),
                            partition=partition,
                            test_part=protocol.test_part,
                            training=training,
                            seed=seed,
                        )
                        specs[spec.id] = spec  # trials of a method without a space coincide
    return list(specs.values())


def _hparams(expression: str, index: int, protocol: Protocol, settings: Settings) -> dict[str, Any]:
    """Every hyper-parameter of one configuration: drawn, then the protocol's, then the user's."""
    given: dict[str, Any] = dict(trial(compose(expression), index, expression))
    for part in parts_of(expression):
        stated = protocol.overrides.get(part, {}) if index == 0 else {}
        given |= {**stated, **settings.methods.get(part, {})}
    return resolve(compose(expression), given, expression)


def _partition_for(
    expression: str, protocol: Protocol, training: Training, dataset: Dataset
) -> str:
    """The partition a method runs on: the protocol's, or pooled for a centralised method."""
    if compose(expression).info.centralised:
        return canonical_partition("pooled")
    clients = make_partition(protocol.partition).client_count(len(dataset.domains) - 1)
    wanted = training.clients_per_round
    if wanted is not None and wanted > clients:
        raise UserError(
            f"training.clients_per_round={wanted}, but partition {protocol.partition} of "
            f"{dataset.name} makes {clients} clients; choose at most {clients}"
        )
    return canonical_partition(protocol.partition)


def _check_used(settings: Settings, expressions: Sequence[str]) -> None:
    used = {part for expression in expressions for part in parts_of(expression)}
    for name in settings.methods:
        if name not in used:
            raise UserError(f"--set {name}.…: no planned run uses {name!r}; add it to --methods")


def _check_targets(kinds: Sequence[Dataset], targets: Sequence[str]) -> None:
    everywhere = [domain for dataset in kinds for domain in dataset.domains]
    for target in targets:
        if target != "all" and target not in everywhere:
            raise unknown(
                f"target domain of {', '.join(d.name for d in kinds)}", target, everywhere
            )
