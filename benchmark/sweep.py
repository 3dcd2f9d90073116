"""`python -m benchmark.sweep --methods all`: plan a grid of runs, do what is not stored yet.

Calling the same command again is how one retries, resumes and extends a sweep.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable, Sequence

from tabulate import tabulate
from tqdm import tqdm

import benchmark.without_torch  # first, before anything imports torch
from benchmark.arguments import (
    add_place_options,
    add_plan_options,
    place_from,
    plan_from,
    worker_count,
)
from benchmark.errors import ArgumentParser, UserError, command_line
from benchmark.estimate import duration, estimate, expected_seconds
from benchmark.execute import Place, preflight
from benchmark.launch import launch
from benchmark.protocol import Plan
from benchmark.results import Collection, ResultStore
from benchmark.spec import RunSpec


@command_line
def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(
        prog="python -m benchmark.sweep",
        description="Run every method on every held-out domain and seed; what is stored is kept.",
    )
    add_plan_options(parser)
    add_place_options(parser)
    add_launcher_options(parser)
    parser.add_argument("--dry-run", action="store_true", help="list the runs and do nothing")
    options = parser.parse_args(arguments)
    check_launcher(options)
    planned = plan_from(options)
    specs = planned.specs
    for note in planned.left_out:
        print(f"left out: {note}", file=sys.stderr)
    store = ResultStore(options.out)
    if options.launcher == "slurm":
        return on_cluster(planned, store, options)
    places = place_from(options)
    workers = worker_count(options.workers, places)
    found = store.collect(specs)
    if options.dry_run:
        print(dry_run(specs, found, lambda todo: estimate(todo, found, places[0], workers)))
        return 0
    store.check_writable()
    done = {result.spec for result in found.results}
    todo = [spec for spec in specs if spec not in done]
    if todo:
        preflight(todo, places[0])
        carry_out(todo, len(done), store, places, workers, options.plugin)
    return report(specs, store, planned.selection)


def add_launcher_options(parser: argparse.ArgumentParser) -> None:
    """Who carries the runs out."""
    group = parser.add_argument_group("how to launch")
    group.add_argument(
        "--launcher", choices=("local", "slurm"), default="local", help="this machine or a cluster"
    )
    group.add_argument("--workers", type=int, metavar="N", help="processes; default: all cores")
    group.add_argument("--profile", metavar="NAME", help="what to ask SLURM for; default: cpu")
    group.add_argument(
        "--slurm",
        nargs="+",
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help="over the profile, e.g. partition=gpu time=2:00:00 (python -m slurm profiles)",
    )


def check_launcher(options: argparse.Namespace) -> None:
    if options.launcher == "local" and (options.profile or options.slurm):
        raise UserError("--profile and --slurm need --launcher slurm")
    if options.launcher == "slurm" and options.workers is not None:
        raise UserError("--workers is for this machine; use --slurm array_parallelism=N")


def on_cluster(planned: Plan, store: ResultStore, options: argparse.Namespace) -> int:
    """Submit what is neither stored nor in a live job; when all is stored, show the table."""
    from slurm import launch as cluster
    from slurm.preflight import check_elsewhere, check_here
    from slurm.profile import load_profile

    unchecked = argparse.Namespace(**{**vars(options), "device": "cpu"})
    place = dataclasses.replace(place_from(unchecked)[0], device=options.device)
    profile = load_profile(options.profile or "cpu", options.slurm)
    request = cluster.Request.of(store.root, place, options.plugin, profile)
    found = store.collect(planned.specs)
    device = request.place.device

    def cost(specs: Sequence[RunSpec]) -> list[float]:
        return expected_seconds(specs, found, device)

    if options.dry_run:
        print(dry_run(planned.specs, found, lambda todo: cluster.dry_run(todo, request, cost)))
        return 0
    store.check_writable()
    done = {result.spec for result in found.results}
    todo = [spec for spec in planned.specs if spec not in done]
    if not todo:
        return report(planned.specs, store, planned.selection)
    here = check_elsewhere if benchmark.without_torch.active else check_here

    def check(specs: Sequence[RunSpec]) -> None:
        here(specs, request.place, request.plugins)

    print(cluster.summary(cluster.submit(todo, request, cost, check), store))
    return 0


def carry_out(
    todo: Sequence[RunSpec],
    stored: int,
    store: ResultStore,
    places: Sequence[Place],
    workers: int,
    plugins: Sequence[str],
) -> None:
    """Launch the runs under one live progress line; without a terminal, one line per run."""
    began, finished, failed = time.monotonic(), 0, 0
    print(f"{len(todo)} runs to do, {stored} stored already, {workers} workers", file=sys.stderr)
    total = sum(spec.training.rounds for spec in todo)
    rounds = dict.fromkeys((spec.id for spec in todo), 0)
    with tqdm(total=total, unit="round", disable=None, smoothing=0.05, dynamic_ncols=True) as bar:
        bar.set_description(f"runs 0/{len(todo)}")
        for event in launch(todo, store, places, workers, plugins):
            spec = event.spec
            if event.kind == "note":
                bar.write(f"note: {event.text}", file=sys.stderr)
                continue
            reached = event.round if event.kind == "round" else spec.training.rounds
            bar.update(reached - rounds[spec.id])
            rounds[spec.id] = reached
            if event.kind == "round":
                continue
            finished += 1
            failed += event.kind == "failed"
            bar.set_description(
                f"runs {finished}/{len(todo)}" + f", {failed} failed" * bool(failed)
            )
            if event.kind == "failed":
                bar.write(f"failed: {spec}: {event.text}", file=sys.stderr)
            elif bar.disable:
                line = f"[{finished}/{len(todo)}] {spec}: {event.seconds:.1f} s"
                print(line, file=sys.stderr, flush=True)
    print(f"took {duration(time.monotonic() - began)}", file=sys.stderr)


def report(specs: Sequence[RunSpec], store: ResultStore, selection: str) -> int:
    """The table of these runs, where everything is, and what went wrong; the exit code."""
    from leaderboard.tables import write_tables

    found = store.collect(specs)
    if found.results:
        print()
        for text in (tables := write_tables(found, store.root, selection)).terminal:
            print(text + "\n")
        print(f"results: {len(found.results)} of {len(specs)} runs in {store.root}/")
        for path in tables.paths:
            print(f"table:   {path}")
    for spec, reason in found.failed.items():
        print(f"failed:  {spec}: {reason}", file=sys.stderr)
    if found.missing:
        print(
            f"{len(found.missing)} runs missing; the same command tries them again", file=sys.stderr
        )
    return 1 if found.missing or found.damaged else 0


def dry_run(
    specs: Sequence[RunSpec], found: Collection, forecast: Callable[[Sequence[RunSpec]], str]
) -> str:
    """Every planned run with its state, and what the rest may take."""
    done = {result.spec for result in found.results}
    states = [
        "stored" if s in done else "failed before" if s in found.failed else "to do" for s in specs
    ]
    rows = [
        (s.id, s.dataset, s.target, s.method, _shown(s), s.seed, state)
        for s, state in zip(specs, states, strict=True)
    ]
    header = ("run", "dataset", "target", "method", "hyper-parameters", "seed", "state")
    lines = [tabulate(rows, header, tablefmt="simple", disable_numparse=True), ""]
    for path, reason in found.damaged.items():
        lines.append(f"damaged: {path}: {reason}; it will be set aside and run again")
    todo = [spec for spec in specs if spec not in done]
    lines.append(f"{len(specs)} runs, {len(done)} stored, {len(todo)} to do")
    if todo:
        lines.append(forecast(todo))
    return "\n".join(lines)


def _shown(spec: RunSpec) -> str:
    return " ".join(f"{key}={value}" for key, value in spec.hparams.items())


if __name__ == "__main__":
    main()
