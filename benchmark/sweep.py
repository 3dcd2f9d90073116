"""`python -m benchmark.sweep --methods all`: plan a grid of runs, do what is not stored yet.

Calling the same command again is how one retries, resumes and extends a sweep.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from tabulate import tabulate
from tqdm import tqdm

from benchmark.arguments import (
    add_place_options,
    add_plan_options,
    place_from,
    plan_from,
    worker_count,
)
from benchmark.errors import ArgumentParser, command_line
from benchmark.estimate import duration, estimate
from benchmark.execute import Place, preflight
from benchmark.launch import launch
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
    parser.add_argument("--workers", type=int, metavar="N", help="processes; default: all cores")
    parser.add_argument("--dry-run", action="store_true", help="list the runs and do nothing")
    options = parser.parse_args(arguments)
    planned = plan_from(options)
    specs = planned.specs
    for note in planned.left_out:
        print(f"left out: {note}", file=sys.stderr)
    places = place_from(options)
    workers = worker_count(options.workers, places)
    store = ResultStore(options.out)
    found = store.collect(specs)
    if options.dry_run:
        print(dry_run(specs, found, places[0], workers))
        return 0
    store.check_writable()
    done = {result.spec for result in found.results}
    todo = [spec for spec in specs if spec not in done]
    if todo:
        preflight(todo, places[0])
        carry_out(todo, len(done), store, places, workers, options.plugin)
    return report(specs, store, planned.selection)


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


def dry_run(specs: Sequence[RunSpec], found: Collection, place: Place, workers: int) -> str:
    """Every planned run with its state, and how long the rest may take."""
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
        lines.append(estimate(todo, found, place, workers))
    return "\n".join(lines)


def _shown(spec: RunSpec) -> str:
    return " ".join(f"{key}={value}" for key, value in spec.hparams.items())


if __name__ == "__main__":
    main()
