"""Figures: drawn from real shapes of data, whole files, nothing global left behind."""

import dataclasses
import itertools
import xml.etree.ElementTree as ElementTree

import matplotlib
import pandas as pd
import pytest

from benchmark.errors import UserError
from leaderboard.figures import NAMES, write_figures
from leaderboard.figures.accuracy import accuracy_per_domain
from leaderboard.figures.against_papers import published_against_ours, reads_papers
from leaderboard.figures.curves import SHOWN, curves_over_rounds
from leaderboard.figures.material import materials
from leaderboard.figures.ranks import critical_difference
from leaderboard.figures.sensitivity import sensitivity
from leaderboard.figures.theme import ORDER, PARADIGMS, annotate, new_figure, theme
from leaderboard.figures.tradeoff import accuracy_against_communication, pareto_front
from tests.test_tables import ABOUT, collection, result

DOMAINS = ABOUT["domains"]


def found(methods=("fedavg", "fedprox", "fedbn"), seeds=(0, 1)):
    runs = [
        result(
            method,
            domain,
            seed,
            [(0.5 + 0.1 * r, 0.3 + 0.1 * r + 0.02 * m + 0.03 * k + 0.01 * seed) for r in range(3)],
            label=f"{method} {m}",
            category=ORDER[m % len(ORDER)],
        )
        for m, method in enumerate(methods)
        for k, domain in enumerate(DOMAINS)
        for seed in seeds
    ]
    curve = [(0.4, 0.3), (0.5, 0.35), (0.6, 0.4)]
    about = {"label": "fedprox 1", "category": "federated DG"}
    searched = [
        result("fedprox", domain, 0, curve, hparams={"mu": mu}, **about)
        for domain in DOMAINS
        for mu in (0.001, 1.0)
    ]
    return collection(*runs, *searched)


def material(**options):
    (only,) = materials(found(**options), "training_domain")
    return only


def test_every_figure_is_written_whole_twice_the_same_and_leaves_nothing_behind(tmp_path):
    before = dict(matplotlib.rcParams)
    written = write_figures(found(), tmp_path / "a")
    again = write_figures(found(), tmp_path / "b", only=["accuracy", "ranks"])
    names = {path.stem.removeprefix("toy-cnn_tiny_bn-single_domain-") for path in written.paths}
    assert names == {
        *("accuracy", "in-and-out", "curves", "communication"),
        *("sensitivity-fedprox", "ranks"),
    }
    for path in written.paths:
        if path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")
        else:
            assert path.read_bytes().startswith(b"\x89PNG")
    for path in again.paths:
        assert path.read_bytes() == (tmp_path / "a" / path.name).read_bytes()
    assert dict(matplotlib.rcParams) == before
    assert matplotlib.pyplot.get_fignums() == []


def test_what_cannot_be_drawn_says_why(tmp_path):
    lone = collection(result("fedavg", "red", 0, [(0.5, 0.4)]))
    written = write_figures(lone, tmp_path)
    reasons = " ".join(written.left_out)
    for reason in (
        "only one round was evaluated",
        "no method has every domain",
        "no method was run in several configurations",
        "two methods or more",
        "no paper prints numbers",
    ):
        assert reason in reasons
    with pytest.raises(UserError, match="did you mean 'curves'"):
        write_figures(lone, tmp_path, only=["curvs"])
    assert {"ranks", "published", "sensitivity"} <= set(NAMES)


def test_two_settings_with_one_title_do_not_overwrite_each_other(tmp_path):
    one = result("fedavg", "red", 0, [(0.5, 0.4)])
    other = dataclasses.replace(one, spec=dataclasses.replace(one.spec, image_size=64))
    written = write_figures(collection(one, other), tmp_path, only=["accuracy"])
    assert len(set(written.paths)) == 4


def test_accuracy_has_a_panel_per_domain_and_best_methods_on_top():
    with theme():
        figure = accuracy_per_domain(material())
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [*DOMAINS, "average"]
    labels = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert labels == ["fedbn 2", "fedprox 1", "fedavg 0"]
    means = [line.get_xdata()[0] for line in figure.axes[0].lines if line.get_marker() in "os^"]
    assert pytest.approx([54.5, 52.5, 50.5]) == [x for x in means if isinstance(x, float)][-3:]


def test_curves_mark_what_is_reported():
    data = material()
    with theme():
        figure = curves_over_rounds(data)
    chosen = data.chosen()
    red = chosen[(chosen["target"] == "red") & (chosen["label"] == "fedavg 0")]
    marks = {
        (line.get_xdata()[0], round(float(line.get_ydata()[0]), 6))
        for line in figure.axes[0].lines
        if len(line.get_xdata()) == 1
    }
    assert (red["round"].mean() + 1, round(red["test"].mean(), 6)) in marks
    assert SHOWN <= 10, "no colour may come twice"


def test_pareto_front():
    assert pareto_front([1, 2, 3, 4], [50, 40, 60, 60]) == [0, 2]
    assert pareto_front([1, 1, 1], [50, 70, 60]) == [1]
    assert pareto_front([2, 1], [70, 70]) == [1]
    assert pareto_front([], []) == []


def test_centralised_methods_are_no_point_of_the_tradeoff():
    methods = ("fedavg", "fedbn", "silobn", "fedsam", "fedsr", "moon", "ga")
    data = material(methods=methods)
    assert data.categories["ga 6"] == "centralised"
    with theme():
        figure = accuracy_against_communication(data)
    names = [text.get_text() for text in figure.axes[0].texts]
    assert "fedavg 0" in names
    assert "ga 6" not in names


def test_sensitivity_is_drawn_for_methods_with_several_configurations():
    ((method, figure),) = list(sensitivity(material()))
    assert method == "fedprox"
    assert figure.axes[0].get_xlabel() == "mu"
    assert figure.axes[0].get_xscale() == "log"


def test_names_beside_points_cover_neither_each_other_nor_points():
    with theme():
        figure = new_figure(5, 4)
        axes = figure.add_subplot()
        points = pd.DataFrame(
            {"x": [1.0, 1.0, 1.01, 2.0, 2.0], "y": [1.0, 1.01, 1.0, 2.0, 2.001]},
            index=[f"a long name {k}" for k in range(5)],
        )
        axes.scatter(points["x"], points["y"])
        axes.set(xlim=(0, 3), ylim=(0, 3))
        annotate(axes, points, "x", "y", points.index)
        figure.draw_without_rendering()
        renderer = figure.canvas.get_renderer()
        assert len(axes.texts) == 5
        texts = [matplotlib.text.Text.get_window_extent(t, renderer) for t in axes.texts]
        dots = axes.transData.transform(points)
    for one, other in itertools.combinations(texts, 2):
        assert not one.overlaps(other)
    assert not any(box.contains(*dot) for box in texts for dot in dots)


def test_every_paradigm_has_a_colour_and_a_marker_of_its_own():
    assert len({colour for colour, _ in PARADIGMS.values()}) == len(ORDER)
    assert len({marker for _, marker in PARADIGMS.values()}) == len(ORDER)


def test_the_critical_difference_diagram_shows_every_method():
    with theme():
        figure = critical_difference(found(), "training_domain")
    texts = " ".join(text.get_text() for text in figure.axes[0].texts)
    for label in ("fedavg 0", "fedprox 1", "fedbn 2", "critical difference"):
        assert label in texts


def test_published_against_ours():
    names = ("paper", "dataset", "method", "kind", "published", "spread", "ours", "std")
    pairs = pd.DataFrame(
        [
            ("fedfd_a", "PACS", "FedAvg", "domain", 90.4, 0.97, 91.0, 0.5),
            ("fedfd_a", "PACS", "FedAvg", "average", 77.35, float("nan"), 75.35, 0.5),
            ("gperxan", "PACS", "FedAvg", "domain", 95.2, float("nan"), 95.6, 0.5),
        ],
        columns=names,
    )
    with theme():
        title = published_against_ours(pairs).axes[0].get_title()
    assert "3 printed cells, mean |Δ| 1.00 points" in title
    assert "1 of 1 within the published spread" in title
    assert published_against_ours(pairs.iloc[:0]) is None
    assert reads_papers({"PACS"})
    assert not reads_papers({"MiniDigits"})
