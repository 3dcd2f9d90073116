"""What holds for all augmentation methods: off is FedAvg, on is not, tests see nothing of it."""

import pytest
import torch

from benchmark.method import compose, make_method
from benchmark.state import batchnorm_keys
from tests.conftest import TRAINING, toy_spec
from tests.test_federation import equal, run_rounds

OFF = [
    ("randaug", {"randaug_n": 0}),
    ("mixstyle", {"mixstyle_p": 0.0}),
    ("dsu", {"dsu_p": 0.0}),
    ("dsu", {"dsu_factor": 0.0}),
    ("sfa_s", {"sfa_scale": 0.0, "sfa_shift": 0.0}),
    ("sfa_a", {"sfa_scale": 0.0, "sfa_strength": 0.0}),
    ("randconv", {"randconv_p": 1.0, "randconv_weight": 0.0}),
    ("am", {"am_p": 0.0}),
]
NAMES = ["randaug", "mixstyle", "dsu", "sfa_s", "sfa_a", "randconv", "am", "l2d"]
every_name = pytest.mark.parametrize("name", NAMES)


@pytest.mark.parametrize(("name", "settings"), OFF, ids=lambda value: str(value))
def test_without_strength_it_is_fedavg_bit_for_bit(federation, name, settings):
    off = federation(toy_spec(name, overrides={name: settings}))
    assert equal(run_rounds(off), run_rounds(federation(toy_spec("fedavg"))))


@every_name
def test_it_trains_another_network_and_shares_nothing_but_weights(federation, name):
    ours, fedavg = federation(toy_spec(name)), federation(toy_spec("fedavg"))
    state, plain = run_rounds(ours), run_rounds(fedavg)
    assert set(plain) <= set(state)
    assert not all(torch.equal(state[key], plain[key]) for key in plain)
    assert compose(name).info.shares == ()
    assert set(ours.server.traffic.counts) == {"down/weights", "up/weights"}
    assert compose(name).info.category == "augmentation"


@every_name
def test_two_visits_with_the_same_seed_agree(federation, name):
    states = [run_rounds(federation(toy_spec(name)), 1) for _ in range(2)]
    assert equal(*states)


@every_name
def test_predictions_are_deterministic_and_do_not_look_at_the_batch(federation, name):
    ours = federation(toy_spec(name))
    run_rounds(ours, 1)
    model = ours.server.model.eval()
    images = next(ours.clients[0].val.evaluation_batches()).images
    with torch.inference_mode():
        together = model(images)
        torch.rand(7)  # whatever the generator's state
        assert torch.equal(together, model(images))
        alone = torch.cat([model(image[None]) for image in images])
    assert torch.allclose(together, alone, atol=1e-5)


@every_name
@pytest.mark.parametrize("base", ["fedbn", "silobn", "fedprox"])
def test_it_composes_with_the_bases(federation, name, base):
    ours = federation(toy_spec(f"{name}+{base}"))
    state = run_rounds(ours, 2)
    assert all(torch.isfinite(value).all() for value in state.values())
    alone = run_rounds(federation(toy_spec(name)), 2)
    assert not equal(state, alone)
    if base == "fedprox":
        assert "anchor" in ours.clients[0].scratch
        return
    keys = batchnorm_keys(ours.server.model)
    expected = keys.all if base == "fedbn" else keys.statistics | keys.counters
    assert set(ours.clients[0].memory["kept"]) == expected


@every_name
def test_the_other_order_composes_too(federation, name):
    left, right = (
        run_rounds(federation(toy_spec(expression)), 2)
        for expression in (f"fedprox+{name}", f"{name}+fedprox")
    )
    assert all(torch.allclose(left[key], right[key], rtol=1e-3, atol=1e-4) for key in left)


@every_name
@pytest.mark.parametrize("size", [1, 5, 64])
def test_batches_of_any_size_train(federation, name, size):
    """One sample; an odd number, some classes missing; more than a client has."""
    ours = federation(toy_spec(name, training=TRAINING.changed({"batch_size": size})))
    state = run_rounds(ours, 1)
    assert all(torch.isfinite(value).all() for value in state.values())


def test_augmentations_stack(federation):
    ours = federation(toy_spec("randconv+mixstyle+am+sfa_s+silobn"))
    assert all(torch.isfinite(value).all() for value in run_rounds(ours, 1).values())
    assert make_method("mixstyle+dsu", {"dsu_p": 0.2}).dsu_p == 0.2
