"""The benchmark scripts: that they measure what they say and name wrong input; never how fast."""

import numpy as np
import pytest
import torch
from PIL import Image

from benchmark.bench import aggregation, input, rounds, timing
from benchmark.bench.__main__ import SECTIONS, main
from benchmark.state import weighted_mean
from tests.test_federation import equal


def run(*arguments) -> int:
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    return end.value.code


def test_bare_loop_and_harness_train_on_the_same_number_of_batches():
    ours = rounds.federation("cnn_tiny_bn", 32, 3, 2, 2, 8)
    steps = rounds.harness_round(ours)().steps
    assert steps == 2 * 2 and ours.server.training.local_steps == 2
    before = [p.clone() for p in ours.server.model.parameters()]
    rounds.bare_round(ours)()
    assert all(map(torch.equal, before, ours.server.model.parameters()))  # on a copy of its own


def test_contenders_take_turns_and_are_compared_with_a_reference():
    calls = []
    ways = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    times = timing.compare(ways, 2)
    assert calls == ["a", "b"] * 3
    rows = timing.against(times, "a")
    assert rows[0][0] == "a" and rows[0][2] == "1.000"


def test_all_ways_to_aggregate_give_the_same_mean():
    generator = torch.Generator().manual_seed(0)
    states = [{"w": torch.rand(5, generator=generator), "n": torch.tensor(3)} for _ in range(4)]
    weights = [0.1, 0.2, 0.3, 0.4]
    ways = aggregation.ways(states, weights)
    ours = ways["ours, states at hand"]()
    assert equal(ours, weighted_mean(states, weights))
    for name in ("`state_dict` loop", "`torch.stack` per key"):
        assert torch.allclose(ways[name]()["w"], ours["w"])


def test_the_input_pipeline_is_measured_on_a_users_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(input, "SIZE", 32)
    monkeypatch.setattr(input, "BATCH", 2)
    pixels = np.random.default_rng(0).integers(0, 256, (4, 40, 40, 3), dtype=np.uint8)
    for k, image in enumerate(pixels):
        folder = tmp_path / f"class{k % 2}"
        folder.mkdir(exist_ok=True)
        Image.fromarray(image).save(folder / f"{k}.png")
    report = tmp_path / "report.md"
    assert run("--only", "input", "--repeats", "1", "--root", tmp_path, "--to", report) == 0
    printed = capsys.readouterr().out
    assert report.read_text().strip() == printed.strip()
    assert all(name in printed for name in (input.OURS, input.THEIRS, input.STEP))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--only", "round"], "did you mean 'rounds'"),
        (["--repeats", "0"], "at least 1"),
        (["--only", "input", "--root", "absent"], "absent"),
    ],
)
def test_wrong_input_is_named_in_one_line(flags, said, capsys):
    assert run(*flags) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert len(errors) == 1 and said in errors[0]


def test_every_section_is_a_module_that_measures():
    for name in SECTIONS:
        module = __import__(f"benchmark.bench.{name}", fromlist=["measure"])
        assert callable(module.measure)
