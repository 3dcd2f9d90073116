"""`python -m benchmark.bench.methods`: what each method costs beside FedAvg, measured side by side.

Every method trains rounds on the same data and network as a FedAvg that alternates with it in the
same process; the table shows milliseconds per step and per predicted image as multiples of
FedAvg's, the parameters, and the bytes that cross the client boundary per client and round by kind,
without what is sent once, before the first round.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from tabulate import tabulate

from benchmark.arguments import add_place_options, add_plan_options, place_from, plan_from
from benchmark.costs import parameter_count
from benchmark.errors import ArgumentParser, command_line
from benchmark.evaluation import score
from benchmark.execute import Federation, Place, assemble
from benchmark.federation import rounds
from benchmark.spec import RunSpec

ENDLESS = {"rounds": 10**6}


@dataclasses.dataclass
class Contender:
    """One method's federation, ready to be timed."""

    spec: RunSpec
    federation: Federation
    seconds_per_step: list[float] = dataclasses.field(default_factory=list)
    seconds_per_image: list[float] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, spec: RunSpec, place: Place) -> tuple[Contender, Callable[[], None]]:
        """A contender, and the function that times one more round of it."""
        training = dataclasses.replace(spec.training, **ENDLESS)
        spec = dataclasses.replace(spec, training=training)
        contender = cls(spec, assemble(spec, place))
        return contender, contender.timer()

    def timer(self) -> Callable[[], None]:
        parts = self.federation
        loop: Iterator = rounds(parts.method, parts.server, parts.clients)
        next(loop)  # the first round prepares and warms up
        parts.server.traffic.counts.clear()

        def once() -> None:
            began = time.perf_counter()
            round = next(loop)
            self.seconds_per_step.append((time.perf_counter() - began) / round.steps)
            predict = next(iter(parts.method.predictors(parts.server, parts.clients).values()))
            if isinstance(predict, torch.nn.Module):
                predict.eval()
            began = time.perf_counter()
            count = score(predict, parts.clients[0].val).count
            self.seconds_per_image.append((time.perf_counter() - began) / count)

        return once

    def traffic(self) -> str:
        """Bytes per client and round: kind, up and down."""
        visits = len(self.seconds_per_step) * len(self.federation.clients)
        sums: Counter = self.federation.server.traffic.counts
        kinds = dict.fromkeys(key.split("/")[1] for key in sums)
        shown = [
            f"{kind} {sums[f'up/{kind}'] / visits:,.0f}↑ {sums[f'down/{kind}'] / visits:,.0f}↓"
            for kind in kinds
        ]
        return ", ".join(shown)


def compare(spec: RunSpec, baseline: RunSpec, place: Place, repeats: int) -> tuple[str, ...]:
    """One row: a method beside FedAvg, their rounds alternating."""
    ours, time_ours = Contender.of(spec, place)
    base, time_base = Contender.of(baseline, place)
    for _ in range(repeats):
        time_base()
        time_ours()
    train, train_base = (statistics.median(c.seconds_per_step) for c in (ours, base))
    infer, infer_base = (statistics.median(c.seconds_per_image) for c in (ours, base))
    return (
        spec.method,
        f"{1000 * train:.2f}",
        f"{train / train_base:.2f}",
        f"{infer / infer_base:.2f}",
        f"{parameter_count(ours.federation.server.model):,}",
        ours.traffic(),
    )


@command_line
def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="python -m benchmark.bench.methods", description=__doc__)
    add_plan_options(parser)
    add_place_options(parser)
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds of each")
    parser.add_argument("--to", type=Path, metavar="FILE", help="also write the table here")
    options = parser.parse_args(arguments)
    options.seeds = options.seeds or [0]
    place = place_from(options)[0]
    torch.set_num_threads(place.threads)
    specs = plan_from(options).specs
    first = {spec.method: spec for spec in reversed(specs)}
    options.methods = ["fedavg"]
    options.settings = [text for text in options.settings if text.startswith("training.")]
    baseline = plan_from(options).specs[0]
    rows = []
    for method in sorted(first):
        rows.append(compare(first[method], baseline, place, options.repeats))
        print("  ".join(rows[-1]), flush=True)
    header = ("method", "ms/step", "× FedAvg", "inference × FedAvg", "parameters")
    header += ("bytes per client and round",)
    table = tabulate(rows, header, "github", disable_numparse=True)
    print("\n" + table)
    if options.to:
        options.to.write_text(table + "\n")
    return 0


if __name__ == "__main__":
    main()
