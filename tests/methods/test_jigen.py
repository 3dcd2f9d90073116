"""JiGen: tiles and their inverse, the set of permutations, the two losses, ERM at strength 0."""

import pytest
import torch
import torch.nn.functional as F

from benchmark.backbones.base import make_backbone
from benchmark.method import compose, make_method
from benchmark.state import copy_of
from datasets.samples import Batch
from methods.ops.jigsaw import draw_orders, grey_tiles, orders, shuffle_tiles
from tests.conftest import toy_spec
from tests.test_federation import equal, run_rounds


def without_head(state):
    return {key: value for key, value in state.items() if not key.startswith("jigsaw.")}


@pytest.mark.parametrize("size", [30, 32, 40, 74])
def test_a_permutation_and_its_inverse_restore_every_bit(size):
    images = torch.randn(31, 3, size, size).contiguous(memory_format=torch.channels_last)
    places = orders(30)
    shuffled = shuffle_tiles(images, places)
    assert torch.equal(shuffled[0], images[0])
    assert not any(torch.equal(shuffled[k], images[k]) for k in range(1, 31))
    assert shuffled.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(shuffle_tiles(shuffled, places.argsort(1)), images)


def test_tiles_stand_where_the_permutation_says_and_the_edge_stays():
    image = torch.arange(9.0).view(1, 1, 3, 3).repeat_interleave(2, 2).repeat_interleave(2, 3)
    image = F.pad(image, (1, 1, 1, 1), value=-1.0)  # 8 pixels: tiles of 2 and one line at each edge
    places = torch.tensor([[8, 7, 6, 5, 4, 3, 2, 1, 0]])
    shuffled = shuffle_tiles(image, places)
    assert shuffled[0, 0, 1:7:2, 1:7:2].tolist() == [[8, 7, 6], [5, 4, 3], [2, 1, 0]]
    assert torch.equal(shuffled[..., 0, :], image[..., 0, :])
    assert (shuffled == -1).sum() == (image == -1).sum() == 28


def test_the_permutations_are_far_apart_and_always_the_same():
    places = orders(30)
    assert places.shape == (31, 9)
    assert places[0].tolist() == list(range(9))
    assert torch.equal(places.sort(1)[0], torch.arange(9).expand(31, 9))
    distances = (places[:, None] != places).sum(2) + 9 * torch.eye(31).long()
    assert distances.min() == 7
    orders.cache_clear()
    assert torch.equal(orders(30), places)


def test_orders_are_drawn_with_the_bias_to_whole_images():
    torch.manual_seed(0)
    drawn = draw_orders(20000, 0.7, 30, "cpu")
    shares = torch.bincount(drawn, minlength=31) / 20000
    assert shares[0] == pytest.approx(0.7 + 0.3 / 31, abs=0.01)
    assert shares[1:] == pytest.approx(torch.full((30,), 0.3 / 31), abs=0.004)


def test_only_chosen_tiles_turn_grey(federation):
    transform = federation(toy_spec("jigen")).clients[0].train.transform
    images = torch.rand(1, 3, 30, 30) * 2 - 1
    chosen = torch.zeros(1, 9, dtype=torch.bool)
    chosen[0, 5] = True  # middle row, right
    grey = grey_tiles(images, chosen, transform)
    changed = (grey != images).any(1)[0]
    assert changed[10:20, 20:].all()
    assert changed.sum() == 100
    pixels = transform.to_pixels(images)[0, :, 12, 25]
    luma = (pixels * torch.tensor([0.299, 0.587, 0.114])).sum()
    assert transform.to_pixels(grey)[0, :, 12, 25] == pytest.approx(luma.expand(3), abs=1e-6)


def test_the_head_has_31_outputs():
    model = make_method("jigen", {}).build(lambda: make_backbone("resnet18", 7, "none"))
    assert sum(p.numel() for p in model.jigsaw.parameters()) == 15903


def test_without_puzzles_it_is_fedavg_bit_for_bit(federation):
    plain = {"jigen": {"jigen_alpha": 0.0, "jigen_beta": 1.0}}
    ours = federation(toy_spec("jigen", overrides=plain))
    head = copy_of(ours.server.model.jigsaw.state_dict())
    state = run_rounds(ours)
    assert equal(without_head(state), run_rounds(federation(toy_spec("fedavg"))))
    assert torch.allclose(state["jigsaw.weight"], head["weight"], rtol=1e-6)
    puzzled = run_rounds(federation(toy_spec("jigen")))
    assert not equal(without_head(puzzled), without_head(state))
    assert not torch.allclose(puzzled["jigsaw.weight"], head["weight"], rtol=1e-3)


def losses_of(federation, order, **settings):
    """The method's loss on a batch with given orders, and the pieces it is made of."""
    ours = federation(toy_spec("jigen", overrides={"jigen": {"jigen_beta": 0.5, **settings}}))
    client = ours.clients[0]
    client.model.eval()
    images, labels = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])
    batch = Batch(images, labels, torch.zeros(4).long(), {"order": torch.tensor(order)})
    features = client.model.features(images)
    classes = F.cross_entropy(client.model.classifier(features), labels, reduction="none")
    puzzle = F.cross_entropy(client.model.jigsaw(features), batch.extras["order"])
    return ours.method.loss(client, batch).item(), classes, puzzle


def test_the_class_is_learnt_from_whole_images_and_the_puzzle_from_all(federation):
    loss, classes, puzzle = losses_of(federation, [0, 7, 0, 30], jigen_alpha=0.9)
    assert loss == pytest.approx(((classes[0] + classes[2]) / 2 + 0.9 * puzzle).item(), rel=1e-6)
    loss, classes, puzzle = losses_of(federation, [0, 7, 0, 30], jigen_ordered_only=False)
    assert loss == pytest.approx((classes.mean() + 0.7 * puzzle).item(), rel=1e-6)


def test_a_batch_without_a_whole_image_is_classified_entirely(federation):
    loss, classes, puzzle = losses_of(federation, [1, 2, 3, 4])
    assert loss == pytest.approx((classes.mean() + 0.7 * puzzle).item(), rel=1e-6)


def test_augment_shuffles_and_remembers_the_order(federation):
    ours = federation(toy_spec("jigen", overrides={"jigen": {"jigen_beta": 0.0}}))
    client = ours.clients[0]
    batch = next(iter(ours.method.batches(client)))
    shuffled = ours.method.augment(client, batch)
    order = shuffled.extras["order"]
    assert torch.equal(shuffle_tiles(shuffled.images, orders(30)[order].argsort(1)), batch.images)
    assert not torch.equal(shuffled.images, batch.images)
    assert torch.equal(shuffled.labels, batch.labels)


@pytest.mark.parametrize("expression", ["jigen", "jigen+fedbn", "jigen+silobn", "fedprox+jigen"])
def test_it_shares_nothing_but_weights_and_combines(federation, expression):
    ours = federation(toy_spec(expression))
    run_rounds(ours, 1)
    assert set(ours.server.traffic.counts) == {"down/weights", "up/weights"}
    assert compose(expression).info.shares == ()
    assert ("kept" in ours.clients[0].memory) == ("bn" in expression)
