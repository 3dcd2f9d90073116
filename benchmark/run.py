"""`python -m benchmark.run`: one run in this process, or what is left of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pandas as pd
from tqdm import tqdm

from benchmark.arguments import add_place_options, add_plan_options, place_from, plan_from
from benchmark.errors import ArgumentParser, UserError, command_line
from benchmark.execute import attempt, preflight
from benchmark.results import Result, ResultStore


@command_line
def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(
        prog="python -m benchmark.run", description="Carry out one run, or continue it."
    )
    add_plan_options(parser)
    add_place_options(parser)
    options = parser.parse_args(arguments)
    specs = plan_from(options).specs
    if len(specs) != 1:
        raise UserError(
            f"these flags describe {len(specs)} runs; narrow them to one with --methods, --targets "
            f"and --seeds, or use python -m benchmark.sweep"
        )
    store = ResultStore(options.out)
    store.check_writable()
    spec = specs[0]
    place = place_from(options)[0]
    preflight([spec], place)
    with tqdm(total=spec.training.rounds, unit="round", disable=None) as bar:
        failure = attempt(spec, store, place, on_round=lambda done: bar.update(done - bar.n))
    if failure is not None:
        print(f"failed: {spec}: {failure}", file=sys.stderr)
        return 1
    result = store.get(spec)
    print(f"{spec}: {result.costs['train_seconds']:.1f} s of training\n")
    print(curve_table(result))
    print(f"\nwrote {store.path(spec)}")
    return 0


def curve_table(result: Result) -> str:
    """Validation and test accuracy of every evaluated round, in the terminal."""
    frame = pd.DataFrame(result.records)
    frame["column"] = frame["part"] + " " + frame["domain"]
    wide = frame.pivot_table(
        index=["predictor", "round"], columns="column", values="accuracy", sort=False
    )
    return (100 * wide).round(1).reset_index().to_markdown(index=False)


if __name__ == "__main__":
    main()
