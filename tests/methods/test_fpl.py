"""FPL: prototypes made by clients, clustered by the server, and what they add to the loss."""

import math

import numpy as np
import pytest
import torch

from benchmark.federation import rounds, visit
from benchmark.method import compose
from datasets.samples import Samples
from methods.fpl import clustered, contrast, pull
from tests.conftest import TRAINING, toy_spec
from tests.methods.parts import note_sent, three_of_six
from tests.test_federation import equal, run_rounds

PARTIAL = three_of_six()


def fpl(federation, expression="fpl", fpl_contrast=1.0, fpl_pull=1.0, warm=0.02, **changes):
    chosen = {"fpl_contrast": fpl_contrast, "fpl_pull": fpl_pull, "fpl_temperature": warm}
    return federation(toy_spec(expression, overrides={"fpl": chosen}, **changes))


def prototypes(means, classes):
    return {"means": torch.tensor(means), "classes": torch.tensor(classes)}


EAST, NORTH = [1.0, 0.0], [0.0, 1.0]


def test_contrast_oracles():
    z, label = torch.tensor([[3.0, 0.0]]), torch.tensor([0])
    two = prototypes([EAST, NORTH], [0, 1])
    assert contrast(z, label, two, 0.5).item() == pytest.approx(0.126928, abs=1e-6)
    wrong = contrast(z, torch.tensor([1]), two, 0.5).item()
    assert wrong == pytest.approx(math.log(1 + math.exp(2)), abs=1e-6)
    # two of the own class, cosines 1 and 0, and another with cosine 0: log(e² + 2) − log(e² + 1)
    three = prototypes([EAST, NORTH, NORTH], [0, 0, 1])
    wanted = math.log(math.exp(2) + 2) - math.log(math.exp(2) + 1)
    assert contrast(z, label, three, 0.5).item() == pytest.approx(wanted, abs=1e-6)
    # at the default temperature nothing overflows: cosine 1 against 0 is e^50
    assert contrast(z, torch.tensor([1]), two, 0.02).item() == pytest.approx(50, abs=1e-4)


def test_pull_is_to_the_mean_of_the_classs_cluster_prototypes():
    three = prototypes([EAST, NORTH, [4.0, 4.0]], [0, 0, 2])
    z = torch.tensor([[1.0, 0.0], [4.0, 2.0], [9.0, 9.0]])
    labels = torch.tensor([0, 2, 1])
    # (0.25 + 0.25)/2, (0 + 4)/2 and, without a prototype, nothing; over all three samples
    assert pull(z, labels, three, 4).item() == pytest.approx((0.25 + 2.0) / 3, abs=1e-6)


def test_samples_without_a_prototype_have_no_loss_and_no_gradient():
    z = torch.tensor([[1.0, 0.5], [0.5, 1.0]], requires_grad=True)
    only = prototypes([EAST], [0])
    labels = torch.tensor([1, 2])
    loss = contrast(z, labels, only, 0.02) + pull(z, labels, only, 4)
    assert loss.item() == 0
    (gradient,) = torch.autograd.grad(loss, z)
    assert gradient.tolist() == [[0, 0], [0, 0]]
    # with prototypes of one class only there is nothing to tell it from
    assert contrast(z, torch.tensor([0, 0]), only, 0.02).item() == pytest.approx(0, abs=1e-6)


def test_the_server_clusters_class_by_class():
    angles = torch.deg2rad(torch.tensor([0.0, 2, 90, 92]))
    points = torch.stack([angles.cos(), angles.sin()], 1)
    sent = [{"means": torch.stack([p, 5 * p]), "classes": torch.tensor([0, 2])} for p in points]
    sent.append({"means": torch.tensor([[3.0, 3.0]]), "classes": torch.tensor([1])})
    result = clustered(sent)
    assert result["classes"].tolist() == [0, 0, 1, 2, 2]
    one, two = points[:2].mean(0), points[2:].mean(0)
    wanted = torch.stack([one, two, torch.tensor([3.0, 3.0]), 5 * one, 5 * two])
    assert torch.allclose(result["means"], wanted, atol=1e-6)


def test_without_weights_it_is_fedavg_bit_for_bit(federation):
    fedavg = run_rounds(federation(toy_spec("fedavg")))
    ours = fpl(federation, fpl_contrast=0.0, fpl_pull=0.0)
    assert equal(run_rounds(ours), fedavg)
    assert "fpl" not in ours.server.memory
    for one in ({"fpl_contrast": 0.0}, {"fpl_pull": 0.0}):
        assert not equal(run_rounds(fpl(federation, **one)), fedavg)


def test_round_zero_is_fedavgs(federation):
    fedavg = run_rounds(federation(toy_spec("fedavg")), 1)
    assert equal(run_rounds(fpl(federation), 1), fedavg)


@pytest.mark.parametrize("steps", [2, 7])
def test_prototypes_are_the_features_of_the_last_pass(federation, steps):
    """39 images in batches of 8 are four steps a pass: of seven steps the last four count."""
    ours = fpl(federation, training=TRAINING.changed({"local_steps": steps}))
    client = ours.clients[0]
    seen = []
    hook = client.model.classifier.register_forward_pre_hook(
        lambda _, inputs: seen.append(inputs[0].detach().clone())
    )
    labels = [batch.labels for batch in ours.method.batches(client)]
    update, _, _ = visit(ours.method, ours.server, client)
    hook.remove()
    assert len(client.train) // 8 == 4
    features, labels = torch.cat(seen[-4:]), torch.cat(labels[-4:])
    sent = update.extras["prototype"]
    assert sent["classes"].tolist() == labels.unique().tolist()
    for label, mean in zip(sent["classes"], sent["means"], strict=True):
        assert torch.allclose(mean, features[labels == label].mean(0), atol=1e-5)


@pytest.mark.parametrize("term", ["fpl_contrast", "fpl_pull"])
def test_features_come_nearer_to_their_prototypes(federation, term):
    """Each term, on validation images and against the prototypes of round 0, is smaller after a
    round with it than after the same round without."""
    found = []
    for weight in (0.0, 1.0):
        other = {"fpl_contrast": 0.0, "fpl_pull": 0.0, term: 1.0}
        training = TRAINING.changed({"local_steps": 8, "lr": 0.02})
        ours = fpl(federation, warm=0.5, training=training, **other)
        loop = rounds(ours.method, ours.server, ours.clients)
        next(loop)
        fixed = ours.server.memory["fpl"]
        object.__setattr__(ours.method, term, weight)
        next(loop)
        ours.server.model.eval()
        batch = next(ours.clients[0].val.evaluation_batches())
        with torch.no_grad():
            z = ours.server.model.features(batch.images)
            terms = {
                "fpl_contrast": contrast(z, batch.labels, fixed, 0.5),
                "fpl_pull": pull(z, batch.labels, fixed, 4),
            }
        found.append(terms[term].item())
    assert found[1] < found[0]


def test_what_it_shares_is_counted(federation):
    ours = fpl(federation)
    loop = rounds(ours.method, ours.server, ours.clients)
    next(loop)
    counts = ours.server.traffic.counts
    kinds = {key.split("/")[1] for key in counts} - {"weights"}
    assert kinds == set(ours.method.info.shares) == {"prototype"}
    assert "down/prototype" not in counts
    row = 4 * 256 + 8  # features in single precision and the class
    assert counts["up/prototype"] % row == 0
    assert 3 * 2 * row <= counts["up/prototype"] <= 3 * 4 * row
    held = len(ours.server.memory["fpl"]["classes"])
    next(loop)
    assert counts["down/prototype"] == 3 * held * row


def test_a_class_that_a_client_misses(federation):
    ours = fpl(federation, training=TRAINING.changed({"local_steps": 5}))
    for client in ours.clients[:2]:
        left = client.train.shard.take(np.flatnonzero(client.train.labels != 2))
        client.train = Samples(left, client.train._domains, client.train.transform)
    update, _, _ = visit(ours.method, ours.server, ours.clients[0])
    assert update.extras["prototype"]["classes"].tolist() == [0, 1, 3]
    run_rounds(ours)
    assert ours.server.memory["fpl"]["classes"].unique().tolist() == [0, 1, 2, 3]


def test_with_partial_participation_prototypes_are_the_last_rounds(federation):
    ours = fpl(federation, **PARTIAL)
    assert len(ours.clients) == 6
    sent = {}
    for client in ours.clients:
        note_sent(client, "prototype", sent)
    seen = set()
    for round in rounds(ours.method, ours.server, ours.clients):
        assert sorted(sent) == [client.id for client in round.chosen]
        assert len(sent) == 3
        assert equal(ours.server.memory["fpl"], clustered(list(sent.values())))
        seen |= sent.keys()
        sent.clear()
    assert len(seen) > 3


def test_it_composes_with_fedbn_and_collects_once_per_step(federation):
    both = fpl(federation, "fpl+fedbn")
    run_rounds(both)
    assert "kept" in both.clients[0].memory
    assert "fpl" in both.server.memory
    assert compose("fpl+fedbn").info.shares == ("prototype",)
    twice = fpl(federation, "fpl+fedsam")
    client = twice.clients[0]
    counted = []
    twice.method.receive(twice.server, client)
    client.model.train()
    client.lr = 0.05
    client.optimizer = twice.method.optimizer(client)
    for batch in twice.method.batches(client):
        twice.method.step(client, batch)
        counted.append(int(client.scratch["fpl_counts"].sum()))
    assert counted == [8, 16]
