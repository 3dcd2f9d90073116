"""FedHEAL: weights and masks worked out by hand, and a plain reference for whole networks."""

import pytest
import torch

from benchmark.errors import UserError
from benchmark.federation import Update, rounds
from benchmark.method import compose
from benchmark.state import copy_of, parameter_names
from tests.conftest import TRAINING, toy_spec
from tests.methods.parts import three_of_six
from tests.methods.scalar import linear, scalar_federation
from tests.test_federation import equal, run_rounds

PARTIAL = three_of_six()


def heal(federation, threshold=0.3, beta=0.4, expression="fedheal", **changes):
    overrides = {"fedheal": {"heal_threshold": threshold, "heal_beta": beta}}
    return federation(toy_spec(expression, overrides=overrides, **changes))


def values_of(method, server, clients, count) -> list[float]:
    """The scalar weight after each of the first rounds."""
    loop = rounds(method, server, clients)
    return [next(loop) and server.state["weight"].item() for _ in range(count)]


def test_weights_follow_distances(monkeypatch):
    """Two clients move by 1 and 3, distances' shares ¼ and ¾. Δ = (0.1, 0.3), a = (0.6, 0.8): the
    step is (0.6 + 2.4)/1.4 = 15/7. Then Δ = 0.6·(0.1, 0.3) + (0.1, 0.3) = (0.16, 0.48) and
    a = (0.76, 1.28): the step is (0.76 + 3.84)/2.04."""
    ours = scalar_federation(monkeypatch, "fedheal", [-10.0, -30.0], linear)
    found = values_of(*ours, 2)
    assert found == pytest.approx([15 / 7, 15 / 7 + 4.6 / 2.04], abs=1e-5)
    memory = ours[1].memory["fedheal"]
    assert [memory[k]["delta"] for k in (0, 1)] == pytest.approx([0.16, 0.48])
    assert [memory[k]["gain"] for k in (0, 1)] == pytest.approx([0.26, 0.78])


def test_a_starts_at_the_protocols_weights(monkeypatch):
    """Sizes 1 and 3: a = (0.25 + 0.1, 0.75 + 0.3), in the step (0.35 + 3.15)/1.4 = 2.5."""
    method, server, clients = scalar_federation(
        monkeypatch, "fedheal", [-10.0, -30.0], linear, sizes=[1, 3], weights="samples"
    )
    assert values_of(method, server, clients, 1) == pytest.approx([2.5], abs=1e-6)


def test_an_update_against_the_clients_own_habit_is_dropped(monkeypatch):
    """At rate 1 clients land on 10 and 1. Round 0: a = 0.5 + 0.4·(10, 1)/11, as the moves are. In
    round 1 the second client turns round, so it is not heard: 10. In round 2 half of its visits
    went down, which is more than 0.3, and the first client, which stands still, counts as going
    down for the first time: 1."""
    ours = scalar_federation(monkeypatch, "fedheal", [10.0, 1.0], lr=1.0)
    first = (10 * (0.5 + 4 / 11) + 0.5 + 0.4 / 11) / 1.4
    assert values_of(*ours, 3) == pytest.approx([first, 10, 1], abs=1e-5)


def test_below_zero_nothing_is_dropped(monkeypatch):
    """As above but the mean of 10 and 1 weighted by a = (1.235065, 0.804935) in round 1."""
    ours = scalar_federation(
        monkeypatch, "fedheal", [10.0, 1.0], lr=1.0, hparams={"heal_threshold": -1}
    )
    assert values_of(*ours, 2)[1] == pytest.approx(13.155585 / 2.04, abs=1e-4)


def test_where_nobody_is_heard_nothing_moves(monkeypatch):
    """Above threshold 1 nothing passes from the second visit on."""
    ours = scalar_federation(
        monkeypatch, "fedheal", [-10.0, -30.0], linear, hparams={"heal_threshold": 1}
    )
    assert values_of(*ours, 3) == pytest.approx([15 / 7] * 3, abs=1e-6)


def test_without_distances_and_masks_it_is_fedavg_bit_for_bit(federation):
    fedavg = run_rounds(federation(toy_spec("fedavg")))
    assert equal(run_rounds(heal(federation, threshold=-1, beta=0)), fedavg)
    assert not equal(run_rounds(heal(federation)), fedavg)


def test_without_distances_the_first_round_is_fedavgs_within_rounding(federation):
    fedavg = run_rounds(federation(toy_spec("fedavg")), 1)
    ours = heal(federation, beta=0)
    found = run_rounds(ours, 1)
    for key, value in fedavg.items():
        assert torch.allclose(found[key], value, atol=1e-6), key
    second = run_rounds(heal(federation, beta=0), 2)
    plain = run_rounds(federation(toy_spec("fedavg")), 2)
    names = parameter_names(ours.server.model)
    assert not all(torch.allclose(second[name], plain[name], atol=1e-6) for name in names)


class Reference:
    """The same rule with everything held at once, entry by entry weights that sum to 1."""

    def __init__(self, names, threshold, beta):
        self.names, self.threshold, self.beta = names, threshold, beta
        self.signs, self.delta, self.gain = {}, {}, {}

    def step(self, x, updates):
        masked, masks, distances = {}, {}, {}
        for update in updates:
            k = update.client
            ways = {n: x[n] - update.state[n] for n in self.names}
            signs = {n: (way >= 0).float() for n, way in ways.items()}
            history = self.signs.setdefault(k, [])
            if history:
                masks[k] = {
                    n: (
                        torch.stack([(old[n] == signs[n]).float() for old in history]).mean(0)
                        > self.threshold
                    ).float()
                    for n in self.names
                }
            else:
                masks[k] = {n: torch.ones_like(way) for n, way in ways.items()}
            history.append(signs)
            masked[k] = {n: ways[n] * masks[k][n] for n in self.names}
            distances[k] = sum(masked[k][n].norm() for n in self.names)
        a = {}
        for update in updates:
            k, share = update.client, distances[update.client] / sum(distances.values())
            self.delta[k] = (1 - self.beta) * self.delta.get(k, 0) + self.beta * share
            self.gain[k] = self.gain.get(k, 0) + self.delta[k]
            a[k] = update.weight + self.gain[k]
        new = {}
        for n in self.names:
            weights = torch.stack([a[k] * masks[k][n] for k in a])
            weights = torch.nan_to_num(weights / weights.sum(0))
            new[n] = x[n] - (weights * torch.stack([masked[k][n] for k in a])).sum(0)
        for key in x.keys() - set(self.names):
            if x[key].is_floating_point():
                total = sum(a.values())
                new[key] = sum(a[u.client] * u.state[key] for u in updates) / total
        return new


def test_it_is_the_rule_with_everything_held_at_once(federation):
    ours = heal(federation)
    reference = Reference(sorted(parameter_names(ours.server.model)), 0.3, 0.4)
    torch.manual_seed(0)
    dropped = 0
    for chosen in ([0, 1, 2], [0, 2], [0, 1, 2], [1, 2], [0, 1, 2]):
        x = copy_of(ours.server.state)
        updates = []
        for k in chosen:
            state = {
                n: v + 0.1 * (k + 1) * torch.randn_like(v) if v.is_floating_point() else v
                for n, v in x.items()
            }
            updates.append(Update(k, state, 1, 1, weight=1 / len(chosen)))
        ours.method.aggregate(ours.server, iter(updates))
        wanted = reference.step(x, updates)
        for key, value in wanted.items():
            assert torch.allclose(ours.server.state[key], value, atol=1e-5), key
            dropped += int((ours.server.state[key] == x[key]).sum())
    assert dropped > 0


def test_updates_may_come_in_any_kind_of_stream(federation):
    """The aggregation asks for one update after the other and never goes back."""
    ours = heal(federation)
    asked = []

    def stream():
        for k in range(3):
            asked.append(k)
            state = {key: value + k for key, value in ours.server.state.items()}
            yield Update(k, state, 1, 1, weight=1 / 3)

    ours.method.aggregate(ours.server, stream())
    assert asked == [0, 1, 2]


def test_nothing_is_shared_besides_weights(federation):
    ours = heal(federation)
    run_rounds(ours)
    assert {key.split("/")[1] for key in ours.server.traffic.counts} == {"weights"}
    assert ours.method.info.shares == ()


def test_with_partial_participation_a_skipped_client_keeps_its_past(federation):
    ours = heal(federation, **PARTIAL)
    assert len(ours.clients) == 6
    visits, before = dict.fromkeys(range(6), 0), {}
    for round in rounds(ours.method, ours.server, ours.clients):
        chosen = {client.id for client in round.chosen}
        assert len(chosen) == 3
        memory = ours.server.memory["fedheal"]
        for k, past in memory.items():
            visits[k] += k in chosen
            now = (past["gain"], past["delta"], past["visits"], [c.sum() for c in past["falls"]])
            assert past["visits"] == visits[k]
            if k not in chosen:
                assert now == before[k]
            before[k] = now
        deltas = sum(memory[k]["delta"] for k in chosen)
        assert 0 < deltas < 1
    assert sorted(memory) == sorted(k for k in visits if visits[k])


def test_counts_take_one_byte_or_two(federation):
    short = heal(federation)
    run_rounds(short, 1)
    long = heal(federation, training=TRAINING.changed({"rounds": 300}))
    run_rounds(long, 1)
    kinds = [f.server.memory["fedheal"][0]["falls"][0].dtype for f in (short, long)]
    assert kinds == [torch.uint8, torch.int16]


def test_it_composes(federation):
    both = heal(federation, expression="fedheal+silobn")
    run_rounds(both)
    assert "kept" in both.clients[0].memory
    alone = run_rounds(heal(federation))
    for name in parameter_names(both.server.model):
        assert torch.equal(both.server.state[name], alone[name])
    assert compose("scaffold+fedheal")
    with pytest.raises(UserError, match="aggregate of fedheal would silence that of scaffold"):
        compose("fedheal+scaffold")


def test_layers_that_clients_keep_take_the_weighted_mean(federation):
    """With FedBN the way from the server's layers to a client's is no local work: not masked."""
    ours = heal(federation, expression="fedheal+fedbn", beta=0.0)
    plain = run_rounds(federation(toy_spec("fedbn")), 1)
    found = run_rounds(ours, 1)
    assert torch.allclose(found["block1.1.weight"], plain["block1.1.weight"], atol=1e-6)
    count = len(ours.server.memory["fedheal"][0]["falls"])
    assert count == len(parameter_names(ours.server.model)) - 8
