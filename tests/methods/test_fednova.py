"""FedNova: how much work a round is, and updates divided by it."""

import pytest
import torch

from benchmark.errors import UserError
from benchmark.federation import rounds
from benchmark.state import batchnorm_keys, copy_of, parameter_names
from methods.ops.local_work import gradient_weight
from tests.conftest import TRAINING, toy_spec
from tests.methods.scalar import linear, quadratic, scalar_federation
from tests.test_federation import equal, run_rounds


def test_how_often_gradients_count():
    assert gradient_weight(7, 0.0) == 7
    assert gradient_weight(3, 0.9) == pytest.approx(5.61, abs=1e-9)
    closed = (50 - 0.5 * (1 - 0.5**50) / 0.5) / 0.5
    assert gradient_weight(50, 0.5) == pytest.approx(closed, rel=1e-12)
    assert gradient_weight(10, 0.0, 0.05) == pytest.approx((1 - 0.95**10) / 0.05, rel=1e-12)


@pytest.mark.parametrize(("momentum", "mu"), [(0.0, 0.0), (0.9, 0.0), (0.0, 2.0), (0.9, 2.0)])
def test_it_is_the_way_that_sgd_goes_under_a_constant_gradient(monkeypatch, momentum, mu):
    """With FedProx the loss is w + μ/2·(w − x)²; the loop itself takes the steps."""
    parts = scalar_federation(
        monkeypatch,
        "fedprox",
        [1.0],
        linear,
        start=0.5,
        hparams={"mu": mu},
        local_steps=9,
        momentum=momentum,
    )
    next(rounds(*parts))
    way = 0.5 - parts[1].model.value.item()
    assert way == pytest.approx(0.1 * gradient_weight(9, momentum, 0.1 * mu), rel=1e-5)


def one_and_three_steps(monkeypatch, expression="fednova", **changes):
    """Gradients 1 and 2, rate 1, one and three steps: x − y is 1 and 6."""
    return scalar_federation(
        monkeypatch,
        expression,
        [1.0, 2.0],
        linear,
        sizes=[1, 3],
        local_epochs=1,
        **{"lr": 1.0, **changes},
    )


def test_update_oracle(monkeypatch):
    """p = (½, ½), τ = (1, 3): d = (1, 2), τ_eff = 2, update 3.0 where FedAvg's is 3.5."""
    parts = one_and_three_steps(monkeypatch)
    next(rounds(*parts))
    assert parts[1].model.value.item() == pytest.approx(-3.0, abs=1e-6)
    parts = one_and_three_steps(monkeypatch, "fedavg")
    next(rounds(*parts))
    assert parts[1].model.value.item() == pytest.approx(-3.5, abs=1e-6)


def test_weights_by_samples(monkeypatch):
    """p = (¼, ¾): Σ p d = 1.75, τ_eff = 2.5."""
    parts = one_and_three_steps(monkeypatch, weights="samples")
    next(rounds(*parts))
    assert parts[1].model.value.item() == pytest.approx(-4.375, abs=1e-6)


def test_momentum_oracle(monkeypatch):
    """‖a‖ = 1 and 5.61: Σ p d = 1.5 of constant gradients, τ_eff = 3.305."""
    parts = one_and_three_steps(monkeypatch, momentum=0.9)
    next(rounds(*parts))
    assert parts[1].model.value.item() == pytest.approx(-1.5 * 3.305, abs=1e-5)


def test_with_fedprox_the_pull_is_undone(monkeypatch):
    """d is again (1, 2) with ‖a‖ shortened by the pull, and τ_eff = Σ p τ = 2 as in the code."""
    parts = one_and_three_steps(monkeypatch, "fednova+fedprox", lr=0.5, hparams={"mu": 0.4})
    next(rounds(*parts))
    assert parts[1].model.value.item() == pytest.approx(-0.5 * 3.0, abs=1e-6)
    plain = one_and_three_steps(monkeypatch, "fedprox", lr=0.5, hparams={"mu": 0.4})
    next(rounds(*plain))
    assert plain[1].model.value.item() == pytest.approx(-1.47, abs=1e-6)


def test_a_pull_that_overshoots_is_refused(monkeypatch):
    parts = one_and_three_steps(monkeypatch, "fednova+fedprox", hparams={"mu": 1.0})
    with pytest.raises(UserError, match=r"lower fedprox\.mu"):
        next(rounds(*parts))


def test_server_momentum(monkeypatch):
    """Updates of 3 each round: 3, then 3 + 0.5·3."""
    parts = one_and_three_steps(monkeypatch, hparams={"gmf": 0.5})
    loop = rounds(*parts)
    next(loop)
    assert parts[1].model.value.item() == pytest.approx(-3.0, abs=1e-6)
    next(loop)
    assert parts[1].model.value.item() == pytest.approx(-7.5, abs=1e-5)


def test_unlike_fedavg_it_finds_the_minimum_of_the_mean(monkeypatch):
    """½(w ∓ 1)² with one and nine small steps: FedAvg settles near the busy client's minimum."""
    ends = []
    for name in ("fednova", "fedavg"):
        parts = scalar_federation(
            monkeypatch,
            name,
            [1.0, -1.0],
            quadratic,
            sizes=[1, 9],
            local_epochs=1,
            lr=0.01,
            rounds=200,
        )
        list(rounds(*parts))
        ends.append(parts[1].model.value.item())
    assert abs(ends[0]) < 0.03
    assert ends[1] < -0.75


def test_equal_steps_are_fedavg_bit_for_bit(federation):
    assert equal(
        run_rounds(federation(toy_spec("fednova"))), run_rounds(federation(toy_spec("fedavg")))
    )


def uneven(expression, **hparams):
    """Clients with 12, 39 and 39 images and work in epochs."""
    training = TRAINING.changed({"local_steps": None, "local_epochs": 1})
    return toy_spec(expression, training=training, overrides={expression: hparams})


def with_a_small_client(ours):
    samples = ours.clients[0].train
    samples.shard, samples.labels = samples.shard.take(range(12)), samples.labels[:12]
    return ours


def test_uneven_steps_change_parameters_but_not_buffers(federation):
    nova, fedavg = (with_a_small_client(federation(uneven(n))) for n in ("fednova", "fedavg"))
    start = copy_of(nova.server.state)
    one, other = run_rounds(nova, 1), run_rounds(fedavg, 1)
    names = parameter_names(nova.server.model)
    for key in one:
        same = torch.equal(one[key], other[key])
        assert same == (key not in names), key
    assert not equal(one, start)


def test_client_checkpoint_selection_counts_the_steps_of_the_upload(federation):
    training = TRAINING.changed({"local_steps": 6, "validate_every": 2, "lr": 0.2})
    ours = federation(toy_spec("fednova", training=training))
    updates = []

    class Watched(type(ours.method)):
        def upload(self, client):
            updates.append(super().upload(client))
            return updates[-1]

    next(rounds(Watched(), ours.server, ours.clients))
    for update in updates:
        assert update.extras["work"] == gradient_weight(update.steps, 0.9)


def test_with_fedbn_kept_layers_take_the_plain_mean(federation):
    ours = with_a_small_client(federation(uneven("fednova+fedbn")))
    run_rounds(ours, 2)
    weights = ours.method.weigh(ours.server, ours.clients)
    keys = batchnorm_keys(ours.server.model)
    for key in keys.affine | keys.statistics:
        kept = [client.memory["kept"][key] for client in ours.clients]
        mean = sum(w * value for w, value in zip(weights, kept, strict=True))
        assert torch.allclose(ours.server.state[key], mean, atol=1e-6)


def test_one_number_leaves_besides_weights(federation):
    ours = federation(toy_spec("fednova"))
    run_rounds(ours, 1)
    counts = dict(ours.server.traffic.counts)
    assert counts.pop("up/steps") == 3 * 8
    assert set(counts) == {"up/weights", "down/weights"}
    assert ours.method.info.shares == ("steps",)
