"""Epi-FCR: which loss may change what, the random head, the warm-up, ERM at strength 0."""

import copy

import pytest
import torch
import torch.nn.functional as F

from benchmark.federation import rounds
from benchmark.method import compose
from benchmark.state import batchnorm_keys, copy_of
from methods.ops.sources import source_numbers
from tests.conftest import TRAINING, toy_spec
from tests.test_federation import equal, run_rounds

NOTHING = {"epi_feature": 0.0, "epi_classifier": 0.0, "epi_random": 0.0}


def spec(target="grey", training=TRAINING, **given):
    return toy_spec("epi_fcr", target=target, overrides={"epi_fcr": given}, training=training)


def started(federation, round=2, **given):
    ours = federation(spec(**given))
    client = ours.clients[0]
    client.round = round
    ours.method.receive(ours.server, client)
    ours.method.optimizer(client)
    client.model.train()
    return ours.method, client, next(iter(ours.method.batches(client)))


def test_at_strength_zero_it_is_balanced_pooled_erm_bit_for_bit(federation):
    erm = run_rounds(federation(toy_spec("erm_pool", overrides={"erm_pool": {"balanced": True}})))
    ours = federation(spec(**NOTHING))
    assert equal(run_rounds(ours), erm)
    assert ours.clients[0].memory == {}
    assert not equal(run_rounds(federation(spec())), erm)


@pytest.mark.parametrize("balanced", [True, False])
def test_the_papers_loss_is_the_sum_of_the_domains_means(federation, balanced):
    method, client, batch = started(federation, **NOTHING, epi_sum=True, balanced=balanced)
    losses = F.cross_entropy(client.model(batch.images), batch.labels, reduction="none")
    expected = sum(losses[batch.domains == d].mean() for d in batch.domains.unique())
    assert method.loss(client, batch).item() == pytest.approx(expected.item(), rel=1e-5)


def gradient_of(loss, module):
    found = torch.autograd.grad(loss, list(module.parameters()), None, True, allow_unused=True)
    return sum(0.0 if g is None else g.abs().sum().item() for g in found)


@pytest.mark.parametrize(
    ("term", "features", "classifier"),
    [("epi_feature", True, False), ("epi_classifier", False, True), ("epi_random", True, False)],
)
def test_each_term_trains_its_part_and_no_partner(federation, term, features, classifier):
    method, client, batch = started(federation, **{**NOTHING, term: 1.0})
    model = client.model
    sources = source_numbers(client, batch.domains)
    if term == "epi_random":
        outputs = client.scratch["epi_random"](model.features(batch.images))
        loss = method._total(outputs, batch.labels, sources)
    else:
        loss = method._episode(client, batch, sources, model.features(batch.images))
        assert gradient_of(loss, client.scratch["epi_domains"]) == 0
    assert (gradient_of(loss, model.block1) > 0) == features
    assert (gradient_of(loss, model.classifier) > 0) == classifier


def test_the_whole_loss_is_the_sum_of_its_terms(federation):
    method, client, batch = started(federation)
    networks = copy.deepcopy(client.scratch["epi_domains"]).train()
    torch.manual_seed(5)
    loss = method.loss(client, batch).item()
    torch.manual_seed(5)
    tested, trained = torch.randperm(3)[:2].tolist()
    model, labels = client.model, batch.labels
    sources = source_numbers(client, batch.domains)
    chosen, features = sources == tested, model.features(batch.images)
    expected = F.cross_entropy(model.classifier(features), labels)
    for j, network in enumerate(networks):
        expected += F.cross_entropy(network(batch.images[sources == j]), labels[sources == j])
    partner = networks[trained].eval()
    theirs = model.classifier(partner.features(batch.images[chosen]))
    expected += 2.0 / 3 * F.cross_entropy(partner.classifier(features[chosen]), labels[chosen])
    expected += 0.05 / 3 * F.cross_entropy(theirs, labels[chosen])
    expected += 0.1 * F.cross_entropy(client.scratch["epi_random"](features), labels)
    assert loss == pytest.approx(expected.item(), rel=1e-5)


def test_a_domains_network_learns_from_its_own_images_only(federation):
    method, client, batch = started(federation)
    sources = source_numbers(client, batch.domains)
    client.model.zero_grad()
    networks = client.scratch["epi_domains"]
    before = copy_of(networks.state_dict())
    chosen = sources == 1
    batch.images, batch.labels = batch.images[chosen], batch.labels[chosen]
    method._own_domains(client, batch, sources[chosen]).backward()
    assert [network.head.weight.grad is not None for network in networks] == [False, True, False]
    key = "block1.1.running_mean"
    moved = [not torch.equal(networks[j].state_dict()[key], before[f"{j}.{key}"]) for j in range(3)]
    assert moved == [False, True, False]


def test_the_random_head_never_changes_and_the_domains_networks_do(federation):
    ours = federation(spec())
    seen = []
    for _ in rounds(ours.method, ours.server, ours.clients):
        memory = ours.clients[0].memory
        seen.append((copy_of(memory["epi_random"]), copy_of(memory["epi_domains"])))
    assert equal(seen[0][0], seen[-1][0])
    last = seen[-1][1]
    assert not torch.equal(seen[0][1]["0.head.weight"], last["0.head.weight"])
    assert not torch.equal(last["0.head.weight"], last["1.head.weight"])


@pytest.mark.parametrize(("round", "episodic"), [(0, False), (1, True), (2, True)])
def test_a_sixth_of_the_rounds_is_a_warm_up(federation, monkeypatch, round, episodic):
    method, client, batch = started(federation, round=round)
    called = []
    monkeypatch.setattr(type(method), "_episode", lambda *args: called.append(1) or torch.zeros(()))
    method.loss(client, batch)
    assert bool(called) == episodic


def test_frozen_batchnorm_keeps_its_statistics(federation):
    gentle = TRAINING.changed({"lr": 1e-3})  # nothing normalises a network from scratch here
    ours = federation(spec(training=gentle, epi_freeze_batchnorm=True))
    before = copy_of(ours.server.state)
    state = run_rounds(ours)
    statistics = batchnorm_keys(ours.server.model).statistics
    assert all(torch.equal(state[key], before[key]) for key in statistics)
    assert not torch.equal(state["block1.1.weight"], before["block1.1.weight"])


def test_a_batch_that_lacks_a_domain_is_no_trouble(federation):
    training = TRAINING.changed({"batch_size": 3, "local_steps": 8})
    state = run_rounds(federation(spec(target="green", training=training, balanced=False)))
    assert all(torch.isfinite(value).all() for value in state.values())


def test_it_runs_where_all_images_are(federation):
    ours = federation(spec())
    assert len(ours.clients) == 1
    assert compose("epi_fcr").info.shares == ("images",)
    run_rounds(ours, 1)
    assert set(ours.server.traffic.counts) == {"down/weights", "up/weights"}
