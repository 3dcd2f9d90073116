"""Made-up results for the tests of the reading side: no training, every number from a formula."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmark.results import Result
from benchmark.seeds import seed_for
from benchmark.spec import RunSpec, Training

TESTED = 400


def make_result(
    method: str = "fedavg",
    dataset: str = "Sample",
    target: str = "a",
    seed: int = 0,
    domains: Sequence[str] = ("a", "b", "c"),
    rounds: int = 4,
    label: str | None = None,
    kinds: Sequence[str] = ("weights",),
    hparams: dict | None = None,
) -> Result:
    """One run whose accuracies grow with rounds and differ by method, target and seed."""
    training = Training(rounds=rounds, local_steps=5, batch_size=8, lr=0.05)
    spec = RunSpec(
        dataset=dataset,
        target=target,
        method=method,
        hparams=hparams or {},
        backbone="cnn_tiny_bn",
        pretrained="none",
        transform="digits",
        image_size=32,
        split="domainbed:fraction=0.2",
        partition="single_domain",
        test_part="all",
        training=training,
        seed=seed,
    )
    rows = [row for round in range(rounds) for row in _round(spec, round, domains)]
    names = ("round", "predictor", "part", "client", "domain", "accuracy", "loss", "count")
    return Result(
        spec=spec,
        about={
            "label": label or method.title(),
            "category": "federated",
            "predictor": "global",
            "domains": list(domains),
        },
        records={
            name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)
        },
        train_loss=[1.0 / (round + 1) for round in range(rounds)],
        partition=f"{seed_for(seed, dataset, target):016x}",
        costs={
            "parameters": 35690,
            "bytes_per_round": {f"{way}/{kind}": 5e5 for way in ("up", "down") for kind in kinds},
            "steps": 100,
            "train_seconds": 2.0,
            "ms_per_step": 20.0,
            "evaluation_seconds": 1.0,
            "ms_per_evaluated_image": 0.1,
            "peak_memory_mb": 300.0,
        },
        environment={
            "python": "3.11",
            "torch": "2.6",
            "device": "cpu",
            "threads": 1,
            "machine": "x86_64",
            "commit": "abc1234",
        },
    )


def _round(spec: RunSpec, round: int, domains: Sequence[str]) -> Iterator[tuple]:
    base = 0.3 + 0.4 * (round + 1) / spec.training.rounds
    for domain in domains:
        part = "test" if domain == spec.target else "val"
        count = TESTED if part == "test" else 50
        noise = seed_for(spec.seed, spec.method, spec.dataset, domain, round) % 100 / 500
        right = int((base + noise) * count)
        client = "" if part == "test" else domain
        yield round, "global", part, client, domain, right / count, 1.0 - noise, count


def grid(
    methods: Sequence[str], dataset: str = "Sample", seeds: Sequence[int] = (0, 1), **changes
) -> list[Result]:
    """Every method with every domain held out, for every seed."""
    domains = changes.pop("domains", ("a", "b", "c"))
    return [
        make_result(method, dataset, target, seed, domains, **changes)
        for method in methods
        for target in domains
        for seed in seeds
    ]
