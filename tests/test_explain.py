"""Plots of finished runs: whose model they show, what is in them, and what they refuse."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch

from benchmark import run as run_program
from benchmark import sweep
from benchmark.arguments import every_setting
from benchmark.errors import UserError
from benchmark.execute import Place, attempt, execute
from benchmark.explain import __main__ as program
from benchmark.explain import alpha, attention, features
from benchmark.explain.finished import find_runs, open_run
from benchmark.results import ResultStore
from leaderboard.figures.theme import theme
from methods.fedfd_a import interpolations
from tests.conftest import TOY, toy_spec
from tests.test_sweep import FLAGS, call

DOMAINS = ["red", "green", "blue", "grey"]
TESTED, VALIDATED = 48, 9
LAYERS = ["block1.1", "block2.1", "block3.1", "block4.1"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Finished runs by method and target, each carried out once and its model kept."""
    folder = tmp_path_factory.mktemp("explain")
    store, place = ResultStore(folder / "runs"), Place(folder / "data", keep_model=True)
    made = {}

    def make(method, target="grey", **changes):
        spec = toy_spec(method, target, **changes)
        if spec.id not in made:
            made[spec.id] = open_run(execute(spec, store, place), store, place)
        return made[spec.id]

    return make


def last_test_accuracy(result):
    places = [k for k, part in enumerate(result.records["part"]) if part == "test"]
    return result.records["accuracy"][places[-1]]


# whose model


def test_a_kept_model_is_the_one_that_was_tested(store, place, finished):
    run = finished("fedbn")
    right = [
        run.model(batch.images).argmax(1) == batch.labels
        for batch in run.federation.evaluator.held_out.evaluation_batches()
    ]
    assert float(torch.cat(right).double().mean()) == last_test_accuracy(run.result)
    spec = toy_spec("fedbn")
    execute(spec, store, place)
    assert not store.model_path(spec).exists(), "nobody asked to keep it"
    execute(spec, store, dataclasses.replace(place, keep_model=True))
    kept = torch.load(store.model_path(spec), weights_only=True)
    assert set(kept) == {"id", "state", "memory"}


def test_a_run_without_a_model_is_repeated_to_the_bit_and_kept(store, place, finished, capsys):
    spec = toy_spec("fedadg")
    result = execute(spec, store, place)
    before = store.path(spec).read_bytes()
    run = open_run(result, store, place)
    assert capsys.readouterr().err.startswith(f"{spec} has no kept model: it is repeated")
    other = finished("fedadg")
    for key, value in other.federation.server.state.items():
        assert torch.equal(run.federation.server.state[key], value), key
    for key, value in other.federation.server.memory["fedadg"].items():
        assert torch.equal(run.federation.server.memory["fedadg"][key], value), key
    assert store.path(spec).read_bytes() == before
    assert not list((store.root / ".repeated").iterdir())
    assert [r.spec for r in store.collect().results] == [spec]
    open_run(result, store, place)
    assert capsys.readouterr().err == "", "the second time it is there"


def test_a_repeated_run_that_differs_from_the_stored_one_says_so_every_time(store, place, capsys):
    result = execute(toy_spec(), store, place)
    records = {**result.records, "accuracy": [*result.records["accuracy"][:-1], 0.0]}
    claimed = dataclasses.replace(result, records=records)
    for _ in range(2):
        open_run(claimed, store, place)
        said = capsys.readouterr().err.splitlines()[-1]
        gap = result.records["accuracy"][-1]
        assert said.endswith(
            f"is not the stored one: records.accuracy differs (by up to {gap:.3g})"
        )


@pytest.mark.parametrize("damage", ["garbage", "other run"])
def test_a_damaged_model_is_set_aside_and_made_again(store, place, damage, capsys):
    spec = toy_spec()
    result = execute(spec, store, dataclasses.replace(place, keep_model=True))
    path = store.model_path(spec)
    if damage == "garbage":
        path.write_bytes(b"no model")
    else:
        torch.save({**torch.load(path, weights_only=True), "id": "other"}, path)
    open_run(result, store, place)
    said = capsys.readouterr().err
    assert f"model {path} is damaged" in said
    assert "it is repeated" in said
    assert path.with_name(path.name + ".damaged").exists()
    assert torch.load(path, weights_only=True)["id"] == spec.id


def test_a_run_that_cannot_be_repeated_is_one_line(store, place, monkeypatch):
    result = execute(toy_spec(), store, place)
    monkeypatch.setattr("benchmark.explain.finished.attempt", lambda *args, **kwargs: "out of luck")
    with pytest.raises(UserError, match=r"cannot be repeated: out of luck$"):
        open_run(result, store, place)


# which runs


@pytest.fixture
def filled(store, place):
    """A store of six runs of two methods."""
    for method in ("fedavg", "fedprox"):
        for target in DOMAINS[:3]:
            assert attempt(toy_spec(method, target), store, place) is None
    return store


def test_runs_are_found_by_id_by_its_beginning_and_by_conditions(filled):
    spec = toy_spec("fedprox", "green")
    for beginning in (spec.id, spec.id[:9], spec.id[:9].upper()):
        (found,) = find_runs(filled.root, [beginning], [], features.misfit)
        assert found.spec == spec
    twice = find_runs(filled.root, [spec.id, spec.id[:9]], [], features.misfit)
    assert len(twice) == 1
    where = ["method=fedprox", "target=green"]
    (found,) = find_runs(filled.root, [], where, features.misfit)
    assert found.spec == spec
    assert len(find_runs(filled.root, [], [], features.misfit)) == 6


def test_ids_that_name_no_run_or_several_are_one_clear_line(filled, monkeypatch):
    spec = toy_spec("fedprox", "green")
    wrong = spec.id[:5] + ("0" if spec.id[5] != "0" else "1") + spec.id[6:]
    with pytest.raises(UserError, match=rf"no run '{wrong}' in .*, did you mean fedprox on .*\?$"):
        find_runs(filled.root, [wrong], [], features.misfit)
    with pytest.raises(UserError, match=r"no run 'zzz' in .*, e\.g\. fed"):
        find_runs(filled.root, ["zzz"], [], features.misfit)
    with pytest.raises(UserError, match=r"6 runs begin with '' \(.*, …\); write more of it"):
        find_runs(filled.root, [""], [], features.misfit)
    with pytest.raises(UserError, match="no result with target=purple"):
        find_runs(filled.root, [], ["target=purple"], features.misfit)
    monkeypatch.setattr("benchmark.explain.finished.MOST", 5)
    with pytest.raises(UserError, match=r"6 runs fit, .* narrow them to 5 with --where"):
        find_runs(filled.root, [], [], features.misfit)


def test_runs_that_failed_or_of_an_absent_plugin_do_not_disturb(filled):
    filled.put_failure(toy_spec("moon"), "no luck", "")
    with pytest.raises(UserError, match=r"no finished run in .* with method=moon"):
        find_runs(filled.root, [], ["method=moon"], features.misfit)

    def absent(spec):
        raise UserError(f"unknown method {spec.method!r}")

    with pytest.raises(UserError, match=r"no run in .* fits, .*: unknown method 'fedavg'"):
        find_runs(filled.root, [], [], absent)


def test_an_empty_store_says_what_to_do(tmp_path):
    with pytest.raises(UserError, match=r"no results in .*; run python -m benchmark\.sweep first"):
        find_runs(tmp_path, ["abc"], [], features.misfit)


def test_a_method_without_what_is_plotted_says_which_has_it(filled, capsys):
    spec = toy_spec("fedavg", "red")
    for plot, method in (("alpha", "fedfd_a"), ("attention", "stablefdg")):
        assert call(program.main, plot, spec.id, "--runs", filled.root) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"error: {spec}: fedavg has no ")
        assert said.endswith(f"choose a run of {method}\n")
        assert call(program.main, plot, "--runs", filled.root) == 2
        assert "no run in " in capsys.readouterr().err
    off = toy_spec("stablefdg", overrides={"stablefdg": {"stablefdg_attention": "off"}})
    assert "its attention is off" in attention.misfit(off)
    assert attention.misfit(toy_spec("stablefdg")) is None
    assert alpha.misfit(toy_spec("fedfd_a+silobn")) is None


# α


def test_alphas_of_one_run_are_its_adapters_answers_for_every_domain(finished):
    run = finished("fedfd_a")
    frame = alpha.alphas(run)
    counts = frame.groupby(["domain", "layer"], observed=True).size()
    assert counts.loc["grey"].tolist() == [TESTED] * 4
    for source in DOMAINS[:3]:
        assert counts.loc[source].tolist() == [VALIDATED] * 4
    assert set(frame.loc[frame["unseen"], "domain"]) == {"grey"}
    (batch,) = run.federation.evaluator.held_out.evaluation_batches()
    for layer, values in interpolations(run.model, batch.images).items():
        shown = frame[(frame["domain"] == "grey") & (frame["layer"] == layer)]["alpha"]
        np.testing.assert_array_equal(shown.to_numpy(), values.numpy())
    assert list(dict.fromkeys(frame["layer"])) == LAYERS
    assert frame["alpha"].between(0, 1).all()


def test_runs_that_differ_in_the_held_out_domain_share_a_figure_of_unseen_samples(finished):
    runs = [finished("fedfd_a", target) for target in ("grey", "red")]
    lonely = finished("fedfd_a+silobn")
    (pair, together), (single, alone) = alpha.gathered([*runs, lonely])
    assert pair == runs
    assert single == [lonely]
    assert together["unseen"].all()
    assert together.groupby("domain", observed=True).size().to_dict() == {
        "red": 4 * TESTED,
        "grey": 4 * TESTED,
    }
    assert set(alone["domain"]) == set(DOMAINS)


def test_the_alpha_figure_has_a_panel_per_domain_with_medians_where_they_are():
    domains = pd.Categorical(["b"] * 6 + ["a"] * 4, categories=["b", "a", "none"])
    frame = pd.DataFrame(
        {
            "domain": domains,
            "layer": ["x", "x", "x", "y", "y", "y", "x", "x", "y", "y"],
            "alpha": [0.1, 0.2, 0.9, 0.5, 0.5, 0.5, 0.0, 1.0, 0.3, 0.4],
            "unseen": [False] * 6 + [True] * 4,
        }
    )
    with theme():
        figure = alpha.alpha_figure(frame, "title")
    first, second = (axes for axes in figure.axes if axes.get_visible())
    assert first.get_title("left") == "b (source, validation: 3 samples)"
    assert second.get_title("left") == "a (unseen, test: 2 samples)"
    assert first.lines[0].get_ydata().tolist() == [0.2, 0.5]
    assert second.lines[0].get_ydata().tolist() == [0.5, 0.35]
    assert [label.get_text() for label in second.get_xticklabels()] == ["x", "y"]
    assert first.collections[0].get_offsets()[:, 1].tolist() == [0.1, 0.2, 0.9]


# attention


def test_scores_are_what_the_images_are_pooled_with(finished):
    run = finished("stablefdg")
    cells = attention.score_maps(run)
    assert [(c.domain, c.label) for c in cells] == [
        (domain, label) for domain in DOMAINS for label in ("nw", "ne", "sw", "se")
    ]
    for cell in cells:
        assert cell.scores.shape == (2, 2)
        assert cell.scores.sum() == pytest.approx(1, abs=1e-6)
        assert cell.relative.mean() == pytest.approx(1, abs=1e-6)
        assert cell.image.shape == (32, 32, 3)
    (batch,) = run.federation.evaluator.held_out.evaluation_batches()
    with torch.no_grad():
        weights = run.model.pooling.attend(run.model.maps(batch.images[:1]))
    shown = next(c for c in cells if c.domain == "grey" and c.label == "nw")
    np.testing.assert_allclose(shown.scores.ravel(), weights[0].numpy(), rtol=1e-5)
    pixels = run.federation.evaluator.held_out._pixels(np.arange(1))[0] / 255
    np.testing.assert_allclose(shown.image, pixels.permute(1, 2, 0).numpy(), atol=1e-6)


def test_classes_can_be_chosen_and_must_exist(finished):
    run = finished("stablefdg")
    assert [c.label for c in attention.score_maps(run, ["se", "nw"])] == ["se", "nw"] * 4
    with pytest.raises(UserError, match="unknown class of Toy 'sn'"):
        attention.score_maps(run, ["sn"])


def test_the_attention_figure_pairs_every_image_with_its_scores_on_one_scale():
    rng = np.random.default_rng(0)
    peak = np.array([[0.7, 0.1], [0.1, 0.1]])
    cells = [
        attention.Scored("a", "x", rng.random((8, 8, 3)), peak),
        attention.Scored("a", "y", rng.random((8, 8, 3)), np.full((2, 2), 0.25)),
        attention.Scored("b", "y", rng.random((8, 8, 3)), np.full((2, 2), 0.25)),
    ]
    with theme():
        figure = attention.attention_figure(cells, "b", "title")
    panels = [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]
    assert len(panels) == 2 * 2 * 2
    assert [len(axes.images) for axes in panels] == [1, 2, 1, 2, 0, 0, 1, 2]
    assert panels[0].get_ylabel() == "a"
    assert panels[4].get_ylabel() == "b\n(unseen)"
    np.testing.assert_allclose(panels[1].images[1].get_array(), 4 * peak)
    scales = {axes.images[1].norm for axes in panels if len(axes.images) == 2}
    assert len(scales) == 1
    (scale,) = scales
    assert (scale.vmin, scale.vmax) == pytest.approx((0.4, 2.8))


# features


def test_features_are_those_that_the_classifier_gets(finished):
    run = finished("gperxan")
    vectors, about = features.features_of(run, per_domain=1000)
    assert about.groupby("domain").size().to_dict() == {
        **dict.fromkeys(DOMAINS[:3], VALIDATED),
        "grey": TESTED,
    }
    (batch,) = run.federation.evaluator.held_out.evaluation_batches()
    with torch.no_grad():
        expected = run.model.features(batch.images).numpy()
    np.testing.assert_array_equal(vectors[about["domain"] == "grey"], expected)
    names = ("nw", "ne", "sw", "se")
    shown = about.loc[about["domain"] == "grey", "label"].tolist()
    assert shown == [names[k] for k in batch.labels]
    few, chosen = features.features_of(run, per_domain=5)
    assert chosen.groupby("domain").size().tolist() == [5] * 4
    assert {tuple(row) for row in few} <= {tuple(row) for row in vectors}


def test_only_runs_of_fedadg_have_a_reference(finished):
    run = finished("fedadg")
    frame = features.embedded(run, 10)
    assert (frame["domain"] == "").sum() == 4 * features.REFERENCES
    assert frame[["x", "y"]].notna().all().all()
    again = features.embedded(run, 10)
    pd.testing.assert_frame_equal(frame, again)
    fixed = finished("fedadg", overrides={"fedadg": {"adg_reference": "uniform"}})
    drawn, labels = features.references_of(fixed)
    assert drawn.shape == (40, 256)
    assert -1 <= drawn.min() < drawn.max() <= 1
    assert labels[:: features.REFERENCES] == ["nw", "ne", "sw", "se"]
    assert not features.references_of(finished("gperxan"))[1]


def test_before_training_means_the_first_weights_and_the_first_generator(finished, place):
    run = finished("fedadg")
    first = features.before_training(run, place)
    fresh, trained = first.federation.server, run.federation.server
    assert any(not torch.equal(fresh.state[key], trained.state[key]) for key in trained.state)
    assert set(fresh.memory["fedadg"]) == set(trained.memory["fedadg"])
    again = features.before_training(run, place)
    for key, value in fresh.memory["fedadg"].items():
        assert torch.equal(value, again.federation.server.memory["fedadg"][key])


def test_separate_clusters_stay_separate_in_the_plane():
    rng = np.random.default_rng(0)
    vectors = np.concatenate([rng.normal(5 * k, 0.1, (30, 6)) for k in range(3)])
    places = features.flattened(vectors, 2**62)
    centres = places.reshape(3, 30, 2).mean(1)
    widths = places.reshape(3, 30, 2).std(1).max()
    gaps = [np.linalg.norm(centres[a] - centres[b]) for a, b in ((0, 1), (0, 2), (1, 2))]
    assert min(gaps) > 3 * widths
    with pytest.raises(UserError, match="too few for t-SNE"):
        features.flattened(vectors[:5], 0)
    with pytest.raises(UserError, match="all features are the same"):
        features.flattened(np.ones((20, 3)), 0)


def test_the_features_figure_has_two_panels_a_run_and_two_legends():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "label": [f"class {k % 12:02}" for k in range(60)],
            "domain": ["a"] * 30 + ["b"] * 26 + [""] * 4,
            "unseen": [False] * 30 + [True] * 26 + [False] * 4,
            "x": rng.normal(size=60),
            "y": rng.normal(size=60),
        }
    )
    with theme():
        figure = features.features_figure([("one", frame), ("two", frame)], "title")
    same = "the same, coloured by domain"
    assert [axes.get_title("left") for axes in figure.axes] == ["one", same, "two", same]
    counts = [len(part.get_offsets()) for part in figure.axes[0].collections]
    assert counts == [30, 26, 4]
    classes, domains = ([text.get_text() for text in one.get_texts()] for one in figure.legends)
    assert classes == [*(f"class {k:02}" for k in range(10)), "2 others"]
    assert domains == ["a", "b (unseen)", "reference distribution"]


# the programs


def test_the_program_writes_both_formats_and_says_where(tmp_path, place, capsys):
    out = tmp_path / "runs"
    flags = ["--targets", "grey", "--out", out, "--data", place.data, *FLAGS]
    for method in ("fedfd_a", "stablefdg"):
        arguments = ["--methods", method, "--keep-model", *flags]
        assert call(run_program.main, *arguments) == 0
    common = ["--runs", out, "--data", place.data, "--plugin", TOY]
    capsys.readouterr()
    for arguments in (
        ["alpha", *common],
        ["attention", *common, "--classes", "nw", "se"],
        ["features", *common, "--samples", "20", "--before", "--to", tmp_path / "elsewhere"],
    ):
        assert call(program.main, *arguments) == 0
        shown = capsys.readouterr()
        assert "repeated" not in shown.err
        paths = [line.removeprefix("wrote ") for line in shown.out.splitlines()]
        assert [path[-4:] for path in paths] == [".png", ".svg"]
    assert {path.name.partition("-")[0] for path in (out / "figures").iterdir()} == {
        *("alpha", "attention")
    }
    assert len(list((tmp_path / "elsewhere").glob("features-fedfd_a-stablefdg-grey-*.png"))) == 1
    assert call(program.main, "features", *common, "--samples", "0") == 2
    assert capsys.readouterr().err == "error: --samples 0: at least 1\n"


def test_a_setting_with_several_values_is_a_run_of_each():
    given = ["fedfd.lambda1=0,0.1", "training.rounds=2", "fedfd.lambda2=1,4"]
    assert list(every_setting(given)) == [
        ("fedfd.lambda1=0", "training.rounds=2", "fedfd.lambda2=1"),
        ("fedfd.lambda1=0", "training.rounds=2", "fedfd.lambda2=4"),
        ("fedfd.lambda1=0.1", "training.rounds=2", "fedfd.lambda2=1"),
        ("fedfd.lambda1=0.1", "training.rounds=2", "fedfd.lambda2=4"),
    ]
    assert list(every_setting([])) == [()]


def test_values_in_a_row_are_planned_once_each(tmp_path, capsys):
    flags = ["--methods", "fedprox", "fedavg", "--targets", "grey", "--out", tmp_path, "--dry-run"]
    assert call(sweep.main, *flags, *FLAGS, "--set", "fedprox.mu=0.01,0.1,0.01") == 0
    assert "3 runs, 0 stored, 3 to do" in capsys.readouterr().out
