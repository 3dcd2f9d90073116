"""FedADG: its losses, who learns from what, what stays with the client and what is averaged."""

import math

import pytest
import torch
import torch.nn.functional as F

from benchmark.backbones.base import make_backbone
from benchmark.errors import UserError
from benchmark.federation import rounds, visit
from benchmark.method import compose, make_method
from benchmark.state import batchnorm_keys, copy_of
from methods import fedadg as module
from methods.ops.alignment import (
    discriminator_loss,
    extractor_loss,
    fixed_reference,
    generator_loss,
    one_hot,
    smoothing_term,
)
from tests.conftest import TRAINING, toy_spec
from tests.methods.parts import three_of_six
from tests.test_federation import equal, run_rounds

PARTIAL = three_of_six(rounds=5)


def fedadg(federation, training=TRAINING, method="fedadg", **hparams):
    return federation(toy_spec(method, training=training, overrides={"fedadg": hparams}))


def visiting(ours, number=0):
    """A client in the alignment phase of its first visit, and a batch."""
    client = ours.clients[number]
    ours.method.prepare(ours.server, ours.clients)
    torch.manual_seed(number)
    ours.method.receive(ours.server, client)
    client.model.train()
    client.lr = client.training.lr
    client.optimizer = ours.method.optimizer(client)
    client.scratch["adg_steps"] = 10**6
    return client, next(ours.method.batches(client))


def modules(client):
    return {
        "model": client.model,
        "generator": client.scratch["adg_generator"],
        "discriminator": client.scratch["adg_discriminator"],
    }


def snapshot(client):
    return {
        name: {key: w.detach().clone() for key, w in part.named_parameters()}
        for name, part in modules(client).items()
    }


def test_a_discriminator_that_cannot_tell_gives_the_printed_losses():
    half = torch.full((6,), 0.5)
    assert discriminator_loss(half, half).item() == 0.5
    assert discriminator_loss(half, half, "paper").item() == -0.5
    assert extractor_loss(half).item() == 0.25
    assert generator_loss(half).item() == generator_loss(half, "paper").item() == 0.25


def test_the_discriminator_wants_extracted_0_and_generated_1_in_both_forms():
    sure, fooled = (torch.zeros(4), torch.ones(4)), (torch.ones(4), torch.zeros(4))
    assert discriminator_loss(*sure).item() == 0
    assert discriminator_loss(*fooled).item() == 2
    assert discriminator_loss(*sure, "paper").item() == -2
    assert discriminator_loss(*fooled, "paper").item() == 0
    assert generator_loss(torch.zeros(4)).item() == 0  # it passes for extracted features
    assert generator_loss(torch.ones(4), "paper").item() == 0


def test_smoothed_labels_give_the_wrong_classes_their_mass():
    """p = (0.8, 0.2), 0.1 on the wrong class: 0.9 · 0.223144 + 0.1 · 1.609438."""
    logits, labels = torch.tensor([[0.8, 0.2]]).log(), torch.tensor([0])
    smoothed = F.cross_entropy(logits, labels) + smoothing_term(logits, labels, 0.1)
    assert smoothed.item() == pytest.approx(0.361773, abs=1e-6)
    torch.manual_seed(0)
    logits, labels = torch.randn(9, 5), torch.arange(9) % 5
    smoothed = F.cross_entropy(logits, labels) + smoothing_term(logits, labels, 0.1)
    same = F.cross_entropy(logits, labels, label_smoothing=0.1 * 5 / 4)
    assert smoothed.item() == pytest.approx(same.item(), abs=1e-6)


@pytest.mark.parametrize("hparams", [{"adg_lambda": 0.0}, {"adg_align": False}])
def test_without_the_adversarial_term_it_is_fedavg_bit_for_bit(federation, hparams):
    ours = fedadg(federation, adg_smoothing=0.0, **hparams)
    fedavg = run_rounds(federation(toy_spec("fedavg")))
    assert equal(run_rounds(ours), fedavg)
    assert set(ours.server.traffic.counts) == {"up/weights", "down/weights"}
    assert not equal(run_rounds(fedadg(federation, adg_smoothing=0.0)), fedavg)
    assert not equal(run_rounds(fedadg(federation, **hparams)), fedavg)  # smoothing alone


def test_the_code_weighs_the_other_way_round():
    paper, code = (make_method("fedadg", {"adg_weights": name}) for name in ("paper", "code"))
    assert paper.lambda_0 == 0.85
    assert code.lambda_0 == pytest.approx(0.15)


def test_the_loss_is_the_weighted_sum_and_reaches_the_network_alone(federation):
    ours = fedadg(federation)
    client, batch = visiting(ours)
    loss = ours.method.loss(client, batch)
    features = client.model.features(batch.images)
    logits = client.model.classifier(features)
    codes = one_hot(batch.labels, 4, 1.0)
    adversarial = (1 - client.scratch["adg_discriminator"](features, codes)).square().mean()
    error = F.cross_entropy(logits, batch.labels, label_smoothing=0.1 * 4 / 3)
    assert loss.item() == pytest.approx((0.85 * adversarial + 0.15 * error).item(), abs=1e-6)
    loss.backward()
    gradients = {
        name: [w.grad for w in part.parameters()] for name, part in modules(client).items()
    }
    assert all(
        gradient is None for name in ("generator", "discriminator") for gradient in gradients[name]
    )
    total = gradients["model"]
    client.model.zero_grad()
    (0.15 * error).backward()
    alone = [weight.grad for weight in client.model.parameters()]
    assert not torch.allclose(total[0], alone[0], atol=1e-6)  # through D to F
    assert torch.allclose(total[-1], alone[-1], atol=1e-6)  # the classifier learns from L_err only


def test_one_step_moves_the_generator_and_the_discriminator(federation):
    ours = fedadg(federation)
    client, batch = visiting(ours)
    before, statistics = snapshot(client), copy_of(client.state)
    ours.method.train_adversaries(client, batch)
    after = snapshot(client)
    assert not any(
        torch.equal(before["generator"][k], after["generator"][k]) for k in before["generator"]
    )
    assert not equal(before["discriminator"], after["discriminator"])
    assert equal(copy_of(client.state), statistics)  # neither weights nor running statistics
    assert all(weight.grad is None for weight in client.model.parameters())
    assert client.model.training


def test_each_adversary_descends_its_own_loss_with_the_other_frozen(federation, monkeypatch):
    """D first and on detached features, then G, whose step leaves D as it is."""
    order, original = [], module.descend

    def watched(optimizer, loss):
        before = snapshot(client)
        original(optimizer, loss)
        moved = [name for name, state in snapshot(client).items() if not equal(state, before[name])]
        order.append(moved)

    monkeypatch.setattr(module, "descend", watched)
    ours = fedadg(federation)
    client, batch = visiting(ours)
    ours.method.step(client, batch)
    assert order == [["discriminator"], ["generator"]]


def test_toward_and_the_papers_generator_loss_move_it_in_opposite_ways(federation):
    answers = {}
    for form in ("toward", "paper"):
        ours = fedadg(federation, adg_g_loss=form, adg_d_rate=0.0, adg_g_rate=10.0)
        client, batch = visiting(ours)
        codes = one_hot(batch.labels, 4, 1.0)

        def answer(client=client, codes=codes):
            torch.manual_seed(5)
            features = client.scratch["adg_generator"](codes)
            return client.scratch["adg_discriminator"](features, codes).mean().item()

        before = answer()
        for _ in range(3):
            ours.method.train_adversaries(client, batch)
        answers[form] = answer() - before
    assert answers["toward"] < 0 < answers["paper"]


@pytest.mark.parametrize("form", ["lsgan", "paper"])
def test_the_discriminator_learns_to_tell_generated_from_extracted(federation, form):
    ours = fedadg(federation, adg_g_rate=0.0, adg_d_loss=form)
    client, batch = visiting(ours)
    codes, discriminator = one_hot(batch.labels, 4, 1.0), client.scratch["adg_discriminator"]

    def difference():
        with torch.no_grad():
            generated = discriminator(client.scratch["adg_generator"](codes), codes)
            client.model.eval()
            extracted = discriminator(client.model.features(batch.images), codes)
            client.model.train()
        return (generated - extracted).mean().item()

    before = difference()
    for _ in range(10):
        ours.method.train_adversaries(client, batch)
    assert difference() > before + 0.05


def test_the_network_learns_to_pass_for_generated(federation):
    """With the adversarial term alone and a still discriminator, D(h) rises."""
    ours = fedadg(federation, adg_lambda=1.0, adg_d_rate=0.0)
    client, batch = visiting(ours)
    codes = one_hot(batch.labels, 4, 1.0)
    answers = []
    for _ in range(6):
        features = client.model.features(batch.images)
        answers.append(client.scratch["adg_discriminator"](features, codes).mean().item())
        ours.method.step(client, batch)
    assert answers[-1] > answers[0]


def test_the_discriminator_stays_on_its_client_and_its_projection_never_changes(federation):
    ours = fedadg(federation)
    projections = {}
    for _ in rounds(ours.method, ours.server, ours.clients):
        states = [client.memory["adg_discriminator"] for client in ours.clients]
        for client, state in zip(ours.clients, states, strict=True):
            first = projections.setdefault(client.id, state["projection"].clone())
            assert torch.equal(state["projection"], first)
        for key in states[0]:
            assert not torch.equal(states[0][key], states[1][key])
    assert states[0]["projection"].shape == (256, 128)
    assert len(projections) == 3
    plain = federation(toy_spec("fedavg")).server.state
    assert ours.server.state.keys() == plain.keys()
    assert set(ours.server.memory["fedadg"]) == {
        f"layers.{layer}.{part}" for layer in (0, 2) for part in ("weight", "bias")
    }
    assert {kind.split("/")[1] for kind in ours.server.traffic.counts} == {"weights", "generator"}


def test_the_discriminator_and_its_momentum_are_taken_up_again(federation):
    ours = fedadg(federation, TRAINING.changed({"schedule": "step", "step_rounds": 1}))
    run_rounds(ours, 1)
    client = ours.clients[0]
    client.round = ours.server.round = 1
    stored = copy_of(client.memory["adg_discriminator"])
    ours.method.receive(ours.server, client)
    client.lr = ours.method.learning_rate(client)
    ours.method.optimizer(client)
    assert equal(copy_of(client.scratch["adg_discriminator"].state_dict()), stored)
    optimizer = client.scratch["adg_d_optimizer"]
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.7 * 0.005)
    assert all("momentum_buffer" in state for state in optimizer.state.values())
    assert not client.scratch["adg_g_optimizer"].state  # the generator is new every round


@pytest.mark.parametrize(
    ("training", "warm", "aligned"),
    [
        (TRAINING.changed({"local_steps": 10}), 3, 7),
        (TRAINING.changed({"local_steps": None, "local_epochs": 10}), 3 * 4, 7 * 4),
        (TRAINING.changed({"local_steps": 2}), 1, 1),
    ],
)
def test_the_two_phases_are_three_and_seven_tenths_of_local_work(
    federation, monkeypatch, training, warm, aligned
):
    seen = []
    ours = fedadg(federation, training)
    original = type(ours.method).train_adversaries
    monkeypatch.setattr(
        type(ours.method),
        "train_adversaries",
        lambda self, client, batch: (
            seen.append(client.scratch["adg_steps"]) or original(self, client, batch)
        ),
    )
    ours.method.prepare(ours.server, ours.clients)
    _, _, steps = visit(ours.method, ours.server, ours.clients[0])
    assert steps == warm + aligned
    assert seen == list(range(warm, warm + aligned))


def test_a_warm_visit_trains_on_smoothed_labels_only_and_no_generator_moves(federation):
    ours = fedadg(federation, adg_warm=1.0)
    smoothed = fedadg(federation, adg_align=False)
    assert equal(run_rounds(ours), run_rounds(smoothed))
    torch.manual_seed(0)
    ours.method.prepare(ours.server, ours.clients)
    initial = copy_of(ours.server.memory["fedadg"])
    ours.method.aggregate(ours.server, _updates(ours))
    for key, value in ours.server.memory["fedadg"].items():
        assert torch.allclose(value, initial[key], atol=1e-7)


def _updates(ours):
    for client in ours.clients:
        update, _, _ = visit(ours.method, ours.server, client)
        update.weight = 1 / len(ours.clients)
        yield update


@pytest.mark.parametrize(
    ("backbone", "numbers", "megabytes"), [("resnet18", 528_896, 2.1), ("alexnet", 25_202_688, 101)]
)
def test_the_generators_size_is_that_of_the_cost_notes(backbone, numbers, megabytes):
    with torch.device("meta"):
        method = make_method("fedadg", {})
        model = make_backbone(backbone, 7, "none")
        generator, discriminator = method.make_generator(model), method.make_discriminator(model)
    found = sum(weight.numel() for weight in generator.parameters())
    assert found == numbers
    assert found * 4 / 1e6 == pytest.approx(megabytes, rel=0.02)
    features = model.feature_size
    assert discriminator.projection.shape == (features, 1024 if features > 1024 else 256)
    assert discriminator.layers[0].out_features == features


def test_the_generator_crosses_once_each_way_and_round(federation):
    ours = fedadg(federation)
    run_rounds(ours)
    size = sum(value.numel() * 4 for value in ours.server.memory["fedadg"].values())
    assert size == 4 * ((256 + 4) * 256 + 256 + 256 * 256 + 256)
    counts = dict(ours.server.traffic.counts)
    assert counts["up/generator"] == counts["down/generator"] == 3 * 3 * size
    assert {kind.split("/")[1] for kind in counts} - {"weights"} == set(
        compose("fedadg").info.shares
    )


def test_absent_clients_keep_their_discriminators_and_do_not_count_in_the_generator(federation):
    ours = federation(toy_spec("fedadg", **PARTIAL))
    sent, weights = {}, {}
    original = type(ours.method).upload

    def watched(self, client):
        update = original(self, client)
        sent[client.id] = update.extras["generator"]
        return update

    object.__setattr__(ours.method, "upload", watched.__get__(ours.method))
    before, met = {}, set()
    for round in rounds(ours.method, ours.server, ours.clients):
        chosen = {client.id for client in round.chosen}
        assert len(chosen) == 3 and set(sent) == chosen
        weights = dict(
            zip(sorted(chosen), ours.method.weigh(ours.server, round.chosen), strict=True)
        )
        for key, value in ours.server.memory["fedadg"].items():
            mean = sum(weights[number] * sent[number][key] for number in chosen)
            assert torch.allclose(value, mean, atol=1e-6)
        for client in ours.clients:
            held = client.memory.get("adg_discriminator")
            assert (held is not None) == (client.id in met | chosen)
            if client.id in met - chosen:
                assert equal(held, before[client.id])
            if held is not None:
                before[client.id] = copy_of(held)
        met |= chosen
        sent.clear()
    assert len(met) > 3


@pytest.mark.parametrize("reference", ["gaussian", "uniform", "laplace"])
def test_a_fixed_reference_needs_no_generator_and_shares_nothing(federation, reference):
    ours = fedadg(federation, adg_reference=reference)
    state = run_rounds(ours)
    assert set(ours.server.traffic.counts) == {"up/weights", "down/weights"}
    assert "fedadg" not in ours.server.memory
    assert "adg_discriminator" in ours.clients[0].memory
    assert not equal(state, run_rounds(fedadg(federation, adg_align=False)))


def test_fixed_references_are_the_papers_distributions():
    torch.manual_seed(0)
    for kind, std, mean_size in (
        ("gaussian", 1.0, math.sqrt(2 / math.pi)),
        ("uniform", math.sqrt(1 / 3), 0.5),
        ("laplace", 1.0, 1 / math.sqrt(2)),  # scale 1/√2: variance 1
    ):
        drawn = fixed_reference(kind, 400, 250)
        assert drawn.shape == (400, 250)
        assert drawn.mean().item() == pytest.approx(0, abs=0.02)
        assert drawn.std().item() == pytest.approx(std, abs=0.02)
        assert drawn.abs().mean().item() == pytest.approx(mean_size, abs=0.02)
    assert fixed_reference("uniform", 100, 100).abs().max() <= 1


def test_ablations_change_what_the_adversaries_see(federation):
    ours = fedadg(federation, adg_onehot=0.0, adg_projection=False)
    client, batch = visiting(ours)
    assert client.scratch["adg_generator"].layers[0].in_features == 256
    discriminator = client.scratch["adg_discriminator"]
    assert discriminator.layers[0].in_features == 256
    assert discriminator.projection.numel() == 0
    before = snapshot(client)
    ours.method.step(client, batch)
    assert not any(equal(before[name], state) for name, state in snapshot(client).items())
    assert one_hot(torch.tensor([2]), 4, 0.7).tolist() == [[0.0, 0.0, pytest.approx(0.7), 0.0]]
    full, _ = visiting(fedadg(federation))
    assert full.scratch["adg_generator"].layers[0].in_features == 256 + 4
    assert full.scratch["adg_discriminator"].layers[0].in_features == 128 + 4


def test_auxiliary_passes_do_not_count_in_batch_normalisation(federation):
    ours = fedadg(federation)
    state = run_rounds(ours)
    counters = batchnorm_keys(ours.server.model).counters
    assert {state[key].item() for key in counters} == {3 * 2}


def test_a_client_without_some_class_trains(federation):
    ours = fedadg(federation)
    client = ours.clients[0]
    client.train.labels[:] = client.train.labels % 2
    for round in rounds(ours.method, ours.server, ours.clients):
        assert math.isfinite(round.loss)


def test_with_fedbn_the_layers_and_the_discriminator_stay(federation):
    ours = fedadg(federation, method="fedadg+fedbn")
    run_rounds(ours)
    memory = ours.clients[0].memory
    assert set(memory["kept"]) == batchnorm_keys(ours.server.model).all
    assert "adg_discriminator" in memory
    assert not equal(ours.server.state, run_rounds(fedadg(federation)))


def test_with_fedprox_its_loss_takes_the_place_of_the_error(federation):
    spec = toy_spec("fedadg+fedprox", overrides={"fedprox": {"mu": 0.0}})
    alone = run_rounds(fedadg(federation))
    assert equal(run_rounds(federation(spec)), alone)
    pulled = toy_spec("fedadg+fedprox", overrides={"fedprox": {"mu": 10.0}})
    assert not equal(run_rounds(federation(pulled)), alone)


def test_a_projection_must_project(federation):
    with pytest.raises(
        UserError, match="adg_projection_size=256 must be less than the 256 features"
    ):
        fedadg(federation, adg_projection_size=256)
    fedadg(federation, adg_projection_size=256, adg_projection=False)
