"""FedDG-GA: weights of the average that follow the generalisation gaps."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.errors import UserError
from benchmark.evaluation import score
from benchmark.federation import rounds, visit
from benchmark.method import compose, make_method
from benchmark.state import batchnorm_keys, copy_of, write
from methods.ga import adjusted
from tests.conftest import TRAINING, toy_spec
from tests.methods.parts import three_of_six
from tests.test_federation import equal, run_rounds

UNIFORM = TRAINING.changed({"weights": "uniform"})
SIX = three_of_six(rounds=5)
GAPS = {0: 0.3, 1: 0.1, 2: -0.1}
THIRDS = [1 / 3] * 3


def test_the_papers_step():
    new = adjusted(THIRDS, GAPS, 0.2, centred=True)
    assert new == pytest.approx([0.53333, 0.33333, 0.13333], abs=1e-5)


def test_the_codes_step_is_a_third_and_takes_no_mean_off():
    new = adjusted(THIRDS, GAPS, 0.2 / 3, centred=False)
    assert new == pytest.approx([0.375, 0.33333, 0.29167], abs=1e-5)


def test_the_step_shrinks_linearly_and_the_codes_starts_longer():
    paper, code = (make_method("ga", {"ga_variant": name}) for name in ("paper", "code"))
    assert [paper.step_at(t, 40, 3) for t in (0, 20, 39)] == pytest.approx(
        [0.2 / 3, 0.1 / 3, 0.005 / 3]
    )
    assert [code.step_at(t, 40, 3) for t in (0, 1, 21)] == pytest.approx(
        [0.205 / 3, 0.2 / 3, 0.1 / 3]
    )
    assert make_method("ga", {"ga_per_client": False}).step_at(0, 40, 3) == 0.2


numbers = st.floats(allow_nan=True, allow_infinity=True)


@settings(deadline=None)
@given(
    start=st.lists(st.floats(0, 1), min_size=1, max_size=8).filter(lambda a: sum(a) > 1e-6),
    moves=st.lists(st.tuples(numbers, st.booleans()), min_size=8, max_size=8),
    step=st.floats(0, 10),
    centred=st.booleans(),
)
def test_weights_stay_on_the_simplex_whatever_comes(start, moves, step, centred):
    weights = [a / sum(start) for a in start]
    gaps = {k: gap for k, (gap, chosen) in enumerate(moves[: len(start)]) if chosen or k == 0}
    new = adjusted(weights, gaps, step, centred)
    assert len(new) == len(weights)
    assert all(0 <= a <= 1 for a in new)
    assert math.fsum(new) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("gaps", [(0.1, 0.1, 0.1), (0.0, 0.0, 0.0), (1.0, math.nan, 0.0)])
def test_equal_gaps_and_broken_risks_change_nothing(gaps):
    start = [0.5, 0.3, 0.2]
    assert adjusted(start, dict(enumerate(gaps)), 0.2, centred=True) == start


def test_a_larger_gap_never_gets_a_smaller_step():
    new = adjusted(THIRDS, {0: 0.05, 1: 0.2, 2: 0.1}, 0.1, centred=True)
    assert new[1] > new[2] > new[0]
    assert new[1] - 1 / 3 == pytest.approx(0.1)


def test_without_a_step_it_is_uniform_fedavg_bit_for_bit(federation):
    still = toy_spec("ga", overrides={"ga": {"ga_step": 0.0}})
    fedavg = run_rounds(federation(toy_spec("fedavg", training=UNIFORM)))
    ours = federation(still)
    assert equal(run_rounds(ours), fedavg)
    assert set(ours.server.traffic.counts) == {"up/weights", "down/weights"}
    assert not equal(run_rounds(federation(toy_spec("ga"))), fedavg)


def test_the_first_round_is_uniform_fedavg_and_prepares_the_second(federation):
    ours, plain = federation(toy_spec("ga")), federation(toy_spec("fedavg", training=UNIFORM))
    assert equal(run_rounds(ours, 1), run_rounds(plain, 1))
    weights = ours.server.memory["ga"]
    assert sum(weights) == pytest.approx(1)
    assert len(set(weights)) == 3
    assert ours.method.weigh(ours.server, ours.clients) == pytest.approx(weights)


@pytest.mark.parametrize(("variant", "column"), [("paper", "loss"), ("code", "accuracy")])
def test_weights_come_from_the_risks_of_own_and_global_model(federation, variant, column):
    """Worked out again with plain tools from the uploaded and the averaged states."""
    ours = federation(toy_spec("ga", overrides={"ga": {"ga_variant": variant}}))
    method, server = ours.method, ours.server
    updates = []
    for client in ours.clients:
        update, _, _ = visit(method, server, client)
        update.weight = 1 / 3
        updates.append(update)
    method.aggregate(server, updates)
    model, risks = ours.clients[0].model, []
    for state in (*(u.state for u in updates), server.state):
        write(model.state_dict(), copy_of(state))
        model.eval()
        risks.append([getattr(score(model, c.val), column) for c in ours.clients])
    gaps = {k: risks[3][k] - risks[k][k] for k in range(3)}
    if column == "accuracy":
        gaps = {k: -gap for k, gap in gaps.items()}
    assert len(set(gaps.values())) > 1  # or there would be nothing to see
    method.conclude(server, ours.clients)
    step = 0.2 / 3 if variant == "paper" else 0.2 * (1 + 1 / 3) / 3
    expected = adjusted(THIRDS, gaps, step, centred=variant == "paper")
    assert server.memory["ga"] == pytest.approx(expected, abs=1e-6)


def test_it_shares_two_numbers_per_client_and_round_but_the_last(federation):
    ours = federation(toy_spec("ga"))
    run_rounds(ours)
    counts = ours.server.traffic.counts
    assert {key.split("/")[1] for key in counts} - {"weights"} == set(ours.method.info.shares)
    assert counts["up/risks"] == 2 * 3 * 2 * 8
    plain = federation(toy_spec())
    run_rounds(plain)
    weights = ("up/weights", "down/weights")
    assert {k: counts[k] for k in weights} == {k: plain.server.traffic.counts[k] for k in weights}


def test_six_clients_of_which_three_are_sampled(federation):
    ours = federation(toy_spec("ga", **SIX))
    before = [1 / 6] * 6
    size = sum(t.numel() * t.element_size() for t in ours.server.state.values())
    for round in rounds(ours.method, ours.server, ours.clients):
        chosen = [client.id for client in round.chosen]
        if round.number == 4:
            assert ours.server.memory["ga"] == before  # the last round adjusts nothing
            break
        after = ours.server.memory["ga"]
        assert sum(after) == pytest.approx(1)
        absent = [k for k in range(6) if k not in chosen]
        ratios = [after[k] / before[k] for k in absent]
        assert ratios == pytest.approx([ratios[0]] * 3)  # only the common normalisation
        assert any(after[k] / before[k] != pytest.approx(ratios[0]) for k in chosen)
        sampled = ours.method.weigh(ours.server, round.chosen)
        assert sum(sampled) == pytest.approx(1)
        total = sum(after[k] for k in chosen)
        assert sampled == pytest.approx([after[k] / total for k in chosen])
        before = after
    # In a partial round the global model goes down once more to be judged: 5 · 3 + 4 · 3 times.
    assert ours.server.traffic.counts["down/weights"] == (5 + 4) * 3 * size


def test_sampled_clients_that_all_have_weight_zero_count_equally(federation):
    ours = federation(toy_spec("ga", **SIX))
    ours.server.memory["ga"] = [0.0, 0.0, 0.0, 0.5, 0.25, 0.25]
    assert ours.method.weigh(ours.server, ours.clients[:3]) == THIRDS
    assert ours.method.weigh(ours.server, ours.clients[2:4]) == [0.0, 1.0]


def test_over_silobn_the_global_model_is_judged_with_the_averaged_layers(federation):
    ours = federation(toy_spec("ga+silobn"))
    run_rounds(ours, 1)
    client, server = ours.clients[0], ours.server
    kept = batchnorm_keys(server.model).statistics | batchnorm_keys(server.model).counters
    assert set(client.memory["kept"]) == kept
    ours.method._load_global(server, client)
    assert equal(client.state, server.state)
    local = make_method("ga+silobn", {"ga_bn": "local"})
    local._load_global(server, client)
    assert all(torch.equal(client.state[k], client.memory["kept"][k]) for k in kept)
    assert all(torch.equal(client.state[k], server.state[k]) for k in server.state.keys() - kept)


@pytest.mark.parametrize("base", ["silobn", "fedprox"])
def test_it_wraps_a_base(federation, base):
    """The first round is the base's, uniform; from the second on the weights are GA's."""
    ours, plain = federation(toy_spec(f"ga+{base}")), federation(toy_spec(base, training=UNIFORM))
    assert equal(run_rounds(ours, 1), run_rounds(plain, 1))
    ours, plain = federation(toy_spec(f"ga+{base}")), federation(toy_spec(base, training=UNIFORM))
    assert not equal(run_rounds(ours), run_rounds(plain))
    assert sum(ours.server.memory["ga"]) == pytest.approx(1)
    assert compose(f"ga+{base}").info.shares == ("risks",)


def test_the_layers_sent_to_be_judged_over_silobn_are_counted(federation):
    ours, plain = federation(toy_spec("ga+silobn")), federation(toy_spec("silobn"))
    run_rounds(ours)
    run_rounds(plain)
    keys = batchnorm_keys(ours.server.model)
    layers = sum(
        ours.server.state[k].numel() * ours.server.state[k].element_size()
        for k in keys.statistics | keys.counters
    )
    extra = ours.server.traffic.counts["down/weights"] - plain.server.traffic.counts["down/weights"]
    assert extra == 2 * 3 * layers


def test_a_wrong_variant_is_named():
    with pytest.raises(UserError, match=r"ga.ga_variant=mine is not one of \{paper, code\}"):
        make_method("ga", {"ga_variant": "mine"})
