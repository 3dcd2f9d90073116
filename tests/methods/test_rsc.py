"""RSC: the spec's masks with literal numbers, DomainBed's in numpy, the authors' counts."""

import numpy as np
import pytest
import torch
from torch import nn

import methods.rsc
from benchmark.backbones.base import backbones, make_backbone
from benchmark.errors import UserError
from benchmark.method import compose, make_method
from benchmark.state import batchnorm_keys, copy_of
from methods.rsc import _logit_gradient, muting, muting_maps
from tests.conftest import toy_spec
from tests.test_federation import equal, run_rounds


def linear(weights) -> nn.Linear:
    head = nn.Linear(len(weights[0]), len(weights))
    with torch.no_grad():
        head.weight.copy_(torch.tensor(weights))
        head.bias.zero_()
    return head


def test_the_gradient_is_that_of_the_true_classs_logit():
    head, features = nn.Linear(5, 3), torch.randn(4, 5)
    labels = torch.tensor([2, 0, 1, 2])
    logits, gradient = _logit_gradient(head, features, labels)
    assert torch.equal(gradient, head.weight[labels])
    assert torch.allclose(logits, head(features))


def test_the_top_third_is_muted():
    """W_y = (.3, −.1, .2): threshold .23333, mask (0, 1, 1)."""
    head = linear([[0.3, -0.1, 0.2], [0.0, 0.0, 0.0]])
    threshold = torch.quantile(head.weight[0], 2 / 3).item()
    assert threshold == pytest.approx(0.23333, abs=1e-5)
    mask = muting(head, torch.ones(1, 3), torch.tensor([0]), 1 / 3, 1.0)
    assert mask.tolist() == [[0, 1, 1]]


def test_share_zero_mutes_exactly_the_largest_entry():
    head, features, labels = nn.Linear(6, 3), torch.randn(4, 6), torch.tensor([0, 1, 2, 0])
    mask = muting(head, features, labels, 0.0, 1.0)
    assert torch.equal(mask.argmin(1), head.weight[labels].argmax(1))
    assert mask.sum(1).tolist() == [5] * 4


def test_batch_share_zero_keeps_only_the_largest_change_muted():
    torch.manual_seed(0)
    head, features, labels = nn.Linear(9, 3), torch.rand(5, 9), torch.tensor([0, 1, 2, 0, 1])
    everyone = muting(head, features, labels, 1 / 3, 1.0)

    def right(x):
        return head(x).softmax(1).gather(1, labels[:, None])[:, 0]

    changes = right(features) - right(features * everyone)
    mask = muting(head, features, labels, 1 / 3, 0.0)
    assert (mask == 0).any(1).nonzero().flatten().tolist() == [changes.argmax().item()]
    assert torch.equal(mask[changes.argmax()], everyone[changes.argmax()])


def test_a_batch_of_one_is_always_muted():
    mask = muting(nn.Linear(9, 3), torch.rand(1, 9), torch.tensor([1]), 1 / 3, 1 / 3)
    assert (mask == 0).sum() == 3


def test_it_agrees_with_domainbeds_percentiles_in_numpy():
    torch.manual_seed(1)
    head, features = nn.Linear(41, 4), torch.randn(18, 41)  # no percentile falls on an entry
    labels = torch.randint(0, 4, (18,))
    with torch.no_grad():
        gradient = head.weight[labels].numpy()
        threshold = np.percentile(gradient, 100 * (1 - 1 / 3), axis=1, keepdims=True)
        by_feature = gradient < threshold
        muted = head(features * torch.from_numpy(by_feature))
        rows = torch.arange(18)
        change = (head(features).softmax(1) - muted.softmax(1))[rows, labels].numpy()
    spared = change < np.percentile(change, 100 * (1 - 1 / 3))
    expected = torch.from_numpy(by_feature | spared[:, None]).float()
    assert torch.equal(muting(head, features, labels, 1 / 3, 1 / 3), expected)


def test_with_nothing_muted_it_is_fedavg_bit_for_bit(federation, monkeypatch):
    fedavg = run_rounds(federation(toy_spec("fedavg")))
    assert not equal(run_rounds(federation(toy_spec("rsc"))), fedavg)
    monkeypatch.setattr(methods.rsc, "muting", lambda head, f, *rest: torch.ones_like(f))
    assert equal(run_rounds(federation(toy_spec("rsc"))), fedavg)


def test_what_is_muted_gets_no_gradient_and_the_mask_none_either(federation):
    ours = federation(toy_spec("rsc", overrides={"rsc": {"rsc_batch": 1.0}}))
    client = ours.clients[0]
    client.model.train()
    batch = next(iter(ours.method.batches(client)))
    caught = []
    tap = nn.Identity()
    tap.register_forward_hook(lambda module, args, out: (out.retain_grad(), caught.append(out))[0])
    client.model.insert("features", tap)
    ours.method.loss(client, batch).backward()
    features = caught[0]
    mask = muting(client.model.classifier, features.detach(), batch.labels, 1 / 3, 1.0)
    assert {*(mask == 0).sum(1).tolist()} <= {85, 86}  # a third of 256
    assert (features.grad[mask == 0] == 0).all()
    assert (features.grad[mask == 1] != 0).float().mean() > 0.9


@pytest.fixture
def small_resnet():
    torch.manual_seed(0)
    return make_backbone("resnet18_b256", 7, "none").train()


def test_the_authors_masks_have_their_counts_and_change_no_mode(small_resnet):
    maps, labels = torch.rand(6, 512, 7, 7), torch.randint(0, 7, (6,))
    before = copy_of(small_resnet.state_dict())
    kinds = set()
    for seed in range(8):
        torch.manual_seed(seed)
        mask = muting_maps(small_resnet, maps, labels, 1.0)
        muted = (mask == 0).flatten(1).sum(1)
        counts = set(muted[muted > 0].tolist())
        shape = tuple(mask.shape[1:])
        assert counts <= ({17} if shape == (1, 7, 7) else {160})
        kinds.add(shape)
    assert kinds == {(1, 7, 7), (512, 1, 1)}
    assert all(module.training for module in small_resnet.modules())
    assert equal(small_resnet.state_dict(), before)


def test_the_authors_share_of_samples(small_resnet):
    torch.manual_seed(0)
    maps, labels = torch.rand(10, 512, 2, 2), torch.randint(0, 7, (10,))
    for share in (0.3, 0.5):
        torch.manual_seed(3)
        muted = (muting_maps(small_resnet, maps, labels, share) == 0).flatten(1).any(1).sum()
        torch.manual_seed(3)
        possible = (muting_maps(small_resnet, maps, labels, 1.0) == 0).flatten(1).any(1).sum()
        assert muted == min(round(10 * share), possible)


@pytest.mark.parametrize(("number", "share"), [(0, 0.3), (9, 0.3), (10, 0.5), (19, 0.5), (40, 1.0)])
def test_the_authors_schedule_and_mirror_images(federation, monkeypatch, number, share):
    ours = federation(toy_spec("rsc", overrides={"rsc": {"rsc_variant": "official"}}))
    client = ours.clients[0]
    client.round = number
    seen = []

    def spy(model, maps, labels, given):
        seen.append((len(maps), labels.tolist(), given))
        return torch.ones_like(maps)

    monkeypatch.setattr(methods.rsc, "muting_maps", spy)
    batch = next(iter(ours.method.batches(client)))
    ours.method.loss(client, batch)
    count, labels, given = seen[0]
    assert count == 2 * len(batch)
    assert labels == batch.labels.tolist() * 2
    assert given == pytest.approx(share)


def test_the_authors_version_trains_on_small_maps_and_refuses_tokens(federation):
    official = toy_spec("rsc", overrides={"rsc": {"rsc_variant": "official"}})
    ours = federation(official)
    before = copy_of(ours.server.state)
    state = run_rounds(ours)
    statistics = batchnorm_keys(ours.server.model).statistics
    assert all(torch.isfinite(value).all() for value in state.values())
    assert not any(torch.equal(state[key], before[key]) for key in statistics)
    with torch.device("meta"), pytest.raises(UserError, match="choose a CNN or a ResNet"):
        make_method("rsc", {"rsc_variant": "official"}).build(lambda: backbones["vit_b16"].make(2))


@pytest.mark.parametrize("expression", ["rsc", "rsc+fedbn", "rsc+silobn", "fedprox+rsc"])
def test_it_shares_nothing_but_weights_and_combines(federation, expression):
    ours = federation(toy_spec(expression))
    run_rounds(ours, 1)
    assert set(ours.server.traffic.counts) == {"down/weights", "up/weights"}
    assert compose(expression).info.shares == ()


def test_it_would_silence_a_term_to_its_right_and_says_so():
    with pytest.raises(UserError, match="the loss of rsc would silence that of fedprox"):
        compose("rsc+fedprox")
