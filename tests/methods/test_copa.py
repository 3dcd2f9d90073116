"""COPA: one extractor, a head per client, gated normalisation, an ensemble at test."""

import pytest
import torch
import torch.nn.functional as F

from benchmark.backbones.base import make_backbone
from benchmark.errors import UserError
from benchmark.federation import rounds, visit
from benchmark.method import Method, compose, make_method
from benchmark.state import copy_of
from methods.bin import BatchInstanceNorm2d, clamp_gates, gates_of
from methods.copa import HeadEnsemble, head_keys, joined
from methods.ibn import IBN2d
from tests.conftest import TRAINING, toy_spec
from tests.methods.parts import three_of_six
from tests.test_federation import equal, run_rounds

PLAIN = {"randaug_n": 0}
SIX = three_of_six(rounds=5)
HEAD = ["head.weight", "head.bias"]


def with_hparams(name="copa", hparams=PLAIN, **changes):
    return toy_spec(name, overrides={"copa": hparams}, **changes)


def test_with_one_client_it_is_fedavg_with_the_same_normalisation_bit_for_bit(federation):
    ours = federation(with_hparams(partition="pooled"))
    plain = federation(toy_spec(partition="pooled"))

    class Gated(Method):
        """FedAvg on COPA's network."""

        def optimizer(self, client):
            optimizer = super().optimizer(client)
            optimizer.register_step_post_hook(lambda *_: clamp_gates(client.model))
            return optimizer

    network = with_hparams(partition="pooled")
    twin = federation(network)
    twin.method = Gated()
    assert equal(run_rounds(ours), run_rounds(twin))
    assert ours.server.state.keys() > plain.server.state.keys()  # the gates
    images = next(ours.clients[0].val.evaluation_batches()).images
    ensemble = ours.method.predictors(ours.server, ours.clients)["copa"].eval()
    with torch.inference_mode():
        expected = twin.server.model.eval()(images).log_softmax(1)
        assert torch.allclose(ensemble(images), expected, atol=1e-6)


def test_without_the_others_heads_and_gates_it_trains_like_fedavg_and_keeps_heads(federation):
    """λ = 0, batch normalisation: in round 0 exactly FedAvg, later only the heads start apart."""
    spec = with_hparams(hparams={**PLAIN, "copa_lambda": 0.0, "copa_norm": "bn"})
    assert equal(run_rounds(federation(spec), 1), run_rounds(federation(toy_spec()), 1))
    assert not equal(run_rounds(federation(spec)), run_rounds(federation(toy_spec())))


def test_frozen_heads_stay_as_they_are_bit_for_bit(federation):
    ours = federation(with_hparams())
    loop = rounds(ours.method, ours.server, ours.clients)
    next(loop)
    bank = {owner: copy_of(head) for owner, head in ours.server.memory["heads"].items()}
    client = ours.clients[0]
    client.round = ours.server.round = 1
    visit(ours.method, ours.server, client)
    for owner, head in bank.items():
        assert equal(ours.server.memory["heads"][owner], head)
    frozen = joined([bank[1], bank[2]])
    for before, after in zip(frozen, client.scratch["heads"], strict=True):
        assert torch.equal(before, after)
        assert not after.requires_grad
    assert not equal(copy_of(client.state, HEAD), bank[0])  # its own is trained


def test_the_loss_is_written_out_and_the_others_heads_reach_the_extractor_only(federation):
    ours = federation(with_hparams(hparams={**PLAIN, "copa_lambda": 0.5}))
    run_rounds(ours, 1)
    server, client, method = ours.server, ours.clients[1], ours.method
    client.scratch.clear()
    method.receive(server, client)
    client.model.eval()
    batch = next(client.train.evaluation_batches(8))
    features = client.model.features(batch.images)
    bank = server.memory["heads"]
    others = [
        F.cross_entropy(F.linear(features, *bank[owner].values()), batch.labels) for owner in (0, 2)
    ]
    own = F.cross_entropy(client.model.classifier(features), batch.labels)
    expected = own + 0.5 * (others[0] + others[1]) / 2
    loss = method.loss(client, batch)
    assert torch.allclose(loss, expected, atol=1e-6)
    parameters = dict(client.model.named_parameters())
    given = dict(zip(parameters, torch.autograd.grad(loss, parameters.values()), strict=True))
    head = torch.autograd.grad(own, [parameters[key] for key in HEAD], retain_graph=True)
    for key, gradient in zip(HEAD, head, strict=True):
        assert torch.allclose(given[key], gradient, atol=1e-6)
    alone = torch.autograd.grad(own, parameters["block1.0.weight"])[0]
    assert not torch.allclose(given["block1.0.weight"], alone, atol=1e-4)


def test_all_clients_of_a_round_see_the_heads_of_its_start(federation):
    ours = federation(with_hparams())
    loop = rounds(ours.method, ours.server, ours.clients)
    next(loop)
    assert all("heads" not in client.scratch for client in ours.clients)  # none in round 0
    bank = {owner: copy_of(head) for owner, head in ours.server.memory["heads"].items()}
    next(loop)
    for client in ours.clients:
        others = [bank[owner] for owner in range(3) if owner != client.id]
        assert all(map(torch.equal, client.scratch["heads"], joined(others)))
        assert not equal(ours.server.memory["heads"][client.id], bank[client.id])


def test_a_client_goes_on_with_its_own_head_and_the_common_extractor(federation):
    ours = federation(with_hparams())
    run_rounds(ours, 1)
    for client in ours.clients:
        client.round = 1
        ours.method.receive(ours.server, client)
        for key, value in client.state.items():
            bank = ours.server.memory["heads"][client.id]
            assert torch.equal(value, bank[key] if key in HEAD else ours.server.state[key])


def test_identical_heads_predict_like_one(federation):
    model = federation(with_hparams()).server.model.eval()
    images = torch.randn(6, 3, 32, 32)
    head = copy_of(model.state_dict(), head_keys(model))
    with torch.inference_mode():
        shares = HeadEnsemble(model, [head] * 4).eval()(images).exp()
        assert torch.allclose(shares, model(images).softmax(1), atol=1e-6)


def test_the_ensemble_is_the_mean_of_the_heads_probabilities(federation):
    ours = federation(with_hparams())
    run_rounds(ours)
    images = next(ours.clients[0].val.evaluation_batches()).images
    predictors = ours.method.predictors(ours.server, ours.clients)
    assert list(predictors) == ["copa", "global"]
    model = ours.server.model.eval()
    with torch.inference_mode():
        features = model.features(images)
        heads = ours.server.memory["heads"].values()
        mean = sum(F.linear(features, *head.values()).softmax(1) for head in heads) / 3
        assert torch.allclose(predictors["copa"].eval()(images).exp(), mean, atol=1e-6)
        one = torch.cat([predictors["copa"](image[None]) for image in images])
        assert torch.allclose(one, predictors["copa"](images), atol=1e-5)


@pytest.mark.parametrize(
    ("backbone", "places"),
    [
        ("cnn_tiny_bn", {"block1.1", "block2.1"}),
        ("resnet18", {f"layer{k}.{b}.bn{n}" for k in (1, 2) for b in (0, 1) for n in (1, 2)}),
    ],
)
def test_the_first_two_stages_have_half_open_gates(backbone, places):
    model = make_method("copa", {}).build(lambda: make_backbone(backbone, 4, "none"))
    gated = {path for path, part in model.named_modules() if isinstance(part, BatchInstanceNorm2d)}
    assert gated == places | ({"layer2.0.downsample.1"} if backbone == "resnet18" else set())
    assert all((gate == 0.5).all() for gate in gates_of(model))


def test_an_open_gate_is_batch_normalisation_exactly():
    gated = make_method("copa", {}).build(lambda: fresh())
    plain = fresh()
    for gate in gates_of(gated):
        gate.data.fill_(1.0)
    images = torch.randn(5, 3, 32, 32)
    assert torch.equal(gated.train()(images), plain.train()(images))
    assert torch.equal(gated.eval()(images), plain.eval()(images))


def fresh():
    torch.manual_seed(0)
    return make_backbone("cnn_tiny_bn", 4, "none")


def test_the_other_normalisations():
    half = make_method("copa", {"copa_norm": "ibn_a"}).build(fresh)
    assert sum(isinstance(part, IBN2d) for part in half.modules()) == 3
    plain = make_method("copa", {"copa_norm": "bn"}).build(fresh)
    assert plain.state_dict().keys() == fresh().state_dict().keys()


def test_gates_are_trained_and_stay_between_0_and_1(federation):
    training = TRAINING.changed({"lr": 1000.0, "rounds": 1, "local_steps": 1})
    ours = federation(with_hparams(training=training))
    update, _, _ = visit(ours.method, ours.server, ours.clients[0])
    gates = torch.cat([value for key, value in update.state.items() if key.endswith("gate")])
    assert (gates != 0.5).any()
    assert gates.min() == 0
    assert gates.max() == 1


def test_randaugment_is_on_unless_switched_off(federation):
    assert make_method("copa", {}).randaug_n == 2
    assert make_method("copa", {}).randaug_m == 9
    for hparams, same in (({}, False), (PLAIN, True)):
        ours = federation(with_hparams(hparams=hparams))
        client = ours.clients[0]
        batch = next(ours.method.batches(client))
        changed = ours.method.augment(client, batch)
        assert torch.equal(changed.images, batch.images) == same


def test_the_heads_are_counted_as_messages(federation):
    ours = federation(with_hparams())
    run_rounds(ours)
    counts = ours.server.traffic.counts
    assert {key.split("/")[1] for key in counts} - {"weights"} == set(ours.method.info.shares)
    head = sum(ours.server.state[key].numel() * 4 for key in HEAD)
    size = sum(t.numel() * t.element_size() for t in ours.server.state.values())
    assert counts["down/heads"] == 2 * 3 * 2 * head  # rounds 1 and 2, three clients, two others
    # The own head is at home already, and is uploaded with the weights.
    assert counts["down/weights"] == 3 * size + 2 * 3 * (size - head)
    assert counts["up/weights"] == 3 * 3 * size


def test_six_clients_of_which_three_are_sampled(federation):
    ours = federation(with_hparams(**SIX))
    known: dict[int, dict] = {}
    for round in rounds(ours.method, ours.server, ours.clients):
        bank, chosen = ours.server.memory["heads"], {client.id for client in round.chosen}
        assert set(bank) == set(known) | chosen  # heads of clients that have reported
        for owner, head in known.items():
            assert equal(bank[owner], head) == (owner not in chosen)  # the others' stay, stale
        for client in round.chosen:
            others = [known[owner] for owner in sorted(known) if owner != client.id]
            if others:
                assert all(map(torch.equal, client.scratch["heads"], joined(others)))
            else:
                assert "heads" not in client.scratch
        ensemble = ours.method.predictors(ours.server, ours.clients)["copa"]
        assert ensemble.count == len(bank)
        known = {owner: copy_of(head) for owner, head in bank.items()}
    assert len(known) > 3


def test_compositions(federation):
    ours = federation(with_hparams("copa+silobn"))
    run_rounds(ours)
    assert set(HEAD) < set(ours.clients[0].memory["kept"])
    with pytest.raises(UserError, match="leave out one of the two methods"):
        federation(toy_spec("copa+bin"))
    assert compose("ga+copa").info.shares == ("risks", "heads")


def test_a_network_without_early_stages_is_refused():
    with torch.device("meta"), pytest.raises(UserError, match="choose a CNN or a ResNet"):
        make_method("copa", {}).build(lambda: make_backbone("vit_b16", 4, "none"))
