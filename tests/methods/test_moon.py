"""MOON: the contrastive loss, the frozen models, the previous model across rounds."""

import math

import pytest
import torch
import torch.nn.functional as F

from benchmark.federation import rounds, visit
from benchmark.method import Method, make_method
from benchmark.state import batchnorm_keys, copy_of
from methods.moon import contrast
from tests.conftest import TRAINING, toy_spec
from tests.test_federation import equal, run_rounds


def moon(federation, mu, **changes):
    return federation(toy_spec("moon", overrides={"moon": {"moon_mu": mu}}, **changes))


def test_the_loss_oracles():
    z, other = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    assert contrast(z, z, z, 0.5).item() == pytest.approx(0.693147, abs=1e-6)
    assert contrast(z, z, other, 0.5).item() == pytest.approx(0.126928, abs=1e-6)
    assert contrast(z, other, z, 0.5).item() == pytest.approx(math.log(1 + math.exp(2)), abs=1e-6)


def test_it_is_the_papers_two_way_cross_entropy():
    torch.manual_seed(0)
    z, z_global, z_previous = torch.randn(3, 7, 16)
    cosines = [F.cosine_similarity(z, other) for other in (z_global, z_previous)]
    wanted = F.cross_entropy(torch.stack(cosines, 1) / 0.3, torch.zeros(7, dtype=torch.long))
    assert contrast(z, z_global, z_previous, 0.3).item() == pytest.approx(wanted.item(), abs=1e-6)


def test_the_projection_is_two_layers_before_the_classifier(federation):
    model = moon(federation, 1.0).server.model
    head = model.taps["features"][0]
    assert [tuple(layer.weight.shape) for layer in (head[0], head[2])] == [(256, 256), (256, 256)]
    assert model.classifier.in_features == 256
    narrow = make_method("moon", {"moon_size": 10})
    from benchmark.backbones.base import make_backbone

    built = narrow.build(lambda: make_backbone("cnn_tiny_bn", 4, "none"))
    assert built(torch.zeros(2, 3, 32, 32)).shape == (2, 4)
    assert built.features(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_without_weight_it_is_fedavg_on_the_same_network(federation):
    plain = moon(federation, 0.0)
    plain.method = Method()
    fedavg = run_rounds(plain)
    assert equal(run_rounds(moon(federation, 0.0)), fedavg)
    assert not equal(run_rounds(moon(federation, 1.0)), fedavg)


def test_the_first_visit_has_no_contrast(federation):
    plain = moon(federation, 0.0)
    assert equal(run_rounds(moon(federation, 5.0), 1), run_rounds(plain, 1))


def test_the_previous_model_is_the_uploaded_one(federation):
    training = TRAINING.changed({"local_steps": 6, "validate_every": 2, "lr": 0.2})
    ours = moon(federation, 1.0, training=training)
    for client in ours.clients:
        update, _, _ = visit(ours.method, ours.server, client)
        assert equal(client.memory["moon_previous"], update.state)
        assert "moon" not in client.scratch


def test_a_client_that_is_not_sampled_keeps_its_previous_model(federation):
    training = TRAINING.changed({"clients_per_round": 1, "rounds": 5})
    ours = moon(federation, 1.0, training=training)
    seen = {}
    for round in rounds(ours.method, ours.server, ours.clients):
        for client in ours.clients:
            if client not in round.chosen and client.id in seen:
                assert equal(client.memory["moon_previous"], seen[client.id])
            if "moon_previous" in client.memory:
                seen[client.id] = copy_of(client.memory["moon_previous"])
    assert len(seen) > 1


def after_one_round(federation, expression="moon", **changes):
    """A client of round 1 that has just received the global model."""
    ours = federation(toy_spec(expression, **changes))
    run_rounds(ours, 1)
    client = ours.clients[0]
    client.round = ours.server.round = 1
    ours.method.receive(ours.server, client)
    client.model.train()
    return ours, client


def test_frozen_models_are_what_was_received_and_sent_and_never_change(federation):
    ours, client = after_one_round(federation)
    received, previous = client.scratch["moon"]
    assert equal(received.state_dict(), ours.server.state)
    assert equal(previous.state_dict(), client.memory["moon_previous"])
    before = [copy_of(model.state_dict()) for model in (received, previous)]
    client.lr = 0.1
    client.optimizer = ours.method.optimizer(client)
    for batch in ours.method.batches(client):
        ours.method.step(client, batch)
    assert equal(received.state_dict(), before[0])
    assert equal(previous.state_dict(), before[1])
    assert not equal(client.state, before[0])
    assert not any(weight.requires_grad for weight in received.parameters())


def test_the_term_reaches_features_and_projection_but_not_the_classifier(federation):
    ours, client = after_one_round(federation)
    batch = next(ours.method.batches(client))
    with_term = ours.method.loss(client, batch)
    z = client.model.features(batch.images)
    frozen = [model.features(batch.images) for model in client.scratch["moon"]]
    term = contrast(z, *frozen, 0.5)
    plain = F.cross_entropy(client.model(batch.images), batch.labels)
    assert with_term.item() == pytest.approx((plain + term).item(), rel=1e-5)
    client.model.zero_grad()
    term.backward()
    assert all(weight.grad is None for weight in client.model.classifier.parameters())
    assert client.model.block1[0].weight.grad.abs().sum() > 0
    assert client.model.taps["features"][0][0].weight.grad.abs().sum() > 0


def test_the_loss_takes_one_pass_of_the_trained_model(federation):
    ours, client = after_one_round(federation)
    before = client.state["block1.1.num_batches_tracked"].item()
    ours.method.loss(client, next(ours.method.batches(client)))
    assert client.state["block1.1.num_batches_tracked"].item() == before + 1


def test_training_draws_features_to_the_global_model_and_away_from_the_previous(federation):
    """The same visit with and without the term, from the same two models."""
    losses = []
    for mu in (0.0, 5.0):
        ours, client = after_one_round(federation, training=TRAINING.changed({"local_steps": 8}))
        frozen = client.scratch["moon"]
        visit(make_method("moon", {"moon_mu": mu}), ours.server, client)
        images = next(client.val.evaluation_batches()).images
        with torch.no_grad():
            features = [m.features(images) for m in (client.model.eval(), *frozen)]
        losses.append(contrast(*features, 0.5).item())
    assert losses[1] < losses[0] - 0.1


def test_with_fedbn_the_received_model_has_the_clients_own_layers(federation):
    ours, client = after_one_round(federation, "moon+fedbn")
    received, _ = client.scratch["moon"]
    keys = batchnorm_keys(client.model).all
    for key, value in received.state_dict().items():
        source = client.memory["kept"] if key in keys else ours.server.state
        assert torch.equal(value, source[key])


def test_it_composes_with_another_loss(federation):
    both = run_rounds(federation(toy_spec("moon+fedprox")))
    assert not equal(both, run_rounds(federation(toy_spec("moon"))))
    assert equal(both, run_rounds(federation(toy_spec("moon+fedprox"))))


def test_nothing_leaves_but_weights(federation):
    ours = moon(federation, 1.0)
    run_rounds(ours)
    assert set(ours.server.traffic.counts) == {"up/weights", "down/weights"}
