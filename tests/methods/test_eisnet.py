"""EISNet: the K-hard triplets by brute force, the slow encoder, the queue, ERM at strength 0."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from benchmark.federation import rounds, visit
from benchmark.method import compose
from benchmark.state import copy_of
from methods.eisnet import follow, triplet_loss
from methods.ops.jigsaw import orders, shuffle_tiles
from tests.conftest import TRAINING, toy_spec
from tests.test_federation import equal, run_rounds


def spec(**given):
    return toy_spec("eisnet", overrides={"eisnet": given})


def without_heads(state):
    return {k: v for k, v in state.items() if k.split(".")[0] not in ("jigsaw", "metric")}


def test_one_pair_and_its_semi_hard_negatives():
    """d(a, p) = 1; negatives of another class at 0.25, 2.25, 4, 2.25: with margin 2 the values are
    2.75 (too hard), 0.75, −1 (easy) and, being of the same class, nothing."""
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    labels = torch.tensor([0, 0])
    negatives = torch.tensor([[0.5, 0.0], [0.0, 1.5], [2.0, 0.0], [0.0, -1.5]])
    others = torch.tensor([1, 1, 1, 0])
    assert triplet_loss(points, points, labels, negatives, others, 2.0, 5).item() == 0.75


def brute_force(anchors, positives, labels, negatives, others, margin, count):
    total, number = 0.0, 0
    for a, p in itertools.combinations(range(len(labels)), 2):
        if labels[a] != labels[p]:
            continue
        values = [
            ((anchors[a] - positives[p]) ** 2).sum() - ((anchors[a] - n) ** 2).sum() + margin
            for n, label in zip(negatives, others, strict=True)
            if label != labels[a]
        ]
        values = [v.item() for v in values if 0 < v < margin]
        if values:
            draws = min(count, len(values))
            total += draws * sum(values) / len(values)
            number += draws
    return total / number


@pytest.mark.parametrize("count", [2, 1000])
def test_it_is_the_mean_of_the_codes_random_draws(count):
    torch.manual_seed(0)
    q, k = (F.normalize(torch.randn(12, 8)) for _ in range(2))
    labels = torch.randint(0, 3, (12,))
    negatives, others = F.normalize(torch.randn(30, 8)), torch.randint(0, 3, (30,))
    expected = brute_force(q, k, labels, negatives, others, 0.8, count)
    ours = triplet_loss(q, k, labels, negatives, others, 0.8, count).item()
    assert ours == pytest.approx(expected, rel=1e-5)


def test_a_batch_without_triplets_has_no_term():
    points = torch.randn(3, 4, requires_grad=True)
    labels = torch.arange(3)
    loss = triplet_loss(points, points.detach(), labels, torch.randn(5, 4), labels[:1], 2.0, 4)
    loss.backward()
    assert loss.item() == 0
    assert (points.grad == 0).all()


def test_the_slow_encoder_follows():
    slow, fast = torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2)
    with torch.no_grad():
        fast.weight.fill_(2.0)
        fast.running_mean.fill_(7.0)
    follow(slow, fast, 0.999)
    assert slow.weight.tolist() == pytest.approx([1.001, 1.001])
    assert slow.running_mean.tolist() == [7.0, 7.0]


def test_without_both_supervisions_it_is_pooled_erm_bit_for_bit(federation):
    erm = run_rounds(federation(toy_spec("erm_pool")))
    ours = federation(spec(eis_jigsaw=0.0, eis_triplet=0.0, eis_whole=1.0))
    assert equal(without_heads(run_rounds(ours)), erm)
    assert ours.clients[0].memory == {}
    for given in ({}, {"eis_jigsaw": 0.0, "eis_whole": 1.0}, {"eis_triplet": 0.0}):
        assert not equal(without_heads(run_rounds(federation(spec(**given)))), erm)


def started(federation, **given):
    ours = federation(spec(**given))
    client = ours.clients[0]
    ours.method.receive(ours.server, client)
    client.model.train()
    batch = next(iter(ours.method.batches(client)))
    return ours.method, client, batch


def test_keys_come_from_whole_images_and_queries_from_shuffled_ones(federation):
    method, client, batch = started(federation, eis_whole=0.0)
    shuffled = method.augment(client, batch)
    assert torch.equal(shuffled.extras["whole"], batch.images)
    back = shuffle_tiles(shuffled.images, orders(30)[shuffled.extras["order"]].argsort(1))
    assert torch.equal(back, batch.images)
    keys, queue, labels = method._remember(client, shuffled)
    slow = client.scratch["eis_encoder"]
    with torch.no_grad():
        expected = F.normalize(slow.metric(slow.features(batch.images)))
    assert torch.equal(keys, expected)
    assert torch.equal(queue, keys)
    assert torch.equal(labels, batch.labels)
    assert not any(p.requires_grad for p in slow.parameters())
    assert not slow.training


def test_the_loss_is_the_sum_of_its_three_terms(federation):
    method, client, batch = started(federation)
    shuffled = method.augment(client, batch)
    model = client.model
    features = model.features(shuffled.images)
    keys, queue, others = method._remember(client, shuffled)
    client.scratch["eis_queue"] = queue[:0], others[:0]
    queries = F.normalize(model.metric(features))
    expected = (
        F.cross_entropy(model.classifier(features), batch.labels)
        + 0.7 * F.cross_entropy(model.jigsaw(features), shuffled.extras["order"])
        + 0.5 * triplet_loss(queries, keys, batch.labels, queue, others, 2.0, 256)
    )
    assert method.loss(client, shuffled).item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_queue_holds_the_last_embeddings_and_survives_rounds(federation):
    ours = federation(spec(eis_queue=20))
    lengths, tails = [], []
    for _ in rounds(ours.method, ours.server, ours.clients):
        keys, labels = ours.clients[0].memory["eis_queue"]
        lengths.append((len(keys), len(labels)))
        tails.append(keys[-8:].clone())
    assert lengths == [(20, 20)] * 3
    assert keys.norm(dim=1) == pytest.approx(torch.ones(20), abs=1e-5)
    assert not torch.equal(tails[0], tails[1])


def test_the_slow_encoder_lags_behind_and_lives_in_memory(federation):
    ours = federation(spec(eis_momentum=0.9))
    start = copy_of(ours.server.state)
    client = ours.clients[0]
    update, *_ = visit(ours.method, ours.server, client)
    slow, key = client.memory["eis_encoder"], "head.weight"
    near, far = ((x[key] - start[key]).norm() for x in (slow, update.state))
    assert 0 < near < far
    assert not any("encoder" in name for name in ours.server.state)


def test_sizes_of_the_heads_and_small_batches(federation):
    training = TRAINING.changed({"batch_size": 2})
    ours = federation(toy_spec("eisnet", training=training))
    model = ours.server.model
    assert (model.jigsaw.out_features, model.metric.out_features) == (31, 128)
    state = run_rounds(ours)
    assert all(torch.isfinite(value).all() for value in state.values())


def test_it_runs_where_all_images_are(federation):
    ours = federation(spec())
    assert len(ours.clients) == 1
    assert compose("eisnet").info.shares == ("images",)
    run_rounds(ours, 1)
    assert set(ours.server.traffic.counts) == {"down/weights", "up/weights"}
