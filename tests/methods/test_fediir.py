"""FedIIR: the penalty worked out by hand, the common gradient, what it sends and when."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmark.backbones.base import Backbone
from benchmark.federation import rounds
from benchmark.method import compose, make_method
from benchmark.state import batchnorm_keys, copy_of
from datasets.samples import Batch, Samples
from methods.fediir import _one_pass
from tests.conftest import TRAINING, toy_spec
from tests.methods.parts import note_sent, three_of_six
from tests.test_federation import equal, run_rounds

PARTIAL = three_of_six()


def iir(federation, gamma, expression="fediir", **changes):
    overrides = {"fediir": {"iir_gamma": gamma}}
    return federation(toy_spec(expression, overrides=overrides, **changes))


class Flat(Backbone):
    """Features are the images; the classifier starts at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(2, 2)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def features(self, images):
        return images


def linear_case(common):
    """One sample z = (2, 1) of class 0."""
    client = SimpleNamespace(model=Flat(), scratch={"fediir": common})
    images = torch.tensor([[2.0, 1.0]], requires_grad=True)
    zero = torch.tensor([0])
    return client, Batch(images, zero, zero)


def test_the_penalty_by_hand():
    """p − y = (−½, ½), so ∇W = [[−1, −½], [1, ½]] and ∇b = (−½, ½): the squares sum to 3."""
    zeros = {"weight": torch.zeros(2, 2), "bias": torch.zeros(2)}
    client, batch = linear_case(zeros)
    loss = make_method("fediir", {"iir_gamma": 2.0}).loss(client, batch)
    assert loss.item() == pytest.approx(0.693147 + 2 * 3.0, abs=1e-6)
    # taking ∇W's first row and ∇b's first entry as what all agree on leaves 1 + ¼ + ¼
    agreed = {"weight": torch.tensor([[-1.0, -0.5], [0, 0]]), "bias": torch.tensor([-0.5, 0])}
    client, batch = linear_case(agreed)
    loss = make_method("fediir", {"iir_gamma": 2.0}).loss(client, batch)
    assert loss.item() == pytest.approx(0.693147 + 2 * 1.5, abs=1e-6)


def test_the_penaltys_own_gradient_by_hand():
    """Without ḡ it is 2(1 − σ(m))²(‖z‖² + 1), m the margin: at m = 0 the slope in m is −3, and in z
    itself 4(1 − σ)²z = z. Cross-entropy adds σ − 1 = −½ in m."""
    client, batch = linear_case({"weight": torch.zeros(2, 2), "bias": torch.zeros(2)})
    make_method("fediir", {"iir_gamma": 1.0}).loss(client, batch).backward()
    head = client.model.head
    assert head.bias.grad.tolist() == pytest.approx([-3.5, 3.5], abs=1e-6)
    assert head.weight.grad.flatten().tolist() == pytest.approx([-7, -3.5, 7, 3.5], abs=1e-6)
    assert batch.images.grad.flatten().tolist() == pytest.approx([2, 1], abs=1e-6)


def head_gradient(model, batch) -> torch.Tensor:
    """∇W and ∇b in closed form: (p − y)ᵀz/B and the mean of p − y."""
    with torch.no_grad():
        z = model.features(batch.images)
        p = model.classifier(z).softmax(1) - F.one_hot(batch.labels, 4)
        return torch.cat([p.T @ z / len(z), p.mean(0)[:, None]], 1)


def test_the_common_gradient_is_the_mean_over_batches_and_remembers(federation):
    ours = iir(federation, 1e-3, training=TRAINING.changed({"local_steps": 9}))
    small = ours.clients[0].train
    few = small.shard.take(np.arange(16))
    ours.clients[0].train = Samples(few, small._domains, small.transform)
    model = ours.server.model.train()
    means = []
    for number in (0, 1):
        ours.server.round = number
        batches = []
        for client in ours.clients:
            client.round = number
            batches += list(_one_pass(client))
        assert len(batches) == 10  # two of 8 from 16 images, and twice four from 39
        means.append(torch.stack([head_gradient(model, batch) for batch in batches]).mean(0))
        before = copy_of(ours.server.state, batchnorm_keys(model).affine)
        ours.method.exchange(ours.server, ours.clients)
        assert equal(copy_of(ours.server.state, before), before)
    held = ours.server.memory["fediir"]
    wanted = 0.95 * 0.05 * means[0] + 0.05 * means[1]
    assert torch.allclose(held["weight"], wanted[:, :-1], atol=1e-6)
    assert torch.allclose(held["bias"], wanted[:, -1], atol=1e-6)


def test_the_extra_pass_leaves_the_statistics_alone_and_is_never_longer_than_training(federation):
    ours = iir(federation, 1e-3)
    client = ours.clients[0]
    assert len(list(_one_pass(client))) == 2  # two local steps, though a pass has four
    ours.method.exchange(ours.server, ours.clients)
    assert equal(copy_of(client.state), copy_of(ours.server.state))


def test_without_weight_it_is_fedavg_bit_for_bit(federation):
    fedavg = run_rounds(federation(toy_spec("fedavg")))
    ours = iir(federation, 0.0)
    assert equal(run_rounds(ours), fedavg)
    assert "fediir" not in ours.server.memory
    assert not equal(run_rounds(iir(federation, 1e-3)), fedavg)


def test_gradients_come_nearer_to_the_common_one(federation):
    """After the same steps the penalty on the same images is smaller with it than without."""
    found = []
    for gamma in (0.0, 0.01):
        ours = iir(federation, 1.0, training=TRAINING.changed({"local_steps": 12, "rounds": 1}))
        client = ours.clients[0]
        ours.method.exchange(ours.server, ours.clients)
        object.__setattr__(ours.method, "iir_gamma", gamma)
        ours.method.receive(ours.server, client)
        client.lr = 0.002
        client.optimizer = ours.method.optimizer(client)
        client.model.train()
        for batch in ours.method.batches(client):
            ours.method.step(client, batch)
        gradient = torch.stack([head_gradient(client.model, b) for b in _one_pass(client)])
        common = client.scratch["fediir"]
        target = torch.cat([common["weight"], common["bias"][:, None]], 1)
        found.append((gradient - target).square().sum((1, 2)).mean().item())
    assert found[1] < found[0]


def test_what_it_shares_is_counted_and_weights_go_once(federation):
    ours, fedavg = iir(federation, 1e-3), federation(toy_spec("fedavg"))
    run_rounds(ours, 1)
    run_rounds(fedavg, 1)
    counts = dict(ours.server.traffic.counts)
    assert ours.method.info.shares == ("gradient",)
    size = 4 * (4 * 256 + 4)
    assert counts.pop("up/gradient") == 3 * (size + 8)
    assert counts.pop("down/gradient") == 3 * size
    assert counts == dict(fedavg.server.traffic.counts)


def test_with_partial_participation_only_the_rounds_clients_give_gradients(federation):
    ours = iir(federation, 1e-3, **PARTIAL)
    assert len(ours.clients) == 6
    sent = {}
    for client in ours.clients:
        note_sent(client, "gradient", sent)
    before = None
    for round in rounds(ours.method, ours.server, ours.clients):
        assert sorted(sent) == [client.id for client in round.chosen]
        assert len(sent) == 3
        new = sum(own["batches"] * own["mean"]["weight"] for own in sent.values())
        wanted = 0.05 * new / sum(own["batches"] for own in sent.values())
        if before is not None:
            wanted = wanted + 0.95 * before
        before = ours.server.memory["fediir"]["weight"]
        assert torch.allclose(before, wanted, atol=1e-6)
        for client in round.chosen:
            assert client.scratch["fediir"] is ours.server.memory["fediir"]
        sent.clear()


def test_it_composes(federation):
    both = iir(federation, 1e-3, "fediir+silobn")
    run_rounds(both)
    assert "kept" in both.clients[0].memory
    alone = run_rounds(iir(federation, 1e-3))
    # training normalises by batches, so silos of statistics change no parameter
    for name, _ in both.server.model.named_parameters():
        assert torch.equal(both.server.state[name], alone[name])
    assert compose("fediir+fedprox")


def test_with_another_loss_the_gradient_is_still_cross_entropys(federation):
    """FedProx's pull is no part of ∇φ: far from its anchor only its own term is added."""
    ours = iir(federation, 1.0, "fediir+fedprox")
    client = ours.clients[0]
    ours.method.exchange(ours.server, ours.clients)
    ours.method.receive(ours.server, client)
    with torch.no_grad():
        client.model.classifier.weight += 0.1
    client.model.train()
    batch = next(ours.method.batches(client))
    found = ours.method.loss(client, batch).item()
    alone = iir(federation, 1.0).method.loss(client, batch).item()
    assert found - alone == pytest.approx(0.05 * 0.01 * 4 * 256, rel=1e-3)
