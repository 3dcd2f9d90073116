"""SWA on the server: when it averages, at which rate clients train, and who predicts."""

import pytest
import torch

from benchmark.federation import rounds
from benchmark.method import make_method
from benchmark.spec import Training
from benchmark.state import batchnorm_keys, copy_of
from tests.conftest import TRAINING, rates_by_round, toy_spec
from tests.methods.scalar import linear, scalar_federation
from tests.test_federation import equal, run_rounds


def setting(count: int) -> Training:
    return Training(rounds=count, local_steps=1)


@pytest.mark.parametrize(
    ("count", "start", "cycle", "averages"),
    [
        (1, 0, 1, [0]),
        (2, 1, 1, [1]),
        (3, 2, 1, [2]),
        (10, 7, 1, [7, 8, 9]),
        (16, 12, 2, [13, 15]),
        (40, 30, 5, [34, 39]),
        (100, 75, 10, [84, 94]),
        (200, 150, 10, [159, 169, 179, 189, 199]),
    ],
)
def test_it_starts_at_three_quarters_and_cycles_fit_the_rounds_left(count, start, cycle, averages):
    method = make_method("swa", {})
    assert method._swa_schedule(setting(count)) == (start, cycle)
    ends = [r for r in range(start, count) if (r - start + 1) % cycle == 0]
    assert ends == averages


def test_a_start_after_the_end_still_averages_the_last_round():
    assert make_method("swa", {"swa_start": 1.0})._swa_schedule(setting(8)) == (7, 1)


def test_the_mean_of_the_models_at_the_ends_of_the_cycles(monkeypatch):
    """Gradient 1, rate 0.1 constant, so x is −0.1 per round: rounds 13 and 15 end cycles of two."""
    hparams = {"swa_lr": 0.1}
    parts = scalar_federation(monkeypatch, "swa", [1.0], linear, hparams=hparams, rounds=16)
    values = [parts[1].model.value.item() for _ in rounds(*parts)]
    assert values[13] == pytest.approx(-1.4, abs=1e-6)
    memory = parts[1].memory
    assert memory["swa_count"] == 2
    assert memory["swa"]["weight"].item() == pytest.approx((values[13] + values[15]) / 2, abs=1e-6)


def test_the_clients_rate_falls_within_a_cycle_and_rises_again():
    method = make_method("swa", {"swa_cycle": 4, "swa_lr": 0.02})
    training = Training(rounds=32, local_steps=1, lr=0.1)
    client = type("Client", (), {"training": training, "round": 0})()
    rates = []
    for client.round in range(32):
        rates.append(method.learning_rate(client))
    assert rates[:24] == [0.1] * 24
    assert rates[24:] == pytest.approx([0.08, 0.06, 0.04, 0.02] * 2)


def test_the_rate_reaches_the_optimiser(federation):
    training = TRAINING.changed({"rounds": 8, "local_steps": 1})
    spec = toy_spec("swa", training=training, overrides={"swa": {"swa_start": 0.5}})
    ours = federation(spec)
    low = 0.05 + 0.5 * (1e-4 - 0.05)
    rates = [rate for (rate,) in rates_by_round(ours)]
    assert rates == pytest.approx([0.05] * 4 + [low, 1e-4] * 2)


def test_at_a_constant_rate_training_is_fedavgs_bit_for_bit(federation):
    training = TRAINING.changed({"rounds": 8, "local_steps": 1})
    spec = toy_spec("swa", training=training, overrides={"swa": {"swa_lr": TRAINING.lr}})
    fedavg = run_rounds(federation(toy_spec("fedavg", training=training)))
    assert equal(run_rounds(federation(spec)), fedavg)


def test_the_average_predicts_first_and_covers_statistics(federation):
    ours = federation(toy_spec("swa", overrides={"swa": {"swa_start": 0.0}}))
    states = []
    for round in rounds(ours.method, ours.server, ours.clients):
        states.append(copy_of(ours.server.state))
        predictors = ours.method.predictors(ours.server, ours.clients)
        assert list(predictors) == ["swa", "global"]
        assert predictors["global"] is ours.server.model
        if round.number == 0:
            assert equal(predictors["swa"].state_dict(), states[0])
    averaged = predictors["swa"].state_dict()
    counters = batchnorm_keys(ours.server.model).counters
    for key, value in averaged.items():
        if key in counters:
            assert torch.equal(value, states[-1][key])
        else:
            mean = sum(state[key] for state in states) / 3
            assert torch.allclose(value, mean, atol=1e-6)
    assert not equal(averaged, ours.server.state)
    assert equal(ours.server.state, states[-1])


def test_before_the_first_average_the_global_model_predicts(federation):
    ours = federation(toy_spec("swa"))
    run_rounds(ours, 1)
    predictors = ours.method.predictors(ours.server, ours.clients)
    assert predictors["swa"] is predictors["global"] is ours.server.model


def test_it_wraps_any_base(federation):
    one_cycle = {"swa": {"swa_start": 0.0, "swa_cycle": 1}}
    ours = federation(toy_spec("swa+fedsam", overrides=one_cycle))
    state = run_rounds(ours)
    assert equal(state, run_rounds(federation(toy_spec("fedsam"))))
    assert ours.server.memory["swa_count"] == 3
    assert ours.method.info.label == "SWA + FedSAM"
    with_bn = federation(toy_spec("swa+fedbn", overrides=one_cycle))
    assert equal(run_rounds(with_bn), run_rounds(federation(toy_spec("fedbn"))))


def test_nothing_leaves_but_weights(federation):
    ours = federation(toy_spec("swa"))
    run_rounds(ours)
    assert set(ours.server.traffic.counts) == {"up/weights", "down/weights"}
