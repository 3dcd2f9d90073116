"""FedOMG: the common direction worked out by hand and against a search, and the server's step."""

import pytest
import torch

from benchmark.errors import UserError
from benchmark.federation import Update, rounds
from benchmark.method import compose
from benchmark.state import batchnorm_keys, copy_of, parameter_names
from methods.fedomg import direction, simplex_weights
from tests.conftest import toy_spec
from tests.methods.parts import three_of_six
from tests.methods.scalar import linear, scalar_federation
from tests.test_federation import equal, run_rounds

PARTIAL = three_of_six()


def omg(federation, expression="fedomg", radius=0.5, lr=0.5, scale="mean", **changes):
    chosen = {"omg_radius": radius, "omg_lr": lr, "omg_scale": scale}
    return federation(toy_spec(expression, overrides={"fedomg": chosen}, **changes))


def test_equal_updates_keep_their_direction():
    """g_w = g₀ = g for every w, so the answer is (1 + c)/(1 + c²)·g: 1.2·g at c = ½."""
    assert direction(torch.ones(3, 3), 0.5).sum().item() == pytest.approx(1.2, abs=1e-3)
    assert direction(torch.ones(5, 5), 0.2).sum().item() == pytest.approx(1.2 / 1.04, abs=1e-3)


def test_orthogonal_updates_of_one_length_count_alike():
    """Products = 1: g₀·g_k = ½, ‖g₀‖² = ½, w = (½, ½), so (½ + ½·½)/(1.25) = 0.6 of each."""
    assert direction(torch.eye(2), 0.5).tolist() == pytest.approx([0.6, 0.6], abs=1e-3)


def test_the_client_served_worst_gets_all_of_the_turn():
    """Squared lengths 1 and 9, product 0.2: the mean length is 2, so products are divided by 4 and
    g₀·g = (0.15, 1.15), ‖g₀‖² = 0.65. The first is worse off at every w: w = (1, 0), ‖g_w‖ = ½; the
    factors are (½ + ½√0.65/½)/1.25 = 1.04498 and ½/1.25 = 0.4."""
    products = torch.tensor([[1.0, 0.2], [0.2, 9.0]])
    assert direction(products, 0.5).tolist() == pytest.approx([1.04498, 0.4], abs=5e-4)


def test_weights_are_the_best_of_a_search():
    """An inner minimum, found on a grid of a thousandth."""
    products = torch.tensor([[1.0, -0.8], [-0.8, 1.3]]).double()
    with_mean = products.mean(1)
    bound = torch.tensor(0.5).double()

    def value(w):
        return w @ with_mean + bound * (w @ products @ w + 1e-4).sqrt()

    grid = [torch.tensor([k / 1000, 1 - k / 1000]).double() for k in range(1001)]
    best = min(grid, key=value)
    assert 0.05 < best[0] < 0.95
    found = simplex_weights(products, with_mean, bound, rate=0.5, steps=400)
    assert found.tolist() == pytest.approx(best.tolist(), abs=2e-3)
    default = simplex_weights(products, with_mean, bound)
    assert value(default) <= value(torch.tensor([0.5, 0.5]).double())
    assert value(default) == pytest.approx(value(best).item(), abs=0.02)


def test_the_worst_product_is_better_than_with_the_mean():
    torch.manual_seed(0)
    for _ in range(5):
        moves = torch.randn(3, 50) * torch.tensor([1.0, 2.0, 6.0])[:, None]
        products = moves @ moves.T
        mean = moves.mean(0)
        turned = direction(products, 0.5).float() @ moves * 1.25
        assert (moves @ turned).min() > (moves @ mean).min()
        assert (turned - mean).norm() == pytest.approx((0.5 * mean.norm()).item(), rel=1e-2)


def test_equal_clients_move_the_server_by_a_fifth_of_their_way(monkeypatch):
    """Three clients move by 1: ½·1.2/3; with `sum` ½·1.2, and c = 0 leaves the rate alone."""
    settings = [({}, 0.2), ({"omg_scale": "sum"}, 0.6), ({"omg_radius": 0, "omg_lr": 0.3}, 0.1)]
    for hparams, wanted in settings:
        method, server, clients = scalar_federation(
            monkeypatch, "fedomg", [-10.0] * 3, linear, hparams=hparams
        )
        next(rounds(method, server, clients))
        assert server.state["weight"].item() == pytest.approx(wanted, abs=2e-4)


def test_updates_carry_the_protocols_weights(monkeypatch):
    """c = 0, η = 1 and `sum`, but for a rate that does not take the short way: Σ p_k·way_k."""
    method, server, clients = scalar_federation(
        monkeypatch,
        "fedomg",
        [-10.0, -30.0],
        linear,
        sizes=[1, 3],
        weights="samples",
        hparams={"omg_radius": 0, "omg_lr": 0.5, "omg_scale": "sum"},
    )
    next(rounds(method, server, clients))
    assert server.state["weight"].item() == pytest.approx(0.5 * (0.25 * 1 + 0.75 * 3), abs=1e-6)


def test_without_a_turn_it_is_fedavg_bit_for_bit(federation):
    fedavg = run_rounds(federation(toy_spec("fedavg")))
    assert equal(run_rounds(omg(federation, radius=0, lr=1, scale="sum")), fedavg)
    assert not equal(run_rounds(omg(federation)), fedavg)


def test_without_a_turn_it_is_fedavgs_step_times_the_rate(federation):
    """η = 3 with three clients makes up for g₀'s 1/K: FedAvg, within rounding."""
    fedavg = run_rounds(federation(toy_spec("fedavg")), 1)
    found = run_rounds(omg(federation, radius=0, lr=3), 1)
    for key, value in fedavg.items():
        assert torch.allclose(found[key], value, atol=1e-6), key


def test_on_a_network_it_is_the_formula_on_flat_vectors(federation):
    ours = omg(federation)
    x = copy_of(ours.server.state)
    names = sorted(parameter_names(ours.server.model))
    torch.manual_seed(0)
    updates = []
    for k in range(3):
        state = {
            key: v + (k + 1) * 0.01 * torch.randn_like(v) if v.is_floating_point() else v + k
            for key, v in x.items()
        }
        updates.append(Update(k, state, 1, 1, weight=(0.5, 0.3, 0.2)[k]))
    ours.method.aggregate(ours.server, iter(updates))
    vectors = torch.stack(
        [u.weight * torch.cat([(u.state[n] - x[n]).reshape(-1) for n in names]) for u in updates]
    )
    factors = direction(vectors @ vectors.T, 0.5).float()
    wanted = torch.cat([x[n].reshape(-1) for n in names]) + 0.5 * factors @ vectors
    found = torch.cat([ours.server.state[n].reshape(-1) for n in names])
    assert torch.allclose(found, wanted, atol=1e-6)
    keys = batchnorm_keys(ours.server.model)
    for key in keys.statistics:
        mean = sum(u.weight * u.state[key] for u in updates)
        assert torch.allclose(ours.server.state[key], mean, atol=1e-6)
    for key in keys.counters:
        assert torch.equal(ours.server.state[key], x[key])  # the first client's


def test_nothing_is_shared_besides_weights_and_nothing_remembered(federation):
    ours = omg(federation)
    run_rounds(ours)
    assert {key.split("/")[1] for key in ours.server.traffic.counts} == {"weights"}
    assert ours.method.info.shares == ()
    assert ours.server.memory == {}


def test_with_partial_participation_the_rounds_clients_are_all(monkeypatch):
    """Of six clients three are heard: K = 3, so equal ways move the server by a fifth again."""
    method, server, clients = scalar_federation(
        monkeypatch, "fedomg", [-10.0] * 6, linear, clients_per_round=3
    )
    loop = rounds(method, server, clients)
    for number in range(1, 4):
        assert len(next(loop).chosen) == 3
        assert server.state["weight"].item() == pytest.approx(0.2 * number, abs=1e-3)


def test_with_partial_participation_it_trains(federation):
    ours = federation(toy_spec("fedomg", **PARTIAL))
    losses = []
    for round in rounds(ours.method, ours.server, ours.clients):
        assert len(round.chosen) == 3 < len(ours.clients) == 6
        losses.append(round.loss)
    assert losses[-1] < losses[0]


def test_it_composes(federation):
    alone = run_rounds(omg(federation))
    both = run_rounds(omg(federation, "fedomg+fedprox"))
    assert not equal(both, alone)
    assert all(torch.isfinite(value).all() for value in both.values())
    assert compose("scaffold+fedomg")
    with pytest.raises(UserError, match="aggregate of fedomg would silence that of scaffold"):
        compose("fedomg+scaffold")


def test_layers_that_clients_keep_take_the_plain_mean(federation):
    found = run_rounds(omg(federation, "fedomg+fedbn"), 1)
    plain = run_rounds(federation(toy_spec("fedbn")), 1)
    for key in batchnorm_keys(omg(federation).server.model).all:
        assert torch.allclose(found[key], plain[key], atol=1e-6), key
    assert not torch.allclose(found["block1.0.weight"], plain["block1.0.weight"], atol=1e-6)
