"""The guiding regulariser: one pass, two heads, one of them frozen."""

import pytest
import torch
import torch.nn.functional as F

from benchmark.federation import visit
from benchmark.method import Method, compose, make_method
from benchmark.state import copy_of
from methods.ops.features import classified
from tests.conftest import TRAINING, toy_spec
from tests.test_federation import equal, run_rounds

BASES = ("fedavg", "mixstyle", "ibn", "dson", "elcfs", "ccst", "rsc", "fedprox", "silobn")


def guided(federation, base: str | None = None, strength: float = 0.5, **changes):
    expression = f"guide+{base}" if base else "guide"
    overrides = {"guide": {"guide_lambda": strength}}
    return federation(toy_spec(expression, overrides=overrides, **changes))


def received(ours):
    """A client in training that has received the global model, and a batch as its loss sees it."""
    ours.method.prepare(ours.server, ours.clients)
    client = ours.clients[0]
    ours.method.receive(ours.server, client)
    client.model.train()
    return client, ours.method.augment(client, next(ours.method.batches(client)))


def test_the_first_loss_by_hand(monkeypatch, federation):
    """CE = 1.2, λ = 0.5, h = h_G: 1.8."""
    ours = guided(federation)
    client, batch = received(ours)
    monkeypatch.setattr(F, "cross_entropy", lambda logits, labels: logits.sum() * 0 + 1.2)
    assert ours.method.loss(client, batch).item() == pytest.approx(1.8, abs=1e-6)


@pytest.mark.parametrize("strength", [0.25, 1.0])
def test_in_the_first_step_features_are_taught_more_and_the_head_is_not(federation, strength):
    ours = guided(federation, strength=strength)
    client, batch = received(ours)
    model = client.model
    parameters = [model.block1[0].weight, model.block4[1].weight, *model.classifier.parameters()]
    plain = F.cross_entropy(model(batch.images), batch.labels)
    loss = ours.method.loss(client, batch)
    assert loss.item() == pytest.approx((1 + strength) * plain.item(), rel=1e-6)
    one, other = (torch.autograd.grad(value, parameters) for value in (plain, loss))
    for k, factor in enumerate((1 + strength, 1 + strength, 1, 1)):
        assert torch.allclose(other[k], factor * one[k], rtol=1e-4, atol=1e-5)


def test_later_the_frozen_head_is_the_one_received(federation):
    ours = guided(federation)
    client, _ = received(ours)
    received_head = copy_of(ours.server.state, ["head.weight", "head.bias"])
    client.lr = 0.05
    client.optimizer = ours.method.optimizer(client)
    for batch in ours.method.batches(client):
        ours.method.step(client, batch)
    assert not torch.equal(client.state["head.weight"], received_head["head.weight"])
    loss = ours.method.loss(client, batch)
    features = client.model.features(batch.images)
    expected = F.cross_entropy(client.model.classifier(features), batch.labels)
    frozen = F.linear(features, received_head["head.weight"], received_head["head.bias"])
    expected = expected + 0.5 * F.cross_entropy(frozen, batch.labels)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("base", BASES)
def test_without_weight_it_is_the_base_bit_for_bit(federation, base):
    plain = run_rounds(federation(toy_spec(base)))
    assert equal(run_rounds(guided(federation, base, 0.0)), plain)
    assert not equal(run_rounds(guided(federation, base)), plain)


@pytest.mark.parametrize("base", [base for base in BASES if base != "elcfs"])
def test_it_takes_no_pass_of_its_own(federation, base):
    counts = []
    for strength in (0.0, 0.5):
        ours = guided(federation, base, strength)
        client, batch = received(ours)
        calls = []
        client.model.block1[0].register_forward_hook(lambda *_, calls=calls: calls.append(1))
        ours.method.loss(client, batch)
        counts.append(len(calls))
    assert counts == [1, 1]


def test_an_episode_has_two_passes_and_the_first_is_guided(federation):
    ours = guided(federation, "elcfs")
    client, batch = received(ours)
    calls = []
    client.model.block1[0].register_forward_hook(lambda *_: calls.append(1))
    loss = ours.method.loss(client, batch)
    assert len(calls) == 2
    without = make_method("elcfs", {}).loss(client, batch)
    plain = F.cross_entropy(client.model(batch.images), batch.labels)
    assert (loss - without).item() == pytest.approx(0.5 * plain.item(), rel=1e-4)


def test_features_are_those_of_the_pass_with_their_gradient(federation):
    """RSC classifies detached features first; those must not be taken."""
    ours = guided(federation, "rsc")
    client, batch = received(ours)
    _, features, _ = classified(make_method("rsc", {}).loss, client, batch)
    gradient = torch.autograd.grad(features.sum(), client.model.block1[0].weight)[0]
    assert gradient.abs().sum() > 0


def test_where_a_loss_classifies_something_else_the_batch_gets_a_quiet_pass(federation):
    ours = guided(federation)
    client, batch = received(ours)

    def other(client, batch):
        return client.model(torch.cat((batch.images, batch.images))).sum()

    before = client.state["block1.1.num_batches_tracked"].item()
    _, features, _ = classified(other, client, batch)
    assert client.state["block1.1.num_batches_tracked"].item() == before + 1
    assert torch.allclose(features, client.model.features(batch.images), atol=1e-5)
    assert not client.model.classifier._forward_pre_hooks


def test_the_global_head_reads_guided_features_better(federation):
    """After a visit, from the same start on the same images."""
    losses = []
    training = TRAINING.changed({"local_steps": 10, "lr": 0.01})
    for strength in (0.0, 1.0):
        ours = guided(federation, strength=strength, training=training)
        client = ours.clients[0]
        head = [ours.server.state[key].clone() for key in ("head.weight", "head.bias")]
        visit(ours.method, ours.server, client)
        batch = next(client.train.evaluation_batches())
        with torch.no_grad():
            features = client.model.eval().features(batch.images)
            losses.append(F.cross_entropy(F.linear(features, *head), batch.labels).item())
    assert losses[1] < 0.9 * losses[0]


def test_nothing_leaves_but_weights(federation):
    ours = guided(federation)
    run_rounds(ours)
    assert set(ours.server.traffic.counts) == {"up/weights", "down/weights"}
    assert compose("guide").info.shares == ()
    assert type(ours.method).step is Method.step
