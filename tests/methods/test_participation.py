"""Ten of thirty clients are sampled: what the absent keep, and what counts without them."""

import collections
import copy

import pytest
import torch

from benchmark.federation import rounds
from benchmark.method import compose, methods
from benchmark.state import batchnorm_keys
from methods.copa import head_keys
from methods.ops.restyle import ORIGINAL
from tests.conftest import TRAINING, toy_spec
from tests.test_every_method import fitting
from tests.test_federation import equal, run_rounds

TEN_OF_THIRTY = TRAINING.changed({"clients_per_round": 10, "rounds": 4})
QUICK = {"csac": {"pretrain_rounds": 1}}
FROM_THE_START = {"csac": {"teacher"}, "elcfs": {"elcfs"}, "ccst": {"ccst"}}
"""What all clients remember before round 0, sampled or not."""
FROM_THE_FIRST_VISIT = {
    "copa": {"kept"},
    "doprompt": {"kept"},
    "fedadg": {"adg_discriminator", "adg_optimizer"},
    "fedbn": {"kept"},
    "fedfd+silobn": {"kept"},
    "fedfd_a+fedbn": {"kept"},
    "fedfd_prompt": {"kept"},
    "fedsr": {"reference"},
    "gperxan": {"kept"},
    "moon": {"moon_previous"},
    "scaffold": {"scaffold"},
    "silobn": {"kept"},
}
"""What a client remembers once it has been sampled."""
FEDERATED = [
    name for name in methods.names() if methods[name].info.category.startswith("federated")
]


def thirty(federation, name, training=TEN_OF_THIRTY, **overrides):
    changes = {"partition": "single_domain_k:clients=10", "training": training}
    spec = toy_spec(name, overrides={**QUICK, **overrides}, **changes, **fitting(name))
    ours = federation(spec)
    assert len(ours.clients) == 30
    return ours


def watched(ours) -> dict[str, set[int]]:
    """Who has sent something up or got something down, by direction and kind."""
    seen: dict[str, set[int]] = collections.defaultdict(set)
    server = ours.server
    up, down = {client.id: client.send for client in ours.clients}, server.send
    for client in ours.clients:

        def send(kind, payload, number=client.id):
            seen[f"up/{kind}"].add(number)
            return up[number](kind, payload)

        client.send = send

    def hand(client, kind, payload):
        seen[f"down/{kind}"].add(client.id)
        return down(client, kind, payload)

    server.send = hand
    return seen


def alike(one, other) -> bool:
    """Whether two memories hold the same bits."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    return one == other


@pytest.mark.parametrize("name", [*FEDERATED, "fedfd+silobn", "fedfd_a+fedbn"])
def test_only_the_rounds_clients_speak_are_spoken_to_and_change(name, federation):
    ours = thirty(federation, name)
    seen, met, before = watched(ours), set(), None
    start = FROM_THE_START.get(name, set())
    for round in rounds(ours.method, ours.server, ours.clients):
        chosen = {client.id for client in round.chosen}
        assert len(chosen) == 10
        assert 0 <= round.loss < 100
        shared = {kind.partition("/")[2] for kind in seen if kind.startswith("up/")}
        assert shared - {"weights"} <= set(compose(name).info.shares)
        if round.number == 0:  # with the exchange before it
            everyone = set(range(30)) if start else chosen
            assert set().union(*seen.values()) == everyone
        else:
            assert seen["up/weights"] == seen["down/weights"] == chosen
            assert set().union(*seen.values()) == chosen
        seen.clear()
        met |= chosen
        for client in ours.clients:
            own = FROM_THE_FIRST_VISIT.get(name, set()) if client.id in met else set()
            assert client.memory.keys() == start | own
            if before is not None and client.id not in chosen:
                assert alike(client.memory, before[client.id])
        before = {client.id: copy.deepcopy(client.memory) for client in ours.clients}
        weights = ours.method.weigh(ours.server, round.chosen)
        assert len(weights) == 10
        assert sum(weights) == pytest.approx(1)
    assert 10 < len(met) < 30  # some have come back, some were never there
    images = ours.clients[0].train.evaluation_batches(4)
    images = next(iter(images)).images
    for predict in ours.method.predictors(ours.server, ours.clients).values():
        ours.server.model.eval()
        with torch.inference_mode():
            assert torch.isfinite(predict(images)).all()


def test_ga_keeps_absent_clients_shares_and_averages_by_those_of_the_present(federation):
    ours = thirty(federation, "ga")
    before = [1 / 30] * 30
    for round in rounds(ours.method, ours.server, ours.clients):
        if round.number == 3:  # the last round: no average would use it
            break
        after, chosen = ours.server.memory["ga"], [client.id for client in round.chosen]
        assert sum(after) == pytest.approx(1)
        absent = [after[k] / before[k] for k in range(30) if k not in chosen]
        assert absent == pytest.approx([absent[0]] * 20)  # the common normalisation alone
        moved = [after[k] / absent[0] - before[k] for k in chosen]
        step = ours.method.step_at(round.number, 4, 30)
        assert max(map(abs, moved)) == pytest.approx(step, abs=1e-9)
        total = sum(after[k] for k in chosen)
        wanted = [after[k] / total for k in chosen]
        assert ours.method.weigh(ours.server, round.chosen) == pytest.approx(wanted)
        before = after


def test_copa_has_stale_heads_of_the_absent_and_none_of_the_unseen(federation):
    ours = thirty(federation, "copa")
    head = sum(ours.server.state[key].numel() * 4 for key in head_keys(ours.server.model))
    known, sent = {}, 0
    for round in rounds(ours.method, ours.server, ours.clients):
        chosen = {client.id for client in round.chosen}
        handed = ours.server.traffic.counts["down/heads"] - sent
        assert handed == head * sum(len(known.keys() - {number}) for number in chosen)
        sent += handed
        bank = ours.server.memory["heads"]
        assert bank.keys() == known.keys() | chosen
        assert all(equal(bank[k], known[k]) for k in known.keys() - chosen)
        assert ours.method.predictors(ours.server, [])["copa"].count == len(bank)
        known = copy.deepcopy(bank)


def test_csac_fuses_the_teachers_of_all_first_and_the_models_of_the_present_later(federation):
    ours = thirty(federation, "csac")
    fused, inner = [], type(ours.method)._fused

    def counting(self, server, states, weights):
        fused.append(len(states))
        return inner(self, server, states, weights)

    object.__setattr__(ours.method, "_fused", counting.__get__(ours.method))
    run_rounds(ours)
    assert fused == [30, 10, 10, 10, 10]


@pytest.mark.parametrize(("name", "kind"), [("elcfs", "amplitude"), ("ccst", "style")])
def test_banks_hold_what_clients_that_were_never_sampled_have_sent(name, kind, federation):
    ours = thirty(federation, name)
    loop = rounds(ours.method, ours.server, ours.clients)
    next(loop)
    once = {k: ours.server.traffic.counts[f"{k}/{kind}"] for k in ("up", "down")}
    assert once["down"] == 29 * once["up"] > 0
    for _ in loop:
        pass
    assert once == {k: ours.server.traffic.counts[f"{k}/{kind}"] for k in ("up", "down")}
    memory = ours.clients[0].memory[name]
    assert len(memory["styles"] if name == "ccst" else memory) == 29


def test_ccst_takes_styles_of_clients_nobody_has_met(federation):
    ours = thirty(federation, "ccst", ccst={"ccst_k": 30})
    run_rounds(ours, 1)
    for client in ours.clients:
        entries = client.memory["ccst"]["entries"]
        assert entries.shape[1] == 30
        assert all(sorted(row) == [ORIGINAL, *range(29)] for row in entries.tolist())


def test_scaffold_divides_by_all_clients(federation):
    ours = thirty(federation, "scaffold")
    for _ in rounds(ours.method, ours.server, ours.clients):
        for name, value in ours.server.memory["scaffold"].items():
            known = [c.memory["scaffold"][name] for c in ours.clients if "scaffold" in c.memory]
            assert torch.allclose(value, sum(known) / 30, atol=1e-5)


def test_fedheal_and_dson_remember_the_absent_on_the_server(federation):
    for name, key in (("fedheal", "fedheal"), ("dson", "branches")):
        ours, met, before = thirty(federation, name), set(), {}
        for round in rounds(ours.method, ours.server, ours.clients):
            chosen = {client.id for client in round.chosen}
            memory = ours.server.memory[key]
            met |= chosen
            assert memory.keys() == met
            assert all(alike(memory[k], before[k]) for k in before.keys() - chosen)
            assert not any(alike(memory[k], before[k]) for k in before.keys() & chosen)
            before = copy.deepcopy(memory)


@pytest.mark.parametrize("name", ["fednova", "swa"])
def test_with_equal_steps_and_a_constant_rate_they_train_as_fedavg_does(name, federation):
    overrides = {"swa": {"swa_cycle": 1}}
    one, other = (thirty(federation, which, **overrides) for which in (name, "fedavg"))
    assert equal(run_rounds(one), run_rounds(other))


def test_fpls_prototypes_fediirs_gradients_and_stablefdgs_styles_are_of_ten(federation):
    ours = thirty(federation, "fpl")
    for round in rounds(ours.method, ours.server, ours.clients):
        held = set().union(*(set(client.train.labels.tolist()) for client in round.chosen))
        assert set(ours.server.memory["fpl"]["classes"].tolist()) == held
    ours = thirty(federation, "fediir")
    run_rounds(ours)
    size = sum(value.numel() * 4 for value in ours.server.memory["fediir"].values())
    assert ours.server.traffic.counts["up/gradient"] == 4 * 10 * (size + 8)
    ours = thirty(federation, "stablefdg")
    for round in rounds(ours.method, ours.server, ours.clients):
        sent = [client.scratch["stablefdg"] for client in round.chosen]
        received = [client.inbox["style"][0] for client in round.chosen]
        order = [next(k for k, own in enumerate(sent) if own is style) for style in received]
        assert sorted(order) == list(range(10))
        assert all(place != giver for place, giver in enumerate(order))


def test_fedfd_tells_global_statistics_only_to_those_who_come_back(federation):
    ours = thirty(federation, "fedfd+silobn")
    statistics = batchnorm_keys(ours.server.model).statistics
    size, sent, met = sum(4 * ours.server.state[key].numel() for key in statistics), 0, set()
    for round in rounds(ours.method, ours.server, ours.clients):
        chosen = {client.id for client in round.chosen}
        sent += size * len(met & chosen)
        assert ours.server.traffic.counts["down/statistics"] == sent
        met |= chosen
    assert sent > 0


@pytest.mark.parametrize("name", ["fedbn", "gperxan"])
def test_layers_that_clients_keep_are_averaged_over_the_present(name, federation):
    ours = thirty(federation, name)
    for round in rounds(ours.method, ours.server, ours.clients):
        weights = ours.method.weigh(ours.server, round.chosen)
        for key in round.chosen[0].memory["kept"]:
            if ours.server.state[key].is_floating_point():
                own = [client.memory["kept"][key] for client in round.chosen]
                mean = sum(w * value for w, value in zip(weights, own, strict=True))
                assert torch.allclose(ours.server.state[key], mean, atol=1e-5), key
