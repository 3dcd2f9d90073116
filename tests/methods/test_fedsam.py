"""FedSAM: the scalar oracle, both passes, and what must not change."""

import pytest
import torch
from torch import nn

from benchmark.errors import UserError
from benchmark.federation import rounds, visit
from benchmark.method import Method, compose, make_method, methods, register
from benchmark.state import batchnorm_keys, copy_of, parameter_names
from tests.conftest import TRAINING, toy_spec
from tests.methods.scalar import scalar_federation
from tests.test_federation import equal, run_rounds


def sam(federation, rho, **changes):
    return federation(toy_spec("fedsam", overrides={"fedsam": {"rho": rho}}, **changes))


def test_scalar_oracle(monkeypatch):
    """L = ½w², w = 1, ρ = 0.1, η = 0.1: the gradient at 1.1 gives 0.89."""
    parts = scalar_federation(monkeypatch, "fedsam", [0.0], start=1.0, hparams={"rho": 0.1})
    next(rounds(*parts))
    assert parts[1].model.value.item() == pytest.approx(0.89, abs=1e-6)


def test_weight_decay_acts_at_the_weights_and_not_at_the_perturbed_ones(monkeypatch):
    """As above with decay 0.5: 1 − 0.1·(1.1 + 0.5·1) = 0.84."""
    parts = scalar_federation(
        monkeypatch, "fedsam", [0.0], start=1.0, hparams={"rho": 0.1}, weight_decay=0.5
    )
    next(rounds(*parts))
    assert parts[1].model.value.item() == pytest.approx(0.84, abs=1e-6)


def test_clipping_comes_after_the_second_pass(monkeypatch):
    """Clipped to 0.5 after the gradient 1.1: 1 − 0.1·0.5 = 0.95."""
    parts = scalar_federation(
        monkeypatch, "fedsam", [0.0], start=1.0, hparams={"rho": 0.1}, clip=0.5
    )
    next(rounds(*parts))
    assert parts[1].model.value.item() == pytest.approx(0.95, abs=1e-6)


@pytest.mark.parametrize("bn_second_pass", [False, True])
def test_without_radius_it_is_fedavg_buffers_included(federation, bn_second_pass):
    settings = {"fedsam": {"rho": 0.0, "bn_second_pass": bn_second_pass}}
    fedavg = run_rounds(federation(toy_spec("fedavg")))
    assert equal(run_rounds(federation(toy_spec("fedsam", overrides=settings))), fedavg)


def test_with_the_default_radius_it_is_not_fedavg(federation):
    fedavg = run_rounds(federation(toy_spec("fedavg")))
    assert not equal(run_rounds(sam(federation, 0.05)), fedavg)


def with_dropout(ours):
    for model in (ours.server.model, ours.clients[0].model):
        model.insert("features", nn.Dropout(0.5))
    return ours


def test_a_vanishing_radius_is_fedavg_through_both_passes_with_the_same_dropout(federation):
    """The whole machinery runs, moves the weights by less than they can show, and must leave
    nothing behind: not in parameters, statistics, counters or the random draws of later steps."""
    fedavg = run_rounds(with_dropout(federation(toy_spec("fedavg"))))
    assert equal(run_rounds(with_dropout(sam(federation, 1e-30))), fedavg)


def test_both_passes_see_the_same_mask(federation, monkeypatch):
    ours = with_dropout(sam(federation, 1e-30))
    masks = []
    ours.clients[0].model.taps["features"][0].register_forward_hook(
        lambda module, inputs, output: masks.append(output.detach() == 0)
    )
    visit(ours.method, ours.server, ours.clients[0])
    assert len(masks) == 4
    assert torch.equal(masks[0], masks[1])
    assert torch.equal(masks[2], masks[3])
    assert not torch.equal(masks[0], masks[2])


def test_statistics_come_from_the_first_pass_unless_asked_otherwise(federation):
    one_step = {"training": TRAINING.changed({"local_steps": 1})}
    states = {}
    for name, hparams in {
        "fedavg": {},
        "fedsam": {"bn_second_pass": False},
        "both": {"bn_second_pass": True},
    }.items():
        method = "fedavg" if name == "fedavg" else "fedsam"
        states[name] = run_rounds(
            federation(toy_spec(method, overrides={method: hparams}, **one_step)), 1
        )
    ours = federation(toy_spec())
    keys = batchnorm_keys(ours.server.model)
    for key in keys.statistics | keys.counters:
        assert torch.equal(states["fedsam"][key], states["fedavg"][key])
        assert not torch.equal(states["both"][key], states["fedavg"][key])


def test_the_perturbation_has_length_rho_along_the_whole_gradient(federation):
    ours = sam(federation, 0.3)
    client = ours.clients[0]
    batch = next(ours.method.batches(client))
    client.model.train()
    ours.method.loss(client, batch).backward()
    moved = list(client.model.named_parameters())
    steps = torch.cat([step.flatten() for step in ours.method.uphill(moved)])
    gradient = torch.cat([weight.grad.flatten() for _, weight in moved])
    assert steps.norm().item() == pytest.approx(0.3, rel=1e-5)
    assert torch.allclose(steps / 0.3, gradient / gradient.norm(), atol=1e-6)


def test_the_loss_is_higher_where_the_second_gradient_is_taken(federation):
    ours = sam(federation, 0.05)
    losses = []

    class Watched(type(ours.method)):
        def loss(self, client, batch):
            losses.append(super().loss(client, batch))
            return losses[-1]

    visit(Watched(rho=0.05), ours.server, ours.clients[0])
    assert len(losses) == 4
    assert losses[1] > losses[0]
    assert losses[3] > losses[2]


def test_weights_come_back_bit_for_bit_before_the_step(federation):
    ours = sam(federation, 10.0, training=TRAINING.changed({"lr": 0.0, "rounds": 1}))
    before = copy_of(ours.server.state)
    update, _, _ = visit(ours.method, ours.server, ours.clients[0])
    for name in parameter_names(ours.server.model):
        assert torch.equal(update.state[name], before[name])


def test_nothing_leaves_but_weights(federation):
    ours = sam(federation, 0.05)
    run_rounds(ours, 1)
    assert set(ours.server.traffic.counts) == {"up/weights", "down/weights"}
    assert ours.method.info.shares == ()


def test_with_silobn_statistics_stay_and_parameters_are_fedsams(federation):
    both, alone = federation(toy_spec("fedsam+silobn")), federation(toy_spec("fedsam"))
    one, other = run_rounds(both), run_rounds(alone)
    assert all(torch.equal(one[n], other[n]) for n in parameter_names(both.server.model))
    keys = batchnorm_keys(both.server.model)
    assert set(both.clients[0].memory["kept"]) == keys.statistics | keys.counters


def test_it_composes_with_another_loss_but_not_with_another_step(federation):
    proximal = run_rounds(federation(toy_spec("fedsam+fedprox")))
    assert not equal(proximal, run_rounds(federation(toy_spec("fedsam"))))

    @register("test_step", label="x", paper="x", venue="x", category="federated")
    class OtherStep(Method):
        def step(self, client, batch):
            return super().step(client, batch)

    try:
        with pytest.raises(UserError, match="the step of fedsam would silence that of test_step"):
            compose("fedsam+test_step")
    finally:
        del methods._entries["test_step"]
        compose.cache_clear()


def test_a_negative_radius_is_refused():
    with pytest.raises(UserError, match=r"fedsam\.rho=-1\.0 is too small"):
        make_method("fedsam", {"rho": -1.0})
