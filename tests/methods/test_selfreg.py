"""SelfReg: partners, the scaled sum with literal numbers, DomainBed's loop, the local layer."""

import pytest
import torch
import torch.nn.functional as F

import methods.selfreg
from benchmark.federation import visit
from benchmark.method import compose
from benchmark.state import copy_of
from datasets.samples import Batch
from methods.selfreg import combine, partners, perturbation
from tests.conftest import TRAINING, toy_spec
from tests.test_federation import equal, run_rounds


def settings(**given):
    return {"overrides": {"selfreg": given}}


def test_partners_are_of_the_same_class_and_drawn_anew():
    torch.manual_seed(0)
    labels = torch.randint(0, 4, (40,))
    first, second = partners(labels), partners(labels)
    for drawn in (first, second):
        assert torch.equal(labels[drawn], labels)
        assert torch.equal(drawn.sort()[0], torch.arange(40))
    assert not torch.equal(first, second)
    assert not torch.equal(first, torch.arange(40))


def test_every_partner_of_a_class_is_equally_likely():
    torch.manual_seed(0)
    labels = torch.tensor([1, 0, 1, 0, 1])
    draws = torch.stack([partners(labels) for _ in range(3000)])
    shares = torch.bincount(draws[:, 0], minlength=5) / 3000
    assert shares.tolist() == pytest.approx([1 / 3, 0, 1 / 3, 0, 1 / 3], abs=0.04)


def test_the_scaled_sum():
    """CE = .4, λ = .25, L_ind = 2, L_hdl = 1: .9; from CE = 1 on the scale is 1."""
    loss = torch.tensor(0.4)
    total = loss + combine(loss, torch.tensor(0.25), torch.tensor(2.0), torch.tensor(1.0))
    assert total.item() == pytest.approx(0.9)
    big = torch.tensor(3.0, requires_grad=True)
    scaled = combine(big, torch.tensor(1.0), torch.tensor(2.0), torch.tensor(50.0))
    assert scaled.item() == 2.0
    assert not scaled.requires_grad


@pytest.mark.parametrize(("size", "count"), [(512, 2_104_832), (256, 528_128), (2048, 12_601_344)])
def test_the_size_of_the_layer(size, count):
    with torch.device("meta"):
        assert sum(p.numel() for p in perturbation(size).parameters()) == count


def started(federation, **given):
    ours = federation(toy_spec("selfreg", **settings(**given)))
    client = ours.clients[0]
    ours.method.receive(ours.server, client)
    client.model.train()
    return ours.method, client


def test_in_a_batch_of_different_classes_the_logits_have_no_distance(federation):
    method, client = started(federation, selfreg_feature_weight=0.0)
    images, labels = torch.randn(4, 3, 32, 32), torch.arange(4)
    plain = F.cross_entropy(client.model(images), labels)
    loss = method.loss(client, Batch(images, labels, labels))
    assert loss.item() == pytest.approx(plain.item(), rel=1e-6)


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_it_agrees_with_domainbeds_loop(federation, monkeypatch, share):
    method, client = started(federation)
    images, labels = torch.randn(6, 3, 32, 32), torch.tensor([2, 0, 2, 0, 2, 1])
    drawn = [torch.tensor([2, 3, 4, 1, 0, 5]), torch.tensor([4, 1, 2, 3, 0, 5])]
    queue = list(drawn)
    monkeypatch.setattr(methods.selfreg, "partners", lambda labels: queue.pop(0))
    fixed = torch.tensor(share)
    monkeypatch.setattr(torch.distributions.Beta, "sample", lambda self: fixed)
    loss = method.loss(client, Batch(images, labels, labels))
    with torch.no_grad():
        features = client.model.features(images)
        logits, projected = client.model.classifier(features), client.scratch["selfreg"](features)
        other = [(logits[order], projected[order]) for order in drawn]
        mixed = [share * a + (1 - share) * b for a, b in zip(*other, strict=True)]
        individual = (logits - other[0][0]).square().mean()
        individual += 0.3 * (features - other[0][1]).square().mean()
        hybrid = (logits - mixed[0]).square().mean()
        hybrid += 0.3 * (features - mixed[1]).square().mean()
        plain = F.cross_entropy(logits, labels)
        scale = min(plain.item(), 1.0)
        expected = plain + scale * (share * individual + (1 - share) * hybrid)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_without_weight_it_is_fedavg_bit_for_bit(federation):
    fedavg = run_rounds(federation(toy_spec("fedavg")))
    ours = federation(toy_spec("selfreg", **settings(selfreg_weight=0.0)))
    assert equal(run_rounds(ours), fedavg)
    assert ours.clients[0].memory == {}
    assert not equal(run_rounds(federation(toy_spec("selfreg"))), fedavg)


@pytest.mark.parametrize("feature_weight", [0.0, 0.3])
def test_logits_of_a_class_come_closer(federation, feature_weight):
    """From the same start, SelfReg leaves less spread within a class than plain training."""
    spreads = []
    training = TRAINING.changed({"local_steps": 12, "rounds": 1, "lr": 0.01})
    for weight in (0.0, 10.0):
        given = settings(selfreg_weight=weight, selfreg_feature_weight=feature_weight)
        ours = federation(toy_spec("selfreg", training=training, **given))
        client = ours.clients[0]
        visit(ours.method, ours.server, client)
        with torch.no_grad():
            batch = next(client.train.evaluation_batches())
            logits = client.model(batch.images)
        spreads.append(sum(logits[batch.labels == k].var(0).sum() for k in range(4)).item())
    assert spreads[1] < 0.9 * spreads[0]


def test_the_layer_stays_with_its_client_and_is_trained(federation):
    ours = federation(toy_spec("selfreg"))
    run_rounds(ours)
    assert not any("perturbation" in key for key in ours.server.state)
    assert set(ours.server.traffic.counts) == {"down/weights", "up/weights"}
    one, other = (client.memory["selfreg"] for client in ours.clients[:2])
    assert not torch.equal(one["0.weight"], other["0.weight"])
    size = sum(t.numel() * t.element_size() for t in ours.server.state.values())
    assert ours.server.traffic.counts["up/weights"] == 9 * size


@pytest.mark.parametrize("trained", [True, False])
def test_domainbed_never_trains_the_layer_but_its_statistics_move(federation, trained):
    ours = federation(toy_spec("selfreg", **settings(selfreg_train_layer=trained)))
    client = ours.clients[0]
    states = []
    for number in range(2):
        client.round = ours.server.round = number
        client.scratch.clear()
        visit(ours.method, ours.server, client)
        states.append(copy_of(client.memory["selfreg"]))
    assert torch.equal(states[0]["0.weight"], states[1]["0.weight"]) != trained
    assert not torch.equal(states[0]["1.running_mean"], states[1]["1.running_mean"])


def test_a_shared_layer_is_part_of_the_weights(federation):
    ours = federation(toy_spec("selfreg", **settings(selfreg_share=True)))
    before = copy_of(ours.server.state)
    state = run_rounds(ours)
    assert not torch.allclose(state["perturbation.0.weight"], before["perturbation.0.weight"])
    assert ours.clients[0].memory == {}


def test_a_single_sample_is_only_classified(federation):
    method, client = started(federation)
    image, label = torch.randn(1, 3, 32, 32), torch.tensor([1])
    plain = F.cross_entropy(client.model(image), label)
    assert method.loss(client, Batch(image, label, label)).item() == pytest.approx(plain.item())


@pytest.mark.parametrize("expression", ["selfreg+fedbn", "selfreg+silobn", "fedprox+selfreg"])
def test_it_combines(federation, expression):
    ours = federation(toy_spec(expression))
    run_rounds(ours, 1)
    assert compose(expression).info.shares == ()
    assert "selfreg" in ours.clients[0].memory
    assert ("kept" in ours.clients[0].memory) == ("bn" in expression)
