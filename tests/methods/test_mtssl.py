"""MTSSL: quarter turns, the Gabor bank, statistics that turned copies leave alone, ERM at 0."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from benchmark.federation import rounds
from benchmark.method import compose
from benchmark.state import batchnorm_keys, copy_of
from methods.mtssl import gabor_bank, gabor_energy, rotate
from tests.conftest import TRAINING, toy_spec
from tests.test_federation import equal, run_rounds

ERM = {"mtssl_rotation": 0.0, "mtssl_gabor": 0.0}


def spec(training=TRAINING, **given):
    return toy_spec("mtssl", training=training, overrides={"mtssl": given})


def without_heads(state):
    return {k: v for k, v in state.items() if k.split(".")[0] not in ("rotation", "gabor")}


def test_images_are_turned_by_quarters():
    image = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).expand(4, 1, 2, 2)
    turned = rotate(image, torch.arange(4))
    assert turned[:, 0].tolist() == [
        [[1, 2], [3, 4]],
        [[2, 4], [1, 3]],
        [[4, 3], [2, 1]],
        [[3, 1], [4, 2]],
    ]


def test_filters_have_no_mean_and_length_one():
    bank = gabor_bank(8, 4)
    assert bank.shape == (32, 1, 11, 11)
    assert bank.sum((1, 2, 3)) == pytest.approx(torch.zeros(32), abs=1e-5)
    assert bank.square().sum((1, 2, 3)) == pytest.approx(torch.ones(32), abs=1e-5)
    flat = torch.full((1, 3, 32, 32), 0.7)
    inner = F.conv2d(flat[:, :1], bank)
    assert inner.abs().max() < 1e-5


@pytest.mark.parametrize(("orientation", "direction"), [(0, (0, 1)), (2, (1, 1)), (4, (1, 0))])
def test_stripes_answer_to_the_filter_of_their_orientation(orientation, direction):
    """Stripes of wavelength 6 = 3·√2², the third scale, across a direction of rows and columns."""
    rows, columns = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    along = (direction[0] * rows + direction[1] * columns) / math.hypot(*direction)
    stripes = (0.5 + 0.5 * torch.cos(2 * math.pi * along / 6)).expand(1, 3, 32, 32)
    energy = gabor_energy(stripes, gabor_bank(8, 4), 4)
    assert energy.shape == (1, 32 * 16)
    inner = energy.view(4, 8, 4, 4)[:, :, 1:3, 1:3].mean((2, 3))
    assert divmod(inner.argmax().item(), 8) == (2, orientation)


def test_at_strength_zero_it_is_pooled_erm_bit_for_bit(federation):
    erm = run_rounds(federation(toy_spec("erm_pool")))
    assert equal(without_heads(run_rounds(federation(spec(**ERM)))), erm)
    for name in ERM:
        assert not equal(without_heads(run_rounds(federation(spec(**{**ERM, name: 1.0})))), erm)


def test_the_loss_is_the_sum_of_its_three_terms(federation):
    ours = federation(spec(mtssl_rotation=0.5, mtssl_gabor=3.0))
    client = ours.clients[0]
    ours.method.receive(ours.server, client)
    client.model.train()
    batch = next(iter(ours.method.batches(client)))
    torch.manual_seed(1)
    loss = ours.method.loss(client, batch).item()
    torch.manual_seed(1)
    turns = torch.randint(0, 4, (len(batch),))
    model = client.model
    features = model.features(batch.images)
    pixels = client.train.transform.to_pixels(batch.images)
    assert 0 <= pixels.min() < pixels.max() <= 1
    answers = gabor_energy(pixels, gabor_bank(8, 4), 4)
    turned = model.rotation(model.features(rotate(batch.images, turns)))
    expected = F.cross_entropy(model.classifier(features), batch.labels)
    expected = expected + 3.0 * (model.gabor(features) - answers).square().mean()
    expected = expected + 0.5 * F.cross_entropy(turned, turns)
    assert loss == pytest.approx(expected.item(), rel=1e-5)


def test_turned_copies_do_not_touch_the_running_statistics(federation):
    one_step = TRAINING.changed({"rounds": 1, "local_steps": 1})
    given = {"per_source": False}
    erm = federation(toy_spec("erm_pool", training=one_step, overrides={"erm_pool": given}))
    ours = federation(spec(one_step, **given))
    one, other = run_rounds(ours), run_rounds(erm)
    keys = batchnorm_keys(ours.server.model)
    assert all(torch.equal(one[key], other[key]) for key in keys.statistics | keys.counters)
    assert not torch.equal(one["block1.0.weight"], other["block1.0.weight"])


def test_pretraining_comes_first_and_alone(federation):
    ours = federation(spec(mtssl_pretrain=0.5))  # rounds 0 and 1 of 3
    states = [copy_of(ours.server.state)]
    for _ in rounds(ours.method, ours.server, ours.clients):
        states.append(copy_of(ours.server.state))

    def moved(key):
        return [not torch.equal(a[key], b[key]) for a, b in itertools.pairwise(states)]

    assert moved("head.weight") == [False, False, True]
    assert moved("rotation.weight") == moved("gabor.weight") == [True, True, False]
    assert moved("block1.0.weight") == [True, True, True]


def test_it_runs_where_all_images_are(federation):
    ours = federation(spec())
    assert len(ours.clients) == 1
    assert compose("mtssl").info.shares == ("images",)
    run_rounds(ours, 1)
    assert set(ours.server.traffic.counts) == {"down/weights", "up/weights"}
