"""Command-line flags that several programs share, and what they mean."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmark.backbones.weights import pretrained_name
from benchmark.errors import UserError
from benchmark.execute import Place
from benchmark.protocol import Plan, Settings, plan, protocols
from benchmark.registry import load_plugin


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """Which runs."""
    group = parser.add_argument_group("what to run")
    group.add_argument(
        "--methods",
        nargs="+",
        default=["fedavg"],
        metavar="NAME",
        help="names, patterns (fed*), compositions (fedprox+silobn) or all",
    )
    group.add_argument(
        "--reproduce",
        nargs="+",
        default=[],
        metavar="PAPER/TABLE",
        help="instead of --methods and --protocol: the runs of printed tables, e.g. fedfd_a/5",
    )
    group.add_argument("--protocol", default="demo", help="the setting to start from")
    group.add_argument("--datasets", nargs="+", metavar="NAME", help="instead of the protocol's")
    group.add_argument(
        "--targets", nargs="+", default=["all"], metavar="DOMAIN", help="domains to hold out"
    )
    group.add_argument(
        "--partition", help="how sources are divided, e.g. single_domain_k:clients=5"
    )
    group.add_argument("--backbone", help="the network")
    group.add_argument("--pretrained", help="none, imagenet, or the path of a state dict")
    group.add_argument("--transform", help="how images are prepared and augmented")
    group.add_argument("--image-size", type=int, metavar="PIXELS", help="side of the input")
    group.add_argument("--split", help="training and validation parts, e.g. random:fraction=0.1")
    group.add_argument(
        "--test-part",
        help="of the target: all, in (not its own validation part) "
        "or listed (its published test part)",
    )
    group.add_argument("--seeds", nargs="+", type=int, metavar="N", help="one run each")
    group.add_argument(
        "--trials",
        type=int,
        default=1,
        metavar="N",
        help="configurations per method: the defaults and N-1 random draws",
    )
    group.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        dest="settings",
        metavar="KEY=VALUE",
        help="fedprox.mu=0.1, training.rounds=5; with fedprox.mu=0.01,0.1 one run of each value",
    )
    group.add_argument(
        "--plugin",
        nargs="+",
        action="extend",
        default=[],
        metavar="FILE.py",
        help="your own methods, datasets or partitions",
    )
    group.add_argument("--out", type=Path, default=Path("runs"), help="the result store")


def add_place_options(parser: argparse.ArgumentParser) -> None:
    """Where and how; nothing here changes a number."""
    group = parser.add_argument_group("where to run")
    group.add_argument("--data", type=Path, default=Path("data"), help="folder of the datasets")
    group.add_argument(
        "--device", default="auto", help="auto, cpu, cuda or cuda:0,1 (workers take them in turn)"
    )
    group.add_argument(
        "--threads", type=int, default=1, metavar="N", help="per worker; changes the last bits"
    )
    group.add_argument(
        "--client-workers",
        type=int,
        default=1,
        metavar="N",
        help="processes that share the clients of a round, for few long runs; same bits",
    )
    group.add_argument(
        "--keep-model",
        action="store_true",
        help="the final models stay beside the results, for python -m benchmark.explain",
    )


def plan_from(options: argparse.Namespace) -> Plan:
    """The runs that the flags describe."""
    for path in options.plugin:
        load_plugin(path)
    changes = {
        "backbone": options.backbone,
        "pretrained": options.pretrained and pretrained_name(options.pretrained),
        "transform": options.transform,
        "image_size": options.image_size,
        "split": options.split,
        "partition": options.partition,
        "test_part": options.test_part,
        "seeds": options.seeds and tuple(dict.fromkeys(options.seeds)),
    }
    given = {key: value for key, value in changes.items() if value is not None}
    if options.reproduce:
        return _reproduction(options, given)
    plans = [
        plan(
            protocols[options.protocol],
            [name for text in options.methods for name in text.split(",") if name],
            datasets=options.datasets,
            targets=options.targets,
            trials=options.trials,
            settings=Settings.parse(settings),
            changes=given,
        )
        for settings in every_setting(options.settings)
    ]
    specs = {spec.id: spec for one in plans for spec in one.specs}
    return dataclasses.replace(plans[0], specs=list(specs.values()))


def every_setting(assignments: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """`["a.x=1,2", "b.y=3"]` as `("a.x=1", "b.y=3")` and `("a.x=2", "b.y=3")`: all combinations."""
    listed = []
    for text in assignments:
        name, sign, values = text.partition("=")
        listed.append([f"{name}{sign}{value}" for value in values.split(",")])
    return itertools.product(*listed)


def _reproduction(options: argparse.Namespace, changes: dict[str, Any]) -> Plan:
    """The runs of printed tables, on the datasets and targets asked for."""
    from leaderboard.reproduce.plans import lines_of

    changes = {**changes, "training": Settings.parse(options.settings).training}
    lines = [line for table in options.reproduce for line in lines_of(table, changes)]
    specs = {spec.id: spec for line in lines for spec in line.specs}
    wanted = [
        spec
        for spec in specs.values()
        if (not options.datasets or spec.dataset in options.datasets)
        and ("all" in options.targets or spec.target in options.targets)
    ]
    if not wanted:
        raise UserError(f"no run of {' '.join(options.reproduce)} fits --datasets and --targets")
    left_out = [f"{line.where}: {line.reason}" for line in lines if line.reason]
    return Plan(wanted, left_out, lines[0].selection)


def place_from(options: argparse.Namespace) -> list[Place]:
    """One place per device."""
    if options.threads < 1:
        raise UserError(f"--threads {options.threads}: at least 1")
    if options.client_workers < 1:
        raise UserError(f"--client-workers {options.client_workers}: at least 1")
    weights = options.pretrained if options.pretrained not in (None, "none", "imagenet") else None
    return [
        Place(
            options.data,
            device,
            options.threads,
            options.client_workers,
            weights=weights,
            keep_model=options.keep_model,
        )
        for device in devices(options.device)
    ]


def devices(text: str) -> list[str]:
    """`auto`, `cpu`, `cuda` or `cuda:0,1` as a list of devices that exist."""
    import torch

    count = torch.cuda.device_count()
    every = [f"cuda:{k}" for k in range(count)]
    if text == "cpu" or (text == "auto" and not every):
        return ["cpu"]
    if text in ("auto", "cuda"):
        wanted = every
    elif text.startswith("cuda:"):
        wanted = [f"cuda:{number.strip()}" for number in text.removeprefix("cuda:").split(",")]
    else:
        raise UserError(f"--device {text!r}: write auto, cpu, cuda or cuda:0,1")
    if not wanted or not set(wanted) <= set(every):
        have = ", ".join(every) or "none"
        raise UserError(f"--device {text!r}: this machine has no such GPU (found: {have}); use cpu")
    return wanted


def available_cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def worker_count(wanted: int | None, places: Sequence[Place]) -> int:
    """One worker per core, or per GPU, unless told otherwise."""
    if wanted is not None and wanted < 1:
        raise UserError(f"--workers {wanted}: at least 1")
    if wanted is not None:
        return wanted
    if places[0].device == "cpu":
        return max(1, available_cores() // (places[0].threads * places[0].client_workers))
    return len(places)
