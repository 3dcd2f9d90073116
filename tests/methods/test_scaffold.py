"""SCAFFOLD: the two-client oracle, the control variates, participation and kept layers."""

import pytest
import torch

from benchmark.errors import UserError
from benchmark.federation import rounds, visit
from benchmark.state import batchnorm_keys, copy_of, parameter_names
from methods.bin import gates_of
from methods.ops.local_work import gradient_weight
from tests.conftest import TRAINING, toy_spec
from tests.methods.scalar import linear, quadratic, scalar_federation
from tests.test_federation import equal, run_rounds


def control(holder) -> float:
    return holder.memory["scaffold"]["weight"].item()


def test_two_client_oracle(monkeypatch):
    """f = ½(w ∓ 1)², η = 0.1, τ = 2: y₁ = 0.19, c₁ = −0.95; then y₁ = 0.0095, c₁ = −0.9975."""
    method, server, clients = scalar_federation(
        monkeypatch, "scaffold", [1.0, -1.0], quadratic, local_steps=2
    )
    uploads = []

    class Watched(type(method)):
        def upload(self, client):
            uploads.append(client.model.value.item())
            return super().upload(client)

    loop = rounds(Watched(), server, clients)
    next(loop)
    assert uploads == pytest.approx([0.19, -0.19], abs=1e-6)
    assert [control(client) for client in clients] == pytest.approx([-0.95, 0.95], abs=1e-5)
    assert control(server) == pytest.approx(0, abs=1e-6)
    next(loop)
    assert uploads[2:] == pytest.approx([0.0095, -0.0095], abs=1e-6)
    assert [control(client) for client in clients] == pytest.approx([-0.9975, 0.9975], abs=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_the_control_variate_is_the_clients_gradient_with_any_momentum(monkeypatch, momentum):
    """A constant gradient must be recovered exactly, in every round, corrections and decay of the
    momentum included; dividing by the steps alone would give several times as much."""
    method, server, clients = scalar_federation(
        monkeypatch, "scaffold", [3.0, -1.0], linear, local_steps=5, momentum=momentum
    )
    for _ in zip(range(3), rounds(method, server, clients), strict=False):
        assert [control(client) for client in clients] == pytest.approx([3, -1], abs=1e-4)
        assert control(server) == pytest.approx(1, abs=1e-4)


def test_after_the_first_round_clients_with_constant_gradients_move_alike(monkeypatch):
    """g − c_k + c is the mean gradient 1 for everyone: each y is x − 2·0.1."""
    method, server, clients = scalar_federation(
        monkeypatch, "scaffold", [3.0, -1.0], linear, local_steps=2
    )
    next(rounds(method, server, clients))
    x = server.model.value.item()
    for client in clients:
        update, _, _ = visit(method, server, client)
        assert update.state["weight"].item() == pytest.approx(x - 0.2, abs=1e-6)


def test_the_correction_is_not_clipped(monkeypatch):
    """Clipped to 1, the gradients are 1 and −1, the control variates too, so nobody moves."""
    method, server, clients = scalar_federation(
        monkeypatch, "scaffold", [3.0, -2.0], linear, local_steps=2, clip=1.0
    )
    next(rounds(method, server, clients))
    assert [control(client) for client in clients] == pytest.approx([1, -1], abs=1e-5)
    update, _, _ = visit(method, server, clients[0])
    assert update.state["weight"].item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_the_first_round_is_fedavgs_bit_for_bit(federation, momentum):
    training = TRAINING.changed({"momentum": momentum})
    scaffold, fedavg = (
        federation(toy_spec(name, training=training)) for name in ("scaffold", "fedavg")
    )
    assert equal(run_rounds(scaffold, 1), run_rounds(fedavg, 1))
    scaffold, fedavg = (
        federation(toy_spec(name, training=training)) for name in ("scaffold", "fedavg")
    )
    assert not equal(run_rounds(scaffold, 2), run_rounds(fedavg, 2))


def test_weights_with_a_rate_of_their_own_have_their_gradients_as_control_variates(federation):
    """BIN's gates learn ten times as fast: their way is divided by ten times as much."""
    training = TRAINING.changed({"lr": 1e-3, "momentum": 0.0})
    ours = federation(toy_spec("scaffold+bin", training=training))
    for gate in gates_of(ours.server.model):
        gate.data.fill_(0.5)
    client, seen = ours.clients[0], []
    step = type(ours.method).step

    def watched(self, client, batch):
        loss = step(self, client, batch)
        seen.append({name: w.grad.clone() for name, w in client.model.named_parameters()})
        return loss

    object.__setattr__(ours.method, "step", watched.__get__(ours.method))
    ours.method.prepare(ours.server, ours.clients)
    visit(ours.method, ours.server, client)
    assert len(seen) == 2
    for name, found in client.memory["scaffold"].items():
        mean = (seen[0][name] + seen[1][name]) / 2
        # The way is small beside the weights, so their last digits show.
        assert torch.allclose(found, mean, rtol=1e-3, atol=2e-4), name
    gates = [name for name in client.memory["scaffold"] if name.endswith("gate")]
    assert max(client.memory["scaffold"][name].abs().max() for name in gates) > 0.01


def test_weights_of_another_optimiser_have_no_control_variate(federation):
    ours = federation(toy_spec("scaffold+fedfd_a"))
    run_rounds(ours, 1)
    for client in ours.clients:
        for name, value in client.memory["scaffold"].items():
            assert bool(value.any()) != name.startswith("adapters."), name


def test_with_all_clients_the_servers_variate_is_their_mean_and_covers_parameters(federation):
    ours = federation(toy_spec("scaffold"))
    names = parameter_names(ours.server.model)
    for _ in rounds(ours.method, ours.server, ours.clients):
        assert set(ours.server.memory["scaffold"]) == names
        for name, value in ours.server.memory["scaffold"].items():
            mean = sum(client.memory["scaffold"][name] for client in ours.clients) / 3
            assert torch.allclose(value, mean, atol=1e-5)


def test_with_some_clients_the_change_is_divided_by_all_and_others_keep_theirs(federation):
    training = TRAINING.changed({"clients_per_round": 3, "rounds": 4})
    ours = federation(
        toy_spec("scaffold", partition="single_domain_k:clients=2", training=training)
    )
    before = None
    for round in rounds(ours.method, ours.server, ours.clients):
        own = {c.id: copy_of(c.memory.get("scaffold", {})) for c in ours.clients}
        if before is not None:
            for client in ours.clients:
                if client not in round.chosen:
                    assert equal(own[client.id], before[client.id])
        before = own
    assert len(ours.clients) == 6
    for name, value in ours.server.memory["scaffold"].items():
        mean = sum(own[name] for own in before.values() if own) / 6
        assert torch.allclose(value, mean, atol=1e-5)


def test_the_servers_rate_scales_the_way_and_buffers_are_the_plain_mean(federation):
    half = toy_spec("scaffold", overrides={"scaffold": {"scaffold_server_lr": 0.5}})
    ours = federation(half)
    start = copy_of(ours.server.state)
    one, other = run_rounds(ours, 1), run_rounds(federation(toy_spec("fedavg")), 1)
    names = parameter_names(ours.server.model)
    for key, value in one.items():
        wanted = (start[key] + other[key]) / 2 if key in names else other[key]
        assert torch.allclose(value.double(), wanted.double(), atol=1e-6)


def test_client_checkpoint_selection_changes_the_steps(federation):
    training = TRAINING.changed({"local_steps": 6, "validate_every": 2, "lr": 0.2})
    ours = federation(toy_spec("scaffold", training=training))
    ours.method.prepare(ours.server, ours.clients)
    for client in ours.clients:
        update, _, _ = visit(ours.method, ours.server, client)
        weight = gradient_weight(update.steps, 0.9)
        way = ours.server.state["head.weight"] - update.state["head.weight"]
        expected = way / (0.2 * weight)
        assert torch.allclose(client.memory["scaffold"]["head.weight"], expected, atol=1e-5)
        assert update.steps in (2, 4, 6)


def test_with_fedbn_kept_layers_have_no_control_variate(federation):
    ours = federation(toy_spec("scaffold+fedbn"))
    run_rounds(ours)
    keys = batchnorm_keys(ours.server.model)
    wanted = parameter_names(ours.server.model) - keys.affine
    assert set(ours.clients[0].memory["scaffold"]) == wanted
    assert set(ours.server.memory["scaffold"]) == wanted
    for key in keys.affine | keys.statistics:
        mean = sum(client.memory["kept"][key] for client in ours.clients) / 3
        assert torch.allclose(ours.server.state[key], mean, atol=1e-5)


def test_with_fedsam_the_correction_meets_the_second_gradient(monkeypatch):
    """f = ½(w ∓ 1)², ρ = 0.1, τ = 1: gradients at the perturbed point are ∓1.1."""
    method, server, clients = scalar_federation(
        monkeypatch, "scaffold+fedsam", [1.0, -1.0], quadratic, hparams={"rho": 0.1}
    )
    next(rounds(method, server, clients))
    assert [control(client) for client in clients] == pytest.approx([-1.1, 1.1], abs=1e-5)
    update, _, _ = visit(method, server, clients[0])
    assert update.state["weight"].item() == pytest.approx(0, abs=1e-6)


def test_a_round_without_rate_leaves_the_variate_alone(monkeypatch):
    method, server, clients = scalar_federation(
        monkeypatch, "scaffold", [1.0, 3.0], linear, schedule="step", step_rounds=1, step_factor=0.0
    )
    for _ in zip(range(2), rounds(method, server, clients), strict=False):
        assert [control(client) for client in clients] == pytest.approx([1, 3], abs=1e-5)


def test_control_variates_double_the_traffic_of_parameters(federation):
    ours = federation(toy_spec("scaffold"))
    run_rounds(ours, 1)
    size = 4 * sum(weight.numel() for weight in ours.server.model.parameters())
    counts = ours.server.traffic.counts
    assert counts["up/control"] == counts["down/control"] == 3 * size
    kinds = {kind.split("/")[1] for kind in counts} - {"weights"}
    assert kinds == set(ours.method.info.shares)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keep_optimizer": True}, "set training.keep_optimizer=false"),
        ({"optimizer": "adam"}, "set training.optimizer=sgd"),
    ],
)
@pytest.mark.parametrize("name", ["scaffold", "fednova"])
def test_it_needs_sgd_that_starts_fresh(name, change, message):
    with pytest.raises(UserError, match=message) as error:
        toy_spec(name, training=TRAINING.changed(change))
    assert name in str(error.value)
    assert "\n" not in str(error.value)
