"""CSAC: local acquisition, fusion by divergence, calibration to private teachers."""

import pytest
import torch
import torch.nn.functional as F

from benchmark.errors import UserError
from benchmark.federation import rounds
from benchmark.method import compose, make_method
from benchmark.spec import Training
from benchmark.state import batchnorm_keys, copy_of, parameter_names, weighted_mean
from methods.csac import acquisition_batches, fused
from methods.ops.calibration import WIDTHS, Calibration
from methods.ops.cross_layer import CrossLayerAttention
from methods.ops.kernels import kernel_distance
from tests.conftest import TRAINING, toy_spec
from tests.methods.parts import three_of_six
from tests.test_federation import equal, run_rounds

SIX = three_of_six()


def with_hparams(name="csac", training=TRAINING, **hparams):
    return toy_spec(name, training=training, overrides={"csac": {"pretrain_rounds": 1, **hparams}})


def scalars(*values):
    return [{"w": torch.tensor([float(value)])} for value in values]


def test_fusion_of_0_0_and_3_is_one_and_a_half():
    """m = 1, distances 1, 1, 2, shares ¼, ¼, ½."""
    assert fused(scalars(0, 0, 3), {"w"})["w"].tolist() == [1.5]


def test_fusion_of_two_clients_is_their_mean_exactly():
    torch.manual_seed(0)
    states = [{"w": torch.randn(50, 7), "b": torch.randn(3)} for _ in range(2)]
    result = fused(states, {"w", "b"})
    for key in ("w", "b"):
        assert torch.equal(result[key], (states[0][key] + states[1][key]) / 2)


def test_fusion_of_equal_models_is_that_model():
    state = {"w": torch.randn(20, generator=torch.Generator().manual_seed(1))}
    assert torch.equal(fused([state] * 3, {"w"})["w"], state["w"])


def test_each_tensor_has_shares_of_its_own_and_buffers_take_the_plain_mean():
    states = [
        {"a": torch.tensor([a]), "b": torch.tensor([b]), "mean": torch.tensor([b]), "n": n}
        for a, b, n in zip((0.0, 0.0, 3.0), (3.0, 0.0, 0.0), torch.tensor([4, 5, 6]), strict=True)
    ]
    result = fused(states, {"a", "b"})
    assert result["a"].tolist() == [1.5]
    assert result["b"].tolist() == [1.5]
    assert result["mean"].item() == pytest.approx(1.0)
    assert result["n"] == 4


def test_the_distance_of_equal_batches_is_exactly_zero():
    torch.manual_seed(0)
    x = torch.randn(4, 16, 40) * 3 + 5
    assert kernel_distance(x, x.clone(), WIDTHS).tolist() == [0.0] * 4
    same = torch.ones(8, 5)
    assert kernel_distance(same, same, WIDTHS).item() == 0


def test_the_distance_is_the_v_statistic_written_out():
    """Also its scale: kernels 3⁻³ … 3 times the mean squared distance of all 2B × 2B pairs."""
    torch.manual_seed(0)
    x, y = torch.randn(6, 4, dtype=torch.double), torch.randn(6, 4, dtype=torch.double) + 1
    both = torch.cat([x, y])
    squares = (both[:, None] - both).square().sum(2)
    kernel = sum(torch.exp(-squares / (2 * 3.0**u * squares.mean())) for u in range(-3, 2))
    expected = kernel[:6, :6].mean() + kernel[6:, 6:].mean() - 2 * kernel[:6, 6:].mean()
    assert kernel_distance(x, y, WIDTHS).item() == pytest.approx(expected.item(), rel=1e-9)
    stacked = kernel_distance(torch.stack([x, y]), torch.stack([y, y]), WIDTHS)
    assert stacked.tolist() == pytest.approx([expected.item(), 0.0])


def test_the_distance_oracle_of_two_points():
    """One sample each, at distance 1: the mean of all four pairs is ½, so the kernel across is
    e⁻²⁷ + e⁻⁹ + e⁻³ + e⁻¹ + e^(−1/3) = 1.134321, and 5 within each."""
    value = kernel_distance(torch.zeros(1, 1), torch.ones(1, 1), WIDTHS)
    assert value.item() == pytest.approx(7.731358, abs=1e-5)


def test_attention_is_the_mean_energy_written_out():
    torch.manual_seed(0)
    shapes = [(4, 8, 8), (6, 4, 4), (5, 2, 2)]
    attention = CrossLayerAttention(shapes, channels=3)
    maps = [[torch.randn(7, *shape) for shape in shapes] for _ in range(2)]
    first, second = attention.project(*maps)
    assert first.shape == second.shape == (3, 7, 3, 2, 2)
    weights = attention.weights(first, second)
    for i in range(3):
        positions, channels = [], []
        for j in range(3):
            query = attention.query[i](first[i]).flatten(2)
            key = attention.key[j](second[j]).flatten(2)
            positions.append(torch.bmm(query.mT, key).mean())
            one, other = first[i].flatten(2), second[j].flatten(2)
            channels.append(torch.bmm(one, other.mT).mean())
        expected = torch.stack(positions).softmax(0) / 2 + torch.stack(channels).softmax(0) / 2
        assert torch.allclose(weights[i], expected, atol=1e-6)
    assert not weights.requires_grad


def test_without_calibration_acquisition_and_divergence_it_is_fedavg_bit_for_bit(federation):
    spec = with_hparams(csac_lambda=0.0, csac_fusion="mean", pretrain_rounds=0)
    ours, plain = run_rounds(federation(spec)), run_rounds(federation(toy_spec()))
    assert equal(ours, plain)


def test_without_calibration_and_divergence_it_is_fedavg_from_the_fused_teachers(federation):
    ours = federation(with_hparams(csac_lambda=0.0, csac_fusion="mean"))
    plain = federation(toy_spec())
    loop = rounds(ours.method, ours.server, ours.clients)
    next(loop)
    teachers = [client.memory["teacher"] for client in ours.clients]
    start = weighted_mean(teachers, ours.method.weigh(ours.server, ours.clients))
    for key, value in start.items():
        plain.server.state[key].copy_(value)
    assert equal(ours.server.state, run_rounds(plain, 1))


def test_acquisition_trains_each_client_alone_on_work_of_its_own(federation):
    ours = federation(with_hparams(pretrain_rounds=4))
    start = copy_of(ours.server.state)
    ours.method.prepare(ours.server, ours.clients)
    teachers = [client.memory["teacher"] for client in ours.clients]
    for teacher in teachers:
        assert not equal(teacher, start)
        assert teacher["block1.1.num_batches_tracked"] == 8  # 4 times the protocol's 2 steps
    assert not equal(teachers[0], teachers[1])
    names = parameter_names(ours.server.model)
    expected = fused(teachers, names)
    assert equal(ours.server.state, expected)
    losses = []
    for client, teacher in zip(ours.clients, teachers, strict=True):
        batch = next(client.train.evaluation_batches())
        for state in (start, teacher):
            client.model.load_state_dict(state)
            client.model.eval()
            losses.append(F.cross_entropy(client.model(batch.images), batch.labels).item())
    assert all(after < before for before, after in zip(losses[::2], losses[1::2], strict=True))


@pytest.mark.parametrize(
    ("work", "steps"), [({"local_steps": 2}, 18), ({"local_steps": None, "local_epochs": 2}, 72)]
)
def test_acquisition_is_nine_times_a_rounds_work(federation, work, steps):
    """Of 36 to 39 training images and batches of 8, an epoch is 4 steps."""
    assert make_method("csac", {}).pretrain_rounds == 9
    training = Training(**{"rounds": 1, "batch_size": 8, **work})
    client = federation(toy_spec("csac", training=training)).clients[0]
    assert client.size // 8 == 4
    assert sum(1 for _ in acquisition_batches(client, 9)) == steps


def test_what_is_frozen_stays_and_what_is_trained_moves(federation):
    ours = federation(with_hparams())
    method, server, client = ours.method, ours.server, ours.clients[0]
    method.prepare(server, ours.clients)
    teacher = copy_of(client.memory["teacher"])
    method.receive(server, client)
    client.model.train()
    client.lr, client.optimizer = 0.05, method.optimizer(client)
    calibration = client.scratch["csac"]
    before = {name: copy_of(part.state_dict()) for name, part in parts(client).items()}
    for batch in method.batches(client):
        method.step(client, batch)
    after = {name: part.state_dict() for name, part in parts(client).items()}
    assert equal(calibration.teacher.state_dict(), teacher)
    assert equal(client.memory["teacher"], teacher)
    assert {name: equal(before[name], after[name]) for name in before} == {
        "model": False,
        "first": False,
        "second": False,
        "query": True,
        "key": True,
    }
    method.upload(client)
    assert "csac" not in client.scratch


def parts(client):
    attention = client.scratch["csac"].attention
    named = {name: getattr(attention, name) for name in ("first", "second", "query", "key")}
    return {"model": client.model, **named}


def test_the_calibration_is_cross_entropy_plus_the_distances(federation):
    """A model that is its own teacher, in evaluation mode, is at distance 0 in its logits; in its
    layers it is not, because pairs of different layers count."""
    for calib, zero in (("released", True), ("full", False)):
        ours = federation(with_hparams(calib=calib))
        method, client = ours.method, ours.clients[0]
        method.prepare(ours.server, ours.clients)
        method.receive(ours.server, client)
        batch = next(client.train.evaluation_batches(8))
        client.model.load_state_dict(client.memory["teacher"])
        client.model.eval()
        plain = F.cross_entropy(client.model(batch.images), batch.labels)
        loss = method.loss(client, batch)
        assert (loss.item() == plain.item()) == zero
        client.model.load_state_dict(ours.clients[1].memory["teacher"])
        client.model.eval()
        logits = client.model(batch.images)
        target = client.scratch["csac"].teacher(batch.images)
        expected = F.cross_entropy(logits, batch.labels) + 0.6 * kernel_distance(
            logits, target, WIDTHS
        )
        loss = method.loss(client, batch)
        assert torch.allclose(loss, expected) == zero
        assert loss >= expected - 1e-6


def test_the_cross_layer_term_is_written_out(federation):
    """α_ij weighs stage i of the model against stage j of the teacher."""
    ours = federation(with_hparams())
    ours.method.prepare(ours.server, ours.clients)
    client = ours.clients[0]
    ours.method.receive(ours.server, client)
    client.model.eval()
    calibration = client.scratch["csac"]
    images = next(client.train.evaluation_batches(8)).images
    with torch.no_grad():
        with calibration.observed(client.model) as seen:
            client.model(images)
        with calibration.observed(calibration.teacher) as taught:
            calibration.teacher(images)
        *maps, logits = seen()
        *private, target = taught()
        assert [part.shape[1:] for part in maps] == [(32, 8, 8), (32, 4, 4), (64, 2, 2)]
        one, other = calibration.attention.project(maps, private)
        weights = calibration.attention.weights(one, other)
        expected = kernel_distance(logits, target, WIDTHS)
        for i in range(3):
            for j in range(3):
                pair = one[i].flatten(1), other[j].flatten(1)
                expected += weights[i, j] * kernel_distance(*pair, WIDTHS)
        found = calibration.distance(images, seen())
        assert (weights - weights.T).abs().max() > 1e-3
        assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_calibration_brings_the_logits_nearer_to_the_teachers(federation):
    distances = []
    for strength in (0.0, 0.6):
        training = TRAINING.changed({"local_steps": 20, "rounds": 1, "momentum": 0.0})
        spec = with_hparams(training=training, csac_lambda=strength, calib="released")
        ours = federation(spec)
        method, server, client = ours.method, ours.server, ours.clients[0]
        method.prepare(server, ours.clients)
        method.receive(server, client)
        client.model.train()
        client.lr = 0.01  # the public code's
        client.optimizer = method.optimizer(client)
        for batch in method.batches(client):
            method.step(client, batch)
        images = next(client.train.evaluation_batches()).images
        calibration = Calibration(client, False, 0.0)
        client.model.train()
        with calibration.observed(client.model) as seen:
            client.model(images)
        distances.append(calibration.distance(images, seen()).item())
    assert distances[1] < distances[0] / 10


def test_nothing_but_weights_is_shared_once_more_than_by_fedavg(federation):
    ours, plain = federation(with_hparams()), federation(toy_spec())
    run_rounds(ours)
    run_rounds(plain)
    assert ours.method.info.shares == ()
    per_round = {k: v / 3 for k, v in plain.server.traffic.counts.items()}
    assert dict(ours.server.traffic.counts) == {k: 4 * v for k, v in per_round.items()}


def test_six_clients_of_which_three_are_sampled(federation):
    ours = federation(
        toy_spec("csac", overrides={"csac": {"pretrain_rounds": 1}}, **SIX),
    )
    teachers = {}
    for round in rounds(ours.method, ours.server, ours.clients):
        assert len(round.chosen) == 3
        for client in ours.clients:
            assert not client.scratch
            first = teachers.setdefault(client.id, copy_of(client.memory["teacher"]))
            assert equal(client.memory["teacher"], first)
    assert len(teachers) == 6


def test_over_silobn_the_clients_keep_their_statistics(federation):
    ours = federation(with_hparams("csac+silobn"))
    ours.method.prepare(ours.server, ours.clients)
    client = ours.clients[0]
    keys = batchnorm_keys(ours.server.model)
    statistics = keys.statistics | keys.counters
    ours.method.receive(ours.server, client)
    for key, value in client.state.items():
        expected = client.memory["teacher"] if key in statistics else ours.server.state
        assert torch.equal(value, expected[key])
    ours = federation(with_hparams("csac+silobn"))
    run_rounds(ours)
    assert set(ours.clients[0].memory["kept"]) == statistics


def test_it_trains_with_the_other_loss_of_a_base(federation):
    assert compose("csac+fedprox")
    run_rounds(federation(with_hparams("csac+fedprox")))


def test_what_cannot_work_is_said(federation):
    with pytest.raises(UserError, match="the fusion of csac sets the clients' weights itself"):
        federation(toy_spec("ga+csac"))
    run_rounds(federation(with_hparams("ga+csac", csac_fusion="mean")), 2)
    with pytest.raises(UserError, match="the aggregate of csac would silence that of scaffold"):
        compose("csac+scaffold")


def test_on_a_transformer_only_the_logits_can_be_compared():
    from benchmark.backbones.base import make_backbone

    with torch.device("meta"), pytest.raises(UserError, match=r"set csac\.calib=released"):
        make_method("csac", {}).build(lambda: make_backbone("vit_b16", 4, "none"))
