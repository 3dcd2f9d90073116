"""FedAvg, FedProx, FedBN, SiloBN: the spec's oracles and exact reductions."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch

from benchmark.errors import UserError
from benchmark.federation import rounds, visit
from benchmark.method import Method, compose, make_method, register
from benchmark.protocol import plan
from benchmark.state import batchnorm_keys, copy_of, parameter_names
from tests.conftest import TRAINING, toy_spec
from tests.test_federation import equal, run_rounds


def test_fedprox_without_a_pull_is_fedavg_bit_for_bit(federation):
    fedavg = run_rounds(federation(toy_spec("fedavg")))
    without = toy_spec("fedprox", overrides={"fedprox": {"mu": 0.0}})
    assert equal(run_rounds(federation(without)), fedavg)
    assert not equal(run_rounds(federation(toy_spec("fedprox"))), fedavg)


def test_fedprox_scalar_oracle(monkeypatch):
    """x=1, w=2, cross-entropy gradient 0.5, μ=0.1, η=0.1 → 1.94."""
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    client = SimpleNamespace(
        model=SimpleNamespace(parameters=lambda: [weight]),
        scratch={"anchor": [torch.tensor([1.0])]},
        optimizer=torch.optim.SGD([weight], lr=0.1),
    )
    client.descend = client.optimizer.step
    monkeypatch.setattr(Method, "loss", lambda self, client, batch: 0.5 * weight.sum())
    make_method("fedprox", {"mu": 0.1}).step(client, None)
    assert weight.item() == pytest.approx(1.94, abs=1e-7)


def test_the_first_step_is_the_same_for_every_mu(federation):
    one_step = {"training": TRAINING.changed({"local_steps": 1, "rounds": 1})}
    states = [
        run_rounds(federation(toy_spec("fedprox", overrides={"fedprox": {"mu": mu}}, **one_step)))
        for mu in (0.0, 0.1, 10.0)
    ]
    assert equal(states[0], states[1])
    assert equal(states[0], states[2])


@pytest.mark.parametrize("method", ["fedbn", "silobn"])
def test_on_a_net_without_batchnorm_nothing_is_kept_and_it_is_fedavg(federation, method):
    bare = dataclasses.replace(toy_spec(method), backbone="cnn_digitsdg")
    fedavg = dataclasses.replace(bare, method="fedavg", hparams={})
    assert equal(run_rounds(federation(bare)), run_rounds(federation(fedavg)))


def test_silobn_has_fedavgs_parameters_and_its_own_statistics(federation):
    silobn, fedavg = federation(toy_spec("silobn")), federation(toy_spec("fedavg"))
    one, other = run_rounds(silobn), run_rounds(fedavg)
    names = parameter_names(silobn.server.model)
    assert all(torch.equal(one[name], other[name]) for name in names)
    statistics = batchnorm_keys(silobn.server.model).statistics
    assert not all(torch.equal(one[key], other[key]) for key in statistics)


def test_silobn_with_momentum_one_is_fedavg_buffers_included(federation):
    states = []
    for method in ("silobn", "fedavg"):
        ours = federation(toy_spec(method))
        for model in (ours.server.model, ours.clients[0].model):
            for module in model.modules():
                if isinstance(module, torch.nn.BatchNorm2d):
                    module.momentum = 1.0
        counters = batchnorm_keys(ours.server.model).counters
        state = run_rounds(ours)
        states.append({key: value for key, value in state.items() if key not in counters})
    assert equal(*states)


@pytest.mark.parametrize(
    ("method", "kept"), [("fedbn", "all"), ("silobn", "statistics"), ("fedavg", None)]
)
def test_what_a_client_keeps_and_what_it_loads(federation, method, kept):
    ours = federation(toy_spec(method))
    loop = rounds(ours.method, ours.server, ours.clients)
    next(loop)
    client = ours.clients[0]
    client.round = ours.server.round = 1
    own = copy_of(client.memory.get("kept", {}))
    ours.method.receive(ours.server, client)
    keys = batchnorm_keys(client.model)
    expected = getattr(keys, kept) if kept else set()
    if kept == "statistics":
        expected = expected | keys.counters
    assert set(own) == expected
    for key, value in client.state.items():
        assert torch.equal(value, own[key] if key in expected else ours.server.state[key])
    differing = [key for key in own if not torch.equal(own[key], ours.server.state[key])]
    assert bool(differing) == bool(kept)


def test_kept_entries_are_the_clients_own_upload_and_the_server_averages_them(federation):
    ours = federation(toy_spec("fedbn"))
    ours.server.round = 0
    updates = [visit(ours.method, ours.server, client)[0] for client in ours.clients]
    for update, client in zip(updates, ours.clients, strict=True):
        for key, value in client.memory["kept"].items():
            assert torch.equal(value, update.state[key])
    for update in updates:
        update.weight = 1 / 3
    ours.method.aggregate(ours.server, updates)
    for key in batchnorm_keys(ours.server.model).statistics | {"block1.1.weight"}:
        mean = sum(update.state[key] for update in updates) / 3
        assert torch.allclose(ours.server.state[key], mean, atol=1e-6)


def test_a_client_that_is_not_sampled_keeps_its_layers(federation):
    training = TRAINING.changed({"clients_per_round": 1, "rounds": 6})
    ours = federation(toy_spec("fedbn", training=training))
    memories = {}
    for round in rounds(ours.method, ours.server, ours.clients):
        for client in ours.clients:
            before = memories.get(client.id)
            if client not in round.chosen and before is not None:
                assert equal(client.memory["kept"], before)
            if "kept" in client.memory:
                memories[client.id] = copy_of(client.memory["kept"])
    assert len(memories) > 1


def test_compositions_join_hooks_and_labels(federation):
    cls = compose("fedprox+silobn")
    assert cls.name == "fedprox+silobn"
    assert cls.info.label == "FedProx + SiloBN"
    assert cls.info.needs_batchnorm
    both = federation(toy_spec("fedprox+silobn"))
    run_rounds(both)
    assert "kept" in both.clients[0].memory
    alone = run_rounds(federation(toy_spec("fedprox")))
    names = parameter_names(both.server.model)
    assert all(torch.equal(both.server.state[name], alone[name]) for name in names)


def test_compositions_that_cannot_work_say_why():
    with pytest.raises(UserError, match="names 'fedavg' twice"):
        compose("fedavg+fedavg")
    with pytest.raises(UserError, match="did you mean 'fedprox'"):
        compose("fedprx+fedbn")


def test_a_hook_that_would_silence_another_is_named():
    from benchmark.method import methods

    if "test_deaf" not in methods:
        meta = {"label": "x", "paper": "x", "venue": "x", "category": "federated"}

        @register("test_deaf", **meta)
        class Deaf(Method):
            def loss(self, client, batch):
                return client.model(batch.images).sum()

    try:
        with pytest.raises(UserError, match="the loss of test_deaf would silence that of fedprox"):
            compose("test_deaf+fedprox")
        assert compose("fedprox+test_deaf")
    finally:
        del methods._entries["test_deaf"]
        compose.cache_clear()


def test_a_method_that_needs_batchnorm_says_so_on_a_net_without():
    from benchmark.protocol import expand_methods
    from tests.conftest import toy_protocol

    bare = toy_protocol(backbone="cnn_digitsdg")
    message = "fedbn needs batch normalisation; cnn_digitsdg has none; choose cnn_small_bn"
    with pytest.raises(UserError, match=message):
        expand_methods(["fedbn"], bare)
    chosen, left_out = expand_methods(["fed*"], bare)
    assert "fedavg" in chosen
    assert "fedbn" not in chosen
    assert message in left_out
    assert plan(bare, ["fed*"]).left_out == left_out


def test_helpers_of_one_name_are_refused_not_mixed_up():
    from benchmark.method import methods

    meta = {"label": "x", "paper": "x", "venue": "x", "category": "federated"}

    @register("test_one", **meta)
    class One(Method):
        def _bank(self):
            return 1

    @register("test_other", **meta)
    class Other(Method):
        def _bank(self):
            return 2

    @register("test_heir", **meta)
    class Heir(One):
        def _bank(self):
            return 3

    try:
        with pytest.raises(UserError, match="test_one and test_other both have a helper '_bank'"):
            compose("test_one+test_other")
        assert compose("test_heir+fedprox")
    finally:
        for name in ("test_one", "test_other", "test_heir"):
            del methods._entries[name]
        compose.cache_clear()
