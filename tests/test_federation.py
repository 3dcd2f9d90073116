"""The loop: participation, weights, batches, schedules, checkpoint selection, optimiser state."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmark.errors import Diverged
from benchmark.evaluation import score
from benchmark.federation import rounds, sample, visit
from benchmark.method import Method
from benchmark.seeds import seed_for
from benchmark.state import copy_of
from datasets.partition import Shard
from datasets.samples import batch_order
from tests.conftest import TRAINING, rates_by_round, toy_spec


def equal(one, other) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def run_rounds(federation, count=None):
    for round in rounds(federation.method, federation.server, federation.clients):
        if round.number + 1 == count:
            break
    return federation.server.state


def test_one_client_with_one_step_per_round_is_plain_sgd_on_pooled_data(federation):
    spec = toy_spec(
        "erm_pool",
        training=TRAINING.changed({"local_steps": 1, "rounds": 5, "momentum": 0.0}),
    )
    spec = spec.__class__(**{**vars_of(spec), "hparams": {"balanced": False, "per_source": False}})
    ours = federation(spec)
    client = ours.clients[0]
    model = copy.deepcopy(ours.server.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model.train()
    for number in range(5):
        rng = np.random.default_rng(seed_for(0, "batches", number, 0))
        rows = next(batch_order(len(client.train), 8, rng, 1, None))
        batch = client.train.training_batch(rows, torch.Generator())
        optimizer.zero_grad()
        F.cross_entropy(model(batch.images), batch.labels).backward()
        optimizer.step()
    assert equal(run_rounds(ours), model.state_dict())


def vars_of(spec):
    return {name: getattr(spec, name) for name in spec.__dataclass_fields__}


def test_pooled_work_is_the_protocols_steps_once_per_source(federation):
    assert next(iter(rounds(*parts(federation(toy_spec("erm_pool")))))).steps == 6
    fedavg = next(iter(rounds(*parts(federation(toy_spec("fedavg"))))))
    assert fedavg.steps == 6


def parts(federation):
    return federation.method, federation.server, federation.clients


def test_balanced_batches_hold_every_domain_alike(federation):
    spec = toy_spec("erm_pool", overrides={"erm_pool": {"balanced": True}})
    ours = federation(spec)
    batches = list(ours.method.batches(ours.clients[0]))
    assert len(batches) == 6
    for batch in batches:
        assert torch.bincount(batch.domains).tolist() == [2, 2, 2]


def test_sampling_is_seeded_ordered_and_without_repeats(federation):
    training = TRAINING.changed({"clients_per_round": 2})
    ours = federation(toy_spec(partition="single_domain_k:clients=2", training=training))
    picks = []
    for number in range(30):
        ours.server.round = number
        chosen = [client.id for client in sample(ours.clients, ours.server)]
        assert chosen == sorted(set(chosen))
        assert len(chosen) == 2
        assert chosen == [client.id for client in sample(ours.clients, ours.server)]
        picks += chosen
    assert set(picks) == set(range(6))


def test_weights_are_normalised_over_the_rounds_clients(federation):
    ours = federation(toy_spec())
    two = ours.clients[:2]
    assert sum(ours.method.weigh(ours.server, two)) == 1
    ours.clients[0].train.shard = Shard.of(0, np.arange(13))
    assert ours.method.weigh(ours.server, two) == [13 / 52, 39 / 52]
    uniform = federation(toy_spec(training=TRAINING.changed({"weights": "uniform"})))
    uniform.clients[0].train.shard = Shard.of(0, np.arange(13))
    assert uniform.method.weigh(uniform.server, uniform.clients) == [1 / 3] * 3


@pytest.mark.parametrize(
    ("count", "batch", "steps", "epochs", "sizes"),
    [
        (10, 4, 5, None, [4] * 5),
        (10, 4, None, 2, [4] * 4),
        (3, 4, 3, None, [3] * 3),
        (3, 4, None, 2, [3] * 2),
    ],
)
def test_batch_order(count, batch, steps, epochs, sizes):
    order = list(batch_order(count, batch, np.random.default_rng(0), steps, epochs))
    assert [len(rows) for rows in order] == sizes
    first_pass = np.concatenate(order[: max(1, count // batch)])
    assert len(set(first_pass)) == len(first_pass)


def test_a_methods_extra_draws_never_change_which_images_it_sees(federation):
    ours = federation(toy_spec())
    client = ours.clients[0]
    quiet = [batch.images.clone() for batch in ours.method.batches(client)]
    noisy = []
    for batch in ours.method.batches(client):
        torch.rand(100)
        noisy.append(batch.images.clone())
    assert all(torch.equal(a, b) for a, b in zip(quiet, noisy, strict=True))


def test_the_best_validated_local_state_is_uploaded(federation):
    training = TRAINING.changed({"local_steps": 6, "validate_every": 2, "rounds": 1, "lr": 0.2})
    ours = federation(toy_spec(training=training))
    client = ours.clients[0]
    seen = []

    class Watching(Method):
        def local_predictor(self, client):
            seen.append((score(client.model, client.val).accuracy, copy_of(client.state)))
            return client.model

    update, _, steps = visit(Watching(), ours.server, client)
    assert steps == 6
    assert len(seen) == 3
    best = max(accuracy for accuracy, _ in seen)
    index = max(k for k, (accuracy, _) in enumerate(seen) if accuracy == best)
    assert equal(update.state, seen[index][1])
    assert update.steps == 2 * (index + 1)


def test_kept_optimiser_state_survives_a_round_and_fresh_does_not(federation):
    fresh, kept = (
        federation(toy_spec(training=TRAINING.changed({"keep_optimizer": flag})))
        for flag in (False, True)
    )
    assert equal(run_rounds(fresh, 1), run_rounds(kept, 1))
    assert "optimizer" not in fresh.clients[0].memory
    assert kept.clients[0].memory["optimizer"]["state"]
    fresh, kept = (
        federation(toy_spec(training=TRAINING.changed({"keep_optimizer": flag})))
        for flag in (False, True)
    )
    assert not equal(run_rounds(fresh), run_rounds(kept))


def test_the_schedule_reaches_a_kept_optimiser(federation):
    training = TRAINING.changed({"keep_optimizer": True, "schedule": "step", "step_rounds": 1})
    ours = federation(toy_spec(training=training))
    rates = [rate for (rate,) in rates_by_round(ours)]
    assert rates == pytest.approx([0.05, 0.005, 0.0005])


def test_clipping_bounds_the_step(federation):
    training = TRAINING.changed({"clip": 1e-3, "local_steps": 1, "momentum": 0, "lr": 1.0})
    ours = federation(toy_spec(training=training))
    before = copy_of(ours.server.state)
    update, _, _ = visit(ours.method, ours.server, ours.clients[0])
    names = [name for name, _ in ours.server.model.named_parameters()]
    moved = sum((update.state[n] - before[n]).square().sum() for n in names).sqrt()
    assert moved == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_every_optimiser_trains(federation, optimizer):
    training = TRAINING.changed({"optimizer": optimizer, "lr": 0.01, "momentum": 0})
    ours = federation(toy_spec(training=training))
    before = copy_of(ours.server.state)
    assert not equal(run_rounds(ours, 1), before)


def test_a_loss_that_is_no_number_stops_the_run(federation):
    ours = federation(toy_spec(training=TRAINING.changed({"lr": 1e30, "local_steps": 5})))
    with pytest.raises(Diverged, match="training loss of client red is nan in round 0"):
        run_rounds(ours)


def test_traffic_is_the_state_down_and_up(federation):
    ours = federation(toy_spec())
    run_rounds(ours, 1)
    size = sum(t.numel() * t.element_size() for t in ours.server.state.values())
    assert dict(ours.server.traffic.counts) == {"down/weights": 3 * size, "up/weights": 3 * size}


def test_the_target_domain_is_out_of_reach_of_every_client(federation):
    ours = federation(toy_spec(target="green"))
    for client in ours.clients:
        for samples in (client.train, client.val):
            assert samples._domains[1] is None
            assert 1 not in samples.shard.domains
