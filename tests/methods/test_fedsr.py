"""FedSR: a random representation, short and near its class's reference."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmark.backbones.base import make_backbone
from benchmark.federation import rounds, visit
from benchmark.method import Method, make_method
from benchmark.state import batchnorm_keys, copy_of, parameter_names
from methods.fedsr import Reference, Sampled, random_features
from tests.conftest import TRAINING, toy_spec
from tests.methods.parts import three_of_six
from tests.test_federation import equal, run_rounds

SIX = three_of_six(rounds=5)
SILENT = {"l2r": 0.0, "cmi": 0.0}


def with_hparams(hparams, name="fedsr", **changes):
    return toy_spec(name, overrides={"fedsr": hparams}, **changes)


def reference_with(mean: float, spread: float) -> Reference:
    """One class, one dimension, spread given as it is after the softplus."""
    reference = Reference(1, 1, scaled=True)
    reference.mean.data.fill_(mean)
    reference.spread.data.fill_(torch.tensor(spread).expm1().log())
    return reference


def divergence(reference: Reference, mean: float, spread: float) -> float:
    labels = torch.zeros(1, dtype=torch.long)
    return reference(torch.tensor([[mean]]), torch.tensor([[spread]]), labels).item()


def test_the_divergence_oracle():
    """KL(N(0, 1) ‖ N(0, 4)) = 0.318147."""
    assert divergence(reference_with(0.0, 2.0), 0.0, 1.0) == pytest.approx(0.318147, abs=1e-6)


def test_the_divergence_is_zero_where_scaled_and_reference_agree():
    reference = reference_with(3.0, 0.8)
    reference.scale.data.fill_(2.0)
    assert divergence(reference, 1.5, 0.4) == pytest.approx(0.0, abs=1e-6)
    reference.scale.data.fill_(-2.0)
    assert divergence(reference, -1.5, 0.4) == pytest.approx(0.0, abs=1e-6)


def test_the_divergence_is_torchs_summed_over_dimensions():
    torch.manual_seed(0)
    reference = Reference(3, 5, scaled=True)
    reference.mean.data.normal_()
    reference.spread.data.normal_()
    mean, spread, labels = torch.randn(7, 5), torch.rand(7, 5) + 0.1, torch.arange(7) % 3
    other = F.softplus(reference.spread)[labels]
    expected = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, spread),
        torch.distributions.Normal(reference.mean[labels], other),
    ).sum(1)
    assert torch.allclose(reference(mean, spread, labels), expected, atol=1e-5)
    assert torch.isfinite(reference(mean, torch.zeros(7, 5), labels)).all()


def test_the_reference_starts_where_the_code_has_it():
    reference = Reference(2, 3, scaled=False)
    assert reference.mean.tolist() == [[0.0] * 3] * 2
    assert reference.spread.tolist() == [[1.0] * 3] * 2
    assert reference.scale.item() == 1
    assert not reference.scale.requires_grad


@pytest.mark.parametrize(("norm", "length"), [("l2", 5.0), ("l2sq", 25.0)])
def test_the_length_of_3_4(federation, norm, length):
    """z = (3, 4) whatever the image: the loss grows by 5, in the paper's form by 25."""
    hparams = {"cmi": 0.0, "l2r": 1.0, "l2r_norm": norm, "fedsr_size": 2}
    ours = federation(with_hparams({**hparams, "fedsr_probabilistic": False}))
    client = ours.clients[0]
    linear = random_features(client.model).gaussian
    nn.init.zeros_(linear.weight)
    linear.bias.data = torch.tensor([3.0, 4.0])
    batch = next(client.train.evaluation_batches(8))
    plain = Method.loss(ours.method, client, batch)
    assert (ours.method.loss(client, batch) - plain).item() == pytest.approx(length, abs=1e-5)


def test_with_both_coefficients_0_and_no_noise_it_is_fedavg_on_the_mean_bit_for_bit(federation):
    ours = federation(with_hparams({**SILENT, "fedsr_probabilistic": False}))
    twin = federation(with_hparams({**SILENT, "fedsr_probabilistic": False}))
    twin.method = Method()  # FedAvg on the network with a linear layer before its classifier
    assert equal(run_rounds(ours), run_rounds(twin))
    assert list(ours.method.predictors(ours.server, ours.clients)) == ["global"]


def test_with_both_coefficients_0_and_no_spread_the_loss_is_cross_entropy_of_the_mean(federation):
    ours = federation(with_hparams(SILENT))
    client = ours.clients[0]
    gaussian = random_features(client.model).gaussian
    size = gaussian.linear.out_features // 2
    gaussian.linear.weight.data[size:] = 0
    gaussian.linear.bias.data[size:] = -200  # softplus: exactly 0
    batch = next(client.train.evaluation_batches(8))
    client.model.train()
    features = []
    handle = gaussian.linear.register_forward_pre_hook(lambda _, x: features.append(x[0]))
    loss = ours.method.loss(client, batch)
    handle.remove()
    mean = F.linear(features[0], gaussian.linear.weight[:size], gaussian.linear.bias[:size])
    assert torch.equal(loss, F.cross_entropy(client.model.classifier(mean), batch.labels))


def test_z_is_drawn_in_training_and_the_mean_in_evaluation(federation):
    model = federation(toy_spec("fedsr")).server.model
    images = torch.randn(4, 3, 32, 32)
    model.train()
    assert not torch.equal(model(images), model(images))
    model.eval()
    assert torch.equal(model(images), model(images))
    head = random_features(model)
    vectors = torch.randn(20000, head.gaussian.linear.in_features) * 0 + 1
    mean, spread = (part[0].detach() for part in head.gaussian(vectors[:1]))
    drawn = head.train()(vectors).detach()
    assert torch.allclose(drawn.mean(0), mean, atol=0.05)
    assert torch.allclose(drawn.std(0), spread, atol=0.05)


def test_prediction_averages_the_probabilities_of_20_draws(federation):
    ours = federation(toy_spec("fedsr"))
    run_rounds(ours)
    predictors = ours.method.predictors(ours.server, ours.clients)
    assert list(predictors) == ["fedsr", "global"]
    predict = predictors["fedsr"].eval()
    model, images = ours.server.model, next(ours.clients[0].val.evaluation_batches()).images
    assert predict.noise.shape == (20, model.feature_size)
    head = random_features(model)
    with torch.inference_mode():
        found = predict(images)
        vectors = model.squeeze(model.maps(images))
        mean, spread = head.gaussian(vectors)
        shares = [model.classifier(mean + spread * e).softmax(1) for e in predict.noise]
        assert torch.allclose(found.exp(), sum(shares) / 20, atol=1e-5)
        again = ours.method.predictors(ours.server, ours.clients)["fedsr"].eval()
        assert torch.equal(again(images), found)
        alone = torch.cat([predict(image[None]) for image in images])
        assert torch.allclose(alone, found, atol=1e-5)
        none = Sampled(model, torch.zeros(1, model.feature_size)).eval()
        assert torch.allclose(none(images), model(images).log_softmax(1), atol=1e-5)


def test_with_no_draws_the_mean_predicts(federation):
    ours = federation(with_hparams({"fedsr_samples": 0}))
    assert list(ours.method.predictors(ours.server, ours.clients)) == ["global"]


@pytest.mark.parametrize(("backbone", "size"), [("cnn_tiny_bn", 256), ("resnet18", 512)])
def test_the_network_has_z_between_features_and_classifier(backbone, size):
    plain = make_backbone(backbone, 7, "none")
    model = make_method("fedsr", {}).build(lambda: make_backbone(backbone, 7, "none"))
    assert model.feature_size == size
    extra = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in plain.parameters())
    assert extra == size * 2 * size + 2 * size  # 525,312 on ResNet-18, 2.1 MB
    small = make_method("fedsr", {"fedsr_size": 16}).build(
        lambda: make_backbone(backbone, 7, "none")
    )
    assert small.classifier.in_features == 16


def test_a_strong_length_term_shortens_z(federation):
    lengths = {}
    for l2r in (0.0, 1.0):
        training = TRAINING.changed({"local_steps": 10, "rounds": 2, "lr": 0.02})
        ours = federation(with_hparams({"cmi": 0.0, "l2r": l2r}, training=training))
        run_rounds(ours)
        model = ours.server.model.eval()
        images = next(ours.clients[0].val.evaluation_batches()).images
        lengths[l2r] = model.features(images).norm(dim=1).mean().item()
    assert lengths[1.0] < lengths[0.0]


def test_the_reference_stays_with_the_client_and_is_trained(federation):
    ours = federation(toy_spec("fedsr"))
    run_rounds(ours)
    assert not any("reference" in key for key in ours.server.state)
    references = [client.memory["reference"] for client in ours.clients]
    for reference in references:
        assert reference["mean"].shape == (4, 256)
        assert reference["mean"].abs().sum() > 0
        assert reference["scale"] != 1
    assert not equal(references[0], references[1])
    kinds = {key.split("/")[1] for key in ours.server.traffic.counts}
    assert kinds == {"weights"}
    assert ours.method.info.shares == ()


def test_a_shared_reference_is_averaged_with_the_network(federation):
    ours = federation(with_hparams({"share_reference": True}))
    run_rounds(ours)
    assert ours.server.state["reference.mean"].abs().sum() > 0
    assert "reference" not in ours.clients[0].memory


def test_what_the_divergence_trains(federation):
    """Extractor and Gaussian, m, s and c; not the classifier."""
    ours = federation(with_hparams({"l2r": 0.0, "cmi": 1.0}))
    client = ours.clients[0]
    ours.method.receive(ours.server, client)
    client.model.train()
    batch = next(client.train.evaluation_batches(8))
    torch.manual_seed(0)
    loss = ours.method.loss(client, batch)
    torch.manual_seed(0)
    divergence = loss - Method.loss(ours.method, client, batch)
    divergence.backward()
    moved = {name for name, p in client.model.named_parameters() if p.grad.abs().max() > 1e-6}
    assert moved & {"head.weight", "head.bias"} == set()
    assert {"block1.0.weight", "taps.features.0.gaussian.linear.weight"} < moved
    assert all(p.grad.abs().sum() > 0 for p in client.scratch["reference"].parameters())


def test_a_class_that_is_missing_keeps_its_reference(federation):
    ours = federation(toy_spec("fedsr"))
    client = ours.clients[0]
    client.train.labels[:] = client.train.labels % 3
    visit(ours.method, ours.server, client)
    mean = client.memory["reference"]["mean"]
    assert mean[3].tolist() == [0.0] * 256
    assert mean[:3].abs().sum(1).min() > 0


def test_six_clients_of_which_three_are_sampled(federation):
    ours = federation(toy_spec("fedsr", **SIX))
    known: dict[int, dict] = {}
    for round in rounds(ours.method, ours.server, ours.clients):
        chosen = {client.id for client in round.chosen}
        for client in ours.clients:
            if client.id in chosen:
                assert not equal(client.memory["reference"], known.get(client.id, {}))
                known[client.id] = copy_of(client.memory["reference"])
            elif client.id in known:
                assert equal(client.memory["reference"], known[client.id])
            else:
                assert "reference" not in client.memory
    assert len(known) > 3


def test_over_fedbn_the_clients_keep_their_layers(federation):
    ours = federation(toy_spec("fedsr+fedbn"))
    run_rounds(ours)
    client = ours.clients[0]
    assert set(client.memory["kept"]) == batchnorm_keys(ours.server.model).all
    assert "reference" in client.memory
    alone = run_rounds(federation(toy_spec("fedsr")))
    names = parameter_names(ours.server.model)
    assert any(not torch.equal(ours.server.state[name], alone[name]) for name in names)
