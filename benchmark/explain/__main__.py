"""`python -m benchmark.explain alpha|attention|features RUN…`: plots of finished runs' models.

A RUN is an id or its beginning (the first column of `benchmark.sweep --dry-run`, the name of a
result file); `--where` describes runs instead. Models are taken from where `--keep-model` left
them; a run without one is repeated first, bit for bit.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmark.arguments import devices
from benchmark.errors import ArgumentParser, UserError, command_line
from benchmark.execute import Place
from benchmark.explain import alpha, attention, features
from benchmark.explain.finished import Finished, find_runs, open_run
from benchmark.registry import load_plugin
from benchmark.results import ResultStore
from leaderboard.figures.theme import save, theme

PLOTS = {
    "alpha": (alpha, "FedFD-A's adapters: α of every sample, layer and domain"),
    "attention": (attention, "StableFDG's attention: score maps over images"),
    "features": (features, "any method: t-SNE of its features by class and domain"),
}


@command_line
def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="python -m benchmark.explain", description=__doc__)
    commands = parser.add_subparsers(dest="plot", required=True)
    for name, (_, text) in PLOTS.items():
        add_options(commands.add_parser(name, help=text, description=text), name)
    options = parser.parse_args(arguments)
    for path in options.plugin:
        load_plugin(path)
    place = Place(options.data, devices(options.device)[0], weights=options.pretrained)
    store = ResultStore(options.runs)
    results = find_runs(options.runs, options.run, options.where, PLOTS[options.plot][0].misfit)
    runs = [open_run(result, store, place) for result in results]
    folder = options.to or options.runs / "figures"
    with theme():
        for name, figure in DRAW[options.plot](runs, options, place):
            for path in save(figure, folder, name):
                print(f"wrote {path}")
    return 0


def add_options(parser: argparse.ArgumentParser, plot: str) -> None:
    parser.add_argument("run", nargs="*", metavar="RUN", help="ids of runs, or their beginnings")
    parser.add_argument("--where", nargs="+", default=[], metavar="FIELD=VALUE", help="or: which")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="the result store")
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="default: figures/ in the store")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the datasets")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda; where the run was")
    parser.add_argument("--pretrained", metavar="PATH", help="the weights a run started from")
    parser.add_argument("--plugin", nargs="+", action="extend", default=[], metavar="FILE.py")
    if plot == "attention":
        parser.add_argument("--classes", nargs="+", metavar="NAME", help="at most ten")
    if plot == "features":
        parser.add_argument(
            "--samples", type=int, default=250, metavar="N", help="at most, of each domain"
        )
        parser.add_argument(
            "--before", action="store_true", help="the models before training as well"
        )


Drawn = Iterator[tuple[str, Figure]]


def draw_alpha(runs: Sequence[Finished], options: argparse.Namespace, place: Place) -> Drawn:
    for group, frame in alpha.gathered(runs):
        yield file_name("alpha", group), alpha.alpha_figure(frame, alpha.title_of(group))


def draw_attention(runs: Sequence[Finished], options: argparse.Namespace, place: Place) -> Drawn:
    for run in runs:
        cells = attention.score_maps(run, options.classes)
        title = attention.title_of(run, *cells[0].scores.shape)
        figure = attention.attention_figure(cells, run.spec.target, title)
        yield file_name("attention", [run]), figure


def draw_features(runs: Sequence[Finished], options: argparse.Namespace, place: Place) -> Drawn:
    if options.samples < 1:
        raise UserError(f"--samples {options.samples}: at least 1")
    lines = []
    for run in runs:
        if options.before:
            first = features.before_training(run, place)
            lines.append((f"{run.title}, untrained", features.embedded(first, options.samples)))
        lines.append((run.title, features.embedded(run, options.samples)))
    yield file_name("features", runs), features.features_figure(lines, features.title_of(runs))


DRAW = {"alpha": draw_alpha, "attention": draw_attention, "features": draw_features}


def file_name(plot: str, runs: Sequence[Finished]) -> str:
    """Says what is in the figure, and by the first id which runs."""
    specs = [run.spec for run in runs]
    methods = "-".join(dict.fromkeys(spec.method for spec in specs))
    targets = "-".join(dict.fromkeys(spec.target for spec in specs))
    return re.sub(r"[^\w.+-]", "_", f"{plot}-{methods}-{targets}-{specs[0].id[:6]}")


if __name__ == "__main__":
    main()
