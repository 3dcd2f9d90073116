"""StableFDG: shared and shifted styles, oversampling and exploration, attention; its switches."""

import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmark.backbones.base import backbones
from benchmark.costs import parameter_count
from benchmark.errors import UserError
from benchmark.federation import rounds
from benchmark.method import compose, make_method
from benchmark.state import copy_of
from methods.ops.capture import captured
from methods.ops.exploration import Plan, Slot, StyleExploration, StyleShifting, explored
from methods.ops.highlighter import Highlighter, average, next_of_class, weighted_average
from methods.ops.oversampling import class_balanced_rows, enlarged, supplemented
from methods.ops.partway import entering
from methods.ops.shared_styles import (
    centroids,
    client_style,
    derangements,
    drawn_styles,
    farthest,
    seed_rows,
    shift_styles,
)
from methods.ops.style import style_of
from tests.conftest import TRAINING, toy_spec
from tests.methods.parts import three_of_six
from tests.test_federation import equal, run_rounds

SIX = three_of_six()
OFF = {"stablefdg_p": 0.0, "stablefdg_attention": "off"}


def spec(method="stablefdg", changes=None, **fields):
    return toy_spec(method, overrides={"stablefdg": changes or {}}, **fields)


def maps(count=8, channels=3, side=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scale = torch.rand(count, channels, 1, 1, generator=generator) + 0.5
    return scale * torch.randn(count, channels, side, side, generator=generator) + scale


# Sharing


@pytest.mark.parametrize("count", range(2, 13))
@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_nobody_receives_its_own_style_and_every_style_is_handed_on_once(count, wanted):
    for seed in range(20):
        torch.manual_seed(seed)
        senders = derangements(count, wanted)
        assert len(senders) == count
        for receiver, others in enumerate(senders):
            assert receiver not in others
            assert len(set(others)) == len(others) == min(wanted, count - 1)
        for place in zip(*senders, strict=True):
            assert sorted(place) == list(range(count))


def test_every_derangement_of_four_occurs():
    torch.manual_seed(0)
    seen = {tuple(s[0] for s in derangements(4, 1)) for _ in range(300)}
    assert len(seen) == 9


def test_the_farthest_style_may_go_to_several():
    styles = [torch.full((4, 2), value) for value in (0.0, 1.0, 5.0)]
    assert farthest(styles, 1) == [[2], [2], [0]]
    assert farthest(styles, 3) == [[2, 1], [2, 0], [0, 1]]


def test_a_clients_style():
    means, stds = torch.tensor([[1.0], [3.0]]), torch.tensor([[2.0], [2.0]])
    paper = client_style(means, stds, as_variance=True)
    assert paper.flatten().tolist() == [2, 2, 1, 0]
    code = client_style(means, stds, as_variance=False)
    assert code.flatten().tolist() == pytest.approx([2, 2, math.sqrt(2 + 1e-6), 1e-3])
    alone = client_style(means[:1], stds[:1], as_variance=False)
    assert alone.flatten().tolist() == [1, 2, 0, 0]


def test_styles_are_those_of_the_first_stage_under_the_global_model(federation):
    ours = federation(spec())
    client = ours.clients[1]
    before = copy_of(ours.server.state)
    style = ours.method._style(ours.server, client)
    images = next(client.train.evaluation_batches()).images
    block = ours.server.model.eval().block1(images)
    mean, std = (part.flatten(1) for part in style_of(block))
    assert torch.allclose(style, client_style(mean, std, as_variance=False), atol=1e-6)
    assert style.shape == (4, 16)
    assert equal(before, ours.server.state)


def test_a_pass_partway_computes_nothing_behind(federation):
    model = federation(spec()).server.model
    images = torch.randn(2, 3, 32, 32)
    with captured(model.block1) as first, captured(model.block2) as second:
        found = entering(model, model.taps["block1"][0], images)
    assert torch.equal(found, first[0])
    assert second == []


@pytest.mark.parametrize("fields", [{}, SIX])
def test_what_is_sent_is_counted_and_declared(federation, fields):
    ours = federation(spec(**fields))
    received = []
    for round in rounds(ours.method, ours.server, ours.clients):
        styles = {client.id: client.scratch["stablefdg"] for client in round.chosen}
        for client in round.chosen:
            (style,) = client.inbox["style"]
            owner = [k for k, value in styles.items() if torch.equal(value, style)]
            assert owner != [client.id]
            received.append(owner[0])
    assert len(received) == 9
    counts = ours.server.traffic.counts
    assert counts["up/style"] == counts["down/style"] == 3 * 3 * 4 * 16 * 4
    kinds = {key.partition("/")[2] for key in counts} - {"weights"}
    assert kinds == set(compose("stablefdg").info.shares)


@pytest.mark.parametrize(
    "changes",
    [{"stablefdg_styles": 0}, {"stablefdg_p": 0.0}],
)
def test_without_use_for_styles_nothing_is_sent(federation, changes):
    ours = federation(spec(changes=changes))
    run_rounds(ours)
    assert not any("style" in key for key in ours.server.traffic.counts)


def test_a_single_participant_has_nobody_to_share_with(federation):
    ours = federation(spec(training=TRAINING.changed({"clients_per_round": 1})))
    run_rounds(ours)
    assert not any("style" in key for key in ours.server.traffic.counts)
    assert ours.clients[0]._traffic.counts["up/weights"] > 0


def test_three_styles_are_at_most_all_the_others(federation):
    six = federation(spec(changes={"stablefdg_styles": 3}, partition="single_domain_k:clients=2"))
    three = federation(spec(changes={"stablefdg_styles": 3}))
    for ours, count in ((six, 3), (three, 2)):
        run_rounds(ours, 1)
        assert {len(client.inbox["style"]) for client in ours.clients} == {count}


def test_the_code_starts_to_share_in_the_second_round(federation):
    ours = federation(spec(changes={"stablefdg_variant": "code"}))
    sent = []
    for _ in rounds(ours.method, ours.server, ours.clients):
        sent.append(ours.server.traffic.counts["up/style"])
    assert sent == [0, 3 * 256, 6 * 256]


def test_local_layers_give_local_styles(federation):
    ours = federation(spec("stablefdg+fedbn"))
    run_rounds(ours, 1)
    client = ours.clients[0]
    local = ours.method._style(ours.server, client)
    client.memory.clear()
    assert not torch.allclose(local, ours.method._style(ours.server, client), atol=1e-4)


# Shifting


@pytest.mark.parametrize("select", ["kmeanspp", "random"])
@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_shifting_leaves_the_kept_half_untouched(select, count):
    batch = maps(count)
    received = torch.tensor([[5.0, -4.0, 3.0], [2.0, 0.5, 1.0], [0.0] * 3, [0.0] * 3])
    torch.manual_seed(1)
    shifted = shift_styles(batch, received, select)
    untouched = torch.tensor([torch.equal(a, b) for a, b in zip(batch, shifted, strict=True)])
    assert untouched.sum() == (count + 1) // 2
    mean, std = (part.flatten(1) for part in style_of(shifted[~untouched]))
    assert torch.allclose(mean, received[0].expand_as(mean), atol=1e-5)
    assert torch.allclose(std, received[1].expand_as(std), atol=1e-4)


def test_the_codes_shifting_hands_out_centroids_and_the_received_style():
    batch, received = maps(), torch.zeros(4, 3)
    received[:2] = torch.tensor([7.0, 2.0])[:, None]
    torch.manual_seed(2)
    mean, std = (part.flatten(1) for part in style_of(shift_styles(batch, received, "code")))
    torch.manual_seed(2)
    drawn_styles(received, 8)
    points = torch.cat(style_of(batch), 1).flatten(1)
    centres = centroids(points, seed_rows(points, 4))
    assert torch.allclose(torch.cat([mean, std], 1)[:4], centres, atol=1e-4)
    assert torch.allclose(mean[4:], torch.full((4, 3), 7.0), atol=1e-5)
    assert torch.allclose(std[4:], torch.full((4, 3), 2.0), atol=1e-4)


def test_seeds_lie_far_apart_and_never_repeat():
    points = torch.tensor([[0.0], [0.0], [0.0], [9.0], [9.1], [0.0]])
    for seed in range(50):
        torch.manual_seed(seed)
        rows = seed_rows(points, 2)
        assert (points[rows] > 5).sum() == 1  # one of each group
        assert len(set(seed_rows(points, 6).tolist())) == 6
    torch.manual_seed(0)
    firsts = {int(seed_rows(points, 1)) for _ in range(100)}
    assert firsts == set(range(6))


def test_seeds_follow_the_squared_distance():
    points = torch.tensor([[0.0], [1.0], [3.0]])
    torch.manual_seed(0)
    drawn = [seed_rows(points, 2).tolist() for _ in range(4000)]
    after_zero = [second for first, second in drawn if first == 0]
    assert sum(second == 2 for second in after_zero) / len(after_zero) == pytest.approx(
        0.9, abs=0.03
    )


def test_one_step_of_k_means():
    points = torch.tensor([[0.0], [2.0], [10.0], [14.0]])
    assert centroids(points, torch.tensor([2, 0])).flatten().tolist() == [12, 1]


def test_drawn_styles_vary_by_their_widths_and_no_std_is_negative():
    torch.manual_seed(0)
    received = torch.tensor([[1.0], [0.1], [2.0], [3.0]])
    mean, std = drawn_styles(received, 20_000)
    assert mean.mean().item() == pytest.approx(1, abs=0.05)
    assert mean.std().item() == pytest.approx(2, abs=0.05)
    assert (std >= 0).all()
    assert (std == 0).float().mean().item() == pytest.approx(0.487, abs=0.02)


def test_the_papers_noise_has_the_product_of_the_variances(federation):
    ours = federation(spec(changes={"stablefdg_noise": "paper"}))
    client = ours.clients[0]
    client.scratch["stablefdg"] = torch.tensor([[0.0], [0.0], [4.0], [9.0]])
    other = torch.tensor([[1.0], [2.0], [5.0], [7.0]])
    assert ours.method._received(client, [other]).flatten().tolist() == [1, 2, 10, 21]
    code = federation(spec())
    assert torch.equal(code.method._received(client, [other]), other)
    run_rounds(ours)


def test_styles_are_constants_when_shifting_and_not_when_exploring():
    batch = maps(2).requires_grad_()
    received = torch.tensor([[1.0], [2.0], [0.0], [0.0]]).expand(4, 3)
    shift_styles(batch, received, "random").sum().backward()
    slopes = batch.grad.flatten(2)
    std = style_of(batch)[1].flatten(1)[:, :, None].expand_as(slopes)
    kept = (slopes == 1).all(2).all(1)
    assert kept.sum() == 1
    assert torch.allclose(slopes[~kept], (2 / std)[~kept], atol=1e-5)
    batch.grad = None
    mixed = through(batch, Plan(2, torch.zeros(2), 2, fires=(True,)), mixing=0.1)
    mixed.sum().backward()  # the mean of what is normalised does not depend on the input
    assert batch.grad.abs().max() < 1e-4


# Oversampling and exploration


@pytest.mark.parametrize(("count", "added"), [(6, [1, 2, 3]), (3, [0, 1, 2]), (1, [0, 0, 1])])
def test_the_papers_example_of_oversampling(count, added):
    labels = torch.tensor([0, 1, 0, 2, 1, 0])
    for seed in range(20):
        torch.manual_seed(seed)
        rows = class_balanced_rows(labels, 5, count)
        assert torch.bincount(labels[rows], minlength=5).tolist() == [*added, 0, 0]


def test_equal_classes_take_turns_by_chance():
    labels = torch.tensor([0, 1, 2, 2])
    torch.manual_seed(0)
    firsts = {labels[class_balanced_rows(labels, 3, 1)].item() for _ in range(50)}
    assert firsts == {0, 1}
    members = {class_balanced_rows(torch.tensor([4, 4, 4]), 5, 1).item() for _ in range(50)}
    assert members == {0, 1, 2}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=20), st.integers(0, 25))
def test_oversampled_classes_end_level(labels, count):
    labels = torch.tensor(labels)
    before = torch.bincount(labels, minlength=7)
    rows = class_balanced_rows(labels, 7, count)
    assert len(rows) == count
    after = before + torch.bincount(labels[rows], minlength=7)
    assert (after[before == 0] == 0).all()
    lowest = after[before > 0].min()
    grown = after > before
    assert (after[grown] <= lowest + 1).all()


def test_supplements_come_first_and_count_against_the_size():
    labels = torch.tensor([0, 0, 0, 1, 2, 1, 2])  # the last two are supplements
    rows, copies = enlarged(labels, 5, 5, 3, balanced=True)
    assert rows[:5].tolist() == [0, 1, 2, 3, 4]
    assert sorted(rows[5:7].tolist()) == [5, 6]
    assert copies == 3
    assert torch.bincount(labels[rows]).tolist() in ([4, 3, 3], [3, 4, 3], [3, 3, 4])
    rows, copies = enlarged(labels, 5, 1, 3, balanced=True)
    assert (len(rows), copies) == (6, 0)
    assert rows[5] in (5, 6)
    rows, copies = enlarged(labels[:5], 5, 4, 3, balanced=False)
    assert (len(rows), copies) == (9, 4)


def through(batch, plan, mixing=None, level=3.0, place=0):
    slot = Slot()
    module = StyleExploration(slot, place, level, mixing, clamp=False)
    with slot.following(plan):
        return module(batch)


def plan_of(batch, rows, fires=(True, False, False)):
    rows = torch.tensor(rows)
    copies = len(rows) - len(batch)
    return Plan(len(batch), rows, len(rows), fires=fires, rows=rows, copies=copies)


def test_level_0_copies_exactly_and_explored_styles_are_the_papers():
    batch = maps(4)
    plan = plan_of(batch, [0, 1, 2, 3, 2, 0])
    copied = through(batch, plan, level=0.0)
    assert torch.equal(copied[:4], batch)
    assert torch.allclose(copied[4:], batch[[2, 0]], atol=1e-5)
    mean, std = torch.tensor([1.0, 3.0, 1.0, 3.0]), torch.tensor([1.0, 2.0, 1.0, 2.0])
    new = explored((mean, std), 2, 3.0)
    assert new[0].tolist() == [1, 3, -2, 6]
    assert new[1].tolist() == [1, 2, -0.5, 3.5]
    assert explored((mean, std), 2, 3.0, clamp=True)[1].tolist() == [1, 2, 0, 3.5]


def test_copies_get_styles_far_from_the_batchs_mean():
    batch = maps(4)
    result = through(batch, plan_of(batch, [0, 1, 2, 3, 0, 1, 2, 3]))
    own, far = style_of(batch), style_of(result[4:])
    expected = own[0] + 3 * (own[0] - own[0].mean(0, keepdim=True))
    assert torch.allclose(far[0], expected, atol=1e-4)
    assert torch.equal(result[:4], batch)


def test_only_the_first_place_that_acts_enlarges_the_batch():
    batch = maps(4)
    plan = plan_of(batch, [0, 1, 2, 3, 0], fires=(False, True, True))
    assert torch.equal(through(batch, plan, place=0), batch)
    assert len(through(batch, plan, place=1)) == 5
    assert len(through(batch, plan, mixing=0.1, place=2)) == 4


def test_a_share_of_1_mixes_nothing_and_of_0_takes_the_partners_style():
    batch = maps(4)
    slot = Slot()
    module = StyleExploration(slot, 0, 3.0, 0.1, clamp=False)
    for share in (1, 0):
        module.shares = SimpleNamespace(sample=lambda shape, s=share: torch.full(shape, float(s)))
        torch.manual_seed(3)
        with slot.following(Plan(4, torch.zeros(4), 4, fires=(True,))):
            mixed = module(batch)
        torch.manual_seed(3)
        order = torch.arange(4) if share else torch.randperm(4)
        assert torch.allclose(style_of(mixed)[0], style_of(batch)[0][order], atol=1e-5)
        if share:
            assert torch.allclose(mixed, batch, atol=1e-5)


def test_places_are_inert_in_evaluation_and_without_a_plan():
    batch, slot = maps(4), Slot()
    places = [StyleExploration(slot, 0, 3.0, 0.1, False), StyleShifting(slot, "kmeanspp")]
    for place in places:
        assert place(batch) is batch
        place.eval()
        with slot.following(plan_of(batch, [0, 1, 2, 3, 0])):
            assert place(batch) is batch


# Attention


def highlighter(attention="both", normalise=True, slot=None, channels=6):
    torch.manual_seed(0)
    return Highlighter(slot or Slot(), average, channels, 5, attention, normalise)


@pytest.mark.parametrize("attention", ["self", "cross", "both", "conv"])
@pytest.mark.parametrize("normalise", [True, False])
def test_attention_weights_sum_to_1(attention, normalise):
    weights = highlighter(attention, normalise).attend(maps(3, 6), torch.tensor([1, 2, 0]))
    assert weights.shape == (3, 16)
    assert torch.allclose(weights.sum(1), torch.ones(3), atol=1e-6)
    assert (weights > 0).all()


def test_without_queries_attention_is_the_average():
    module = highlighter(normalise=False)
    torch.nn.init.zeros_(module.query.weight)
    batch = maps(3, 6)
    pooled = module(batch)
    assert torch.allclose(pooled[:, :6], batch.mean((2, 3)), atol=1e-6)
    assert torch.allclose(pooled[:, 6:], pooled[:, :6], atol=1e-5)


def test_two_positions():
    weights = torch.tensor([[0.0, math.log(3)]]).softmax(1)
    assert weights.flatten().tolist() == pytest.approx([0.25, 0.75])
    values = torch.tensor([[[[4.0, 8.0]]]])
    assert weighted_average(values, weights).item() == pytest.approx(7)
    assert average(values).item() == 6


@pytest.mark.parametrize("attention", ["self", "cross", "both"])
def test_scores_are_those_of_equation_8(attention):
    """The whole similarity matrix, averaged over the queries."""
    module, batch = highlighter(attention), maps(3, 6)
    partner = torch.tensor([2, 1, 0])
    queries, keys = (
        torch.nn.functional.normalize(layer(batch).flatten(2), dim=1)
        for layer in (module.query, module.key)
    )
    asked = {
        "self": queries,
        "cross": queries[partner],
        "both": (queries[partner] + queries) / 2,
    }[attention]
    scores = (asked.transpose(1, 2) @ keys).mean(1)
    given = None if attention == "self" else partner
    assert torch.allclose(module.attend(batch, given), scores.softmax(1), atol=1e-5)


def test_partners_are_the_next_of_the_class():
    assert next_of_class(torch.tensor([0, 1, 0, 0, 2])).tolist() == [2, 1, 3, 0, 4]


def test_only_a_plan_in_training_asks_others_and_drops_supplements():
    slot = Slot()
    module, batch = highlighter(slot=slot), maps(4, 6)
    alone = module(batch)
    with slot.following(Plan(3, torch.tensor([0, 0, 1, 1]), kept=3)):
        asked = module(batch)
        assert len(asked) == 3
        assert not torch.allclose(asked[:, 6:], alone[:3, 6:])
        assert torch.equal(module.eval()(batch), alone)


def test_a_dead_position_has_a_finite_gradient():
    module, batch = highlighter(), torch.zeros(2, 6, 2, 2, requires_grad=True)
    module(batch).sum().backward()
    assert module.query.bias.grad.isfinite().all()
    assert module.query.bias.grad.abs().max() < 1e4


def test_test_logits_do_not_depend_on_the_batch(federation):
    ours = federation(spec())
    run_rounds(ours, 1)
    model = ours.server.model.eval()
    images = next(ours.clients[0].val.evaluation_batches()).images
    with torch.no_grad():
        together = model(images)
        assert torch.equal(together, model(images))
        single = torch.cat([model(image[None]) for image in images])
    assert torch.allclose(together, single, atol=1e-5)


# The network


def on_meta(backbone, classes=5):
    with torch.device("meta"):
        return backbones[backbone].make(classes)


def added_parameters(backbone, classes, **changes) -> int:
    method = make_method("stablefdg", changes)
    built = method.build(lambda: on_meta(backbone, classes))
    return parameter_count(built) - parameter_count(on_meta(backbone, classes))


def test_parameters_on_resnet18_with_7_classes():
    # θq and θk with biases, and a classifier twice as wide: what is used.
    assert added_parameters("resnet18", 7) == 2 * (512 * 30 + 30) + 512 * 7 == 34_364
    # With the released value part (15,390) and 1 → 1 convolution (2): the paper's 0.44 %.
    released = added_parameters("resnet18", 7, stablefdg_variant="code")
    assert released == 46_172 + 3_584 == 49_756
    assert released / (11_180_103 + released) == pytest.approx(0.00443, abs=5e-6)
    assert added_parameters("resnet18", 7, stablefdg_attention="conv") == 34_364
    assert added_parameters("resnet18", 7, stablefdg_attention="off") == 0


def test_the_digits_networks_keep_their_flat_maps_unless_as_the_code():
    paper, code = (make_method("stablefdg", {"stablefdg_variant": v}) for v in ("paper", "code"))
    make = backbones["cnn_tiny_bn"].make
    assert paper.build(lambda: make(10)).feature_size == 4 * 64 + 64
    assert code.build(lambda: make(10)).feature_size == 64 + 64


@pytest.mark.parametrize("backbone", ["alexnet", "resnet18_b256"])
def test_layers_after_the_pooling_are_refused_in_one_line(backbone):
    with pytest.raises(UserError, match="layers between pooling and classifier") as error:
        make_method("stablefdg", {}).build(lambda: on_meta(backbone))
    assert "\n" not in str(error.value)
    style_only = make_method("stablefdg", {"stablefdg_attention": "off"})
    assert style_only.build(lambda: on_meta(backbone)).taps


def test_a_transformer_and_too_many_stages_are_refused():
    with pytest.raises(UserError, match="convolutional stages"):
        make_method("stablefdg", {}).build(lambda: on_meta("vit_tiny32"))
    with pytest.raises(UserError, match="no 5 convolutional stages"):
        make_method("stablefdg", {"stablefdg_stages": 5}).build(lambda: on_meta("resnet18"))


def test_a_copied_network_has_a_plan_of_its_own(federation):
    model = federation(spec()).server.model
    other = copy.deepcopy(model)
    assert other.style_plan is not model.style_plan
    assert all(
        place.slot is other.style_plan for place in other.modules() if hasattr(place, "slot")
    )
    assert other.pooling.squeeze.__self__ is other


# Training


def test_switched_off_it_is_fedavg_bit_for_bit(federation):
    assert equal(
        run_rounds(federation(spec(changes=OFF))), run_rounds(federation(toy_spec("fedavg")))
    )


def test_by_default_it_is_not(federation):
    style_only = federation(spec(changes={"stablefdg_attention": "off"}))
    fedavg = federation(toy_spec("fedavg"))
    one, other = run_rounds(style_only), run_rounds(fedavg)
    assert one.keys() == other.keys()
    assert not torch.allclose(one["head.weight"], other["head.weight"], atol=1e-3)


def first_loss(ours):
    """Labels and logits of one step of the first client."""
    client = ours.clients[0]
    ours.method.exchange(ours.server, ours.clients)
    ours.method.receive(ours.server, client)
    client.model.train()
    batch = next(iter(ours.method.batches(client)))
    seen = {}

    class Watching(type(ours.method).__mro__[-2]):
        def loss(self, client, batch):
            seen["batch"] = batch
            return super().loss(client, batch)

    kind = type("Watched", (type(ours.method), Watching), {})
    method = kind(**{f: getattr(ours.method, f) for f in ours.method.__dataclass_fields__})
    with captured(client.model.classifier) as logits:
        loss = method.loss(client, method.augment(client, batch))
    assert client.model.style_plan.plan is None
    return batch, seen["batch"], logits[0], loss


def test_the_loss_is_over_the_enlarged_batch_with_its_labels(federation):
    changes = {"stablefdg_p": 1.0, "stablefdg_size": 1.5}
    batch, given, logits, loss = first_loss(federation(spec(changes=changes)))
    assert len(batch) == 8
    assert len(logits) == len(given.labels) == len(given.domains) == 20
    assert torch.equal(given.labels[:8], batch.labels)
    counts = torch.bincount(given.labels, minlength=4)
    assert counts.max() - counts.min() <= max(1, torch.bincount(batch.labels).max() - counts.min())
    expected = torch.nn.functional.cross_entropy(logits, given.labels)
    assert loss.item() == pytest.approx(expected.item())


@pytest.mark.parametrize(("attention", "passing"), [("both", True), ("self", False)])
def test_without_exploration_supplements_are_only_asked(federation, attention, passing):
    changes = {"stablefdg_styles": 0, "stablefdg_size": 0.0, "stablefdg_attention": attention}
    training = TRAINING.changed({"batch_size": 3})
    ours = federation(spec(changes=changes, training=training))
    with captured(ours.clients[0].model.block4) as last:
        batch, given, logits, _ = first_loss(ours)
    assert len(batch.labels.unique()) > 1
    assert len(logits) == len(given.labels) == len(batch) == 3
    assert (len(last[0]) > 3) == passing


def test_a_class_with_one_sample_gets_a_second_one(federation):
    client = federation(spec()).clients[0]
    rows = [
        *(client.train.labels == 0).nonzero()[0][:3],
        (client.train.labels == 2).nonzero()[0][0],
    ]
    batch = client.train.training_batch(np.array(rows), torch.Generator())
    larger = supplemented(client, batch)
    assert larger.labels.tolist() == [0, 0, 0, 2, 2]
    assert torch.equal(larger.images[:4], batch.images)
    assert len(larger.images) == len(larger.domains) == 5
    client.scratch.clear()
    client.train.labels[client.train.labels == 2] = 0
    client.train.labels[rows[-1]] = 2  # the client has no other
    assert len(supplemented(client, batch)) == 4


def test_a_client_that_misses_classes_and_a_tiny_batch_train(federation):
    training = TRAINING.changed({"batch_size": 1})
    ours = federation(spec(changes={"stablefdg_p": 1.0}, training=training))
    ours.clients[0].train.labels[:] = 3
    assert all(value.isfinite().all() for value in run_rounds(ours).values())


SWITCHES = [
    {"stablefdg_share": "largest", "stablefdg_styles": 3},
    {"stablefdg_select": "random"},
    {"stablefdg_select": "code", "stablefdg_variant": "code"},
    {"stablefdg_oversample": "random", "stablefdg_size": 0.5},
    {"stablefdg_size": 0.0},
    {"stablefdg_mix": False, "stablefdg_styles": 0, "stablefdg_attention": "off"},
    {"stablefdg_mix": False, "stablefdg_size": 0.0},
    {"stablefdg_stages": 4, "stablefdg_p": 0.9},
    {"stablefdg_attention": "self"},
    {"stablefdg_attention": "cross", "stablefdg_supplement": False},
    {"stablefdg_attention": "conv", "stablefdg_normalise": False},
    {"stablefdg_clamp": True, "stablefdg_width": 7, "stablefdg_beta": 0.5},
]


@pytest.mark.parametrize("changes", SWITCHES, ids=str)
def test_every_switch_trains_and_changes_something(federation, changes):
    default, changed = federation(spec()), federation(spec(changes=changes))
    state = run_rounds(changed)
    assert all(value.isfinite().all() for value in state.values())
    assert not equal(state, run_rounds(default))


@pytest.mark.parametrize(
    "name",
    [
        "fedprox+stablefdg",
        "stablefdg+fedbn",
        "ga+stablefdg",
        "fedsam+stablefdg",
        "swa+stablefdg",
        "stablefdg+mixstyle",
    ],
)
def test_it_composes(federation, name):
    state = run_rounds(federation(toy_spec(name)))
    assert all(value.isfinite().all() for value in state.values())
