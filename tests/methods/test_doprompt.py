"""DoPrompt in a federation, and FedFD on its prompts."""

import pytest
import torch

from benchmark.backbones.base import backbones
from benchmark.errors import UserError
from benchmark.federation import rounds, visit
from benchmark.method import compose, make_method
from benchmark.protocol import plan
from benchmark.state import copy_of
from methods.ops.capture import captured
from methods.ops.prompts import Prompts, find_prompts
from tests.conftest import TRAINING, rates_by_round, toy_protocol, toy_spec
from tests.methods.parts import three_of_six
from tests.test_federation import equal, run_rounds

KEY = "taps.embedding.0.tokens"
SIX = three_of_six(rounds=5)
PLAIN = {"doprompt_length": 0, "doprompt_dropout": 0.0}
STILL = {"doprompt_dropout": 0.0}


def spec(method="doprompt", changes=None, **fields):
    overrides = {name: changes or {} for name in method.split("+") if "prompt" in name}
    return toy_spec(method, overrides=overrides, backbone="vit_tiny32", **fields)


@pytest.fixture
def model():
    """A transformer with prompts whose logits depend on its tokens."""
    torch.manual_seed(0)
    made = make_method("doprompt", STILL).build(lambda: backbones["vit_tiny32"].make(4))
    torch.nn.init.normal_(made.classifier.weight)
    torch.nn.init.normal_(find_prompts(made)[1].tokens)
    return made.eval()


# The tokens


@pytest.mark.parametrize("length", [0, 4, 8])
def test_a_prompt_adds_its_tokens_behind_those_of_the_image(length):
    def make():
        with torch.device("meta"):
            return backbones["vit_b16"].make(7)

    with torch.device("meta"):
        built = make_method("doprompt", {"doprompt_length": length}).build(make)
        images = torch.empty(2, 3, 224, 224, device="meta")
        assert built.maps(images).shape == (2, 197 + length, 768)
        assert built(images).shape == (2, 7)
    state = built.state_dict()
    assert sum(state[key].numel() for key in state if "taps" in key) == length * 768


def test_a_prompt_has_no_position(model):
    images = torch.randn(3, 3, 32, 32)
    _, prompts = find_prompts(model)
    with torch.no_grad():
        straight = model(images)
        with prompts.replaced(prompts.tokens[[2, 0, 3, 1]]):
            assert torch.allclose(model(images), straight, atol=1e-5)
        with prompts.replaced(-prompts.tokens):
            assert not torch.allclose(model(images), straight, atol=1e-2)
        assert torch.equal(model(images), straight)


def test_the_image_tokens_come_first(model):
    tokens = torch.randn(2, 17, 32)
    _, prompts = find_prompts(model)
    joined = prompts(tokens)
    assert torch.equal(joined[:, :17], tokens)
    assert torch.equal(joined[1, 17:], prompts.tokens)
    assert prompts.tokens.shape == (4, 32)


def test_prompts_start_small():
    torch.manual_seed(0)
    assert Prompts(100, 100).tokens.std().item() == pytest.approx(0.02, rel=0.05)


# Federated


@pytest.mark.parametrize("method", ["doprompt", "fedfd_prompt"])
def test_without_tokens_it_is_fedavg_bit_for_bit(federation, method):
    plain = federation(toy_spec("fedavg", backbone="vit_tiny32"))
    assert equal(run_rounds(federation(spec(method, PLAIN))), run_rounds(plain))


def test_each_client_keeps_its_prompt_and_the_server_averages_them(federation):
    ours = federation(spec())
    run_rounds(ours, 1)
    kept = [client.memory["kept"] for client in ours.clients]
    assert all(set(state) == {KEY} for state in kept)
    prompts = [state[KEY] for state in kept]
    assert not torch.allclose(prompts[0], prompts[1], atol=1e-6)
    assert torch.allclose(ours.server.state[KEY], sum(prompts) / 3, atol=1e-6)
    client = ours.clients[1]
    ours.method.receive(ours.server, client)
    for key, value in client.state.items():
        assert torch.equal(value, prompts[1] if key == KEY else ours.server.state[key])


def test_a_client_that_is_not_sampled_keeps_its_prompt(federation):
    ours = federation(spec(**SIX))
    prompts = {}
    for round in rounds(ours.method, ours.server, ours.clients):
        for client in ours.clients:
            if client not in round.chosen and client.id in prompts:
                assert torch.equal(client.memory["kept"][KEY], prompts[client.id])
            if "kept" in client.memory:
                prompts[client.id] = client.memory["kept"][KEY].clone()
    assert len(prompts) > 3


@pytest.mark.parametrize("method", ["doprompt", "fedfd_prompt"])
def test_nothing_but_weights_leaves_the_client(federation, method):
    ours = federation(spec(method, **SIX))
    run_rounds(ours)
    counts = ours.server.traffic.counts
    assert {key.partition("/")[2] for key in counts} == {"weights"}
    assert compose(method).info.shares == ()
    state = sum(value.numel() * value.element_size() for value in ours.server.state.values())
    assert counts["up/weights"] == 15 * state


def test_the_averaged_prompt_travels_down_only_for_fedfd(federation):
    down = {}
    for method in ("doprompt", "fedfd_prompt"):
        ours = federation(spec(method))
        run_rounds(ours)
        down[method] = ours.server.traffic.counts["down/weights"]
    assert down["fedfd_prompt"] - down["doprompt"] == 2 * 3 * 4 * 32 * 4  # not in round 0


def test_rates_and_decay_of_the_parts(federation):
    changes = {"doprompt_rate": 200.0, "doprompt_head_rate": 10.0, "doprompt_decay": 1e-5}
    training = TRAINING.changed(
        {"optimizer": "adamw", "lr": 5e-6, "weight_decay": 1e-2, "momentum": 0}
    )
    ours = federation(spec(changes=changes, training=training))
    client = ours.clients[0]
    client.lr = ours.method.learning_rate(client)
    groups = ours.method.optimizer(client).param_groups
    assert [group["lr"] for group in groups] == pytest.approx([5e-6, 1e-3, 5e-5])
    assert [group["weight_decay"] for group in groups] == pytest.approx([1e-2, 1e-5, 1e-5])
    assert [p.shape for p in groups[1]["params"]] == [(4, 32)]
    assert [p.shape for p in groups[2]["params"]] == [(4, 32), (4,)]
    everything = [p for group in groups for p in group["params"]]
    assert len(set(everything)) == len(everything) == len(list(client.model.parameters()))
    before = copy_of(ours.server.state)
    update, _, _ = visit(ours.method, ours.server, client)
    moved = (update.state[KEY] - before[KEY]).abs().max()
    body = (update.state["conv_proj.weight"] - before["conv_proj.weight"]).abs().max()
    assert moved > 50 * body


def test_rates_follow_a_kept_optimiser(federation):
    training = TRAINING.changed({"keep_optimizer": True, "schedule": "step", "step_rounds": 1})
    ours = federation(spec(changes={"doprompt_rate": 2.0}, training=training))
    assert rates_by_round(ours) == [pytest.approx([lr, 2 * lr]) for lr in (0.05, 0.005, 0.0005)]


def test_a_network_without_tokens_is_refused_in_one_line():
    for method in ("doprompt", "fedfd_prompt"):
        with pytest.raises(UserError, match="choose --backbone vit_b16"):
            plan(toy_protocol(), [method])
        with pytest.raises(UserError, match="tokens of a transformer"):
            make_method(method, {}).build(lambda: backbones["cnn_tiny_bn"].make(4))


@pytest.mark.parametrize("name", ["ga+doprompt", "ga+fedfd_prompt", "fedprox+doprompt"])
def test_it_composes(federation, name):
    ours = federation(spec(name, **SIX))
    state = run_rounds(ours)
    assert all(value.isfinite().all() for value in state.values())
    assert "kept" in ours.clients[0].memory or "kept" in ours.clients[1].memory
    if "ga" in name:
        assert len(ours.server.memory["ga"]) == 6


# FedFD on prompts


def prompted(federation, **changes):
    """A client in its second round, whose prompt differs from the average, and a batch."""
    ours = federation(spec("fedfd_prompt", {**STILL, **changes}))
    run_rounds(ours, 1)
    client = ours.clients[0]
    client.round = ours.server.round = 1
    ours.method.receive(ours.server, client)
    client.model.train()
    return ours, client, next(iter(ours.method.batches(client)))


def passes(ours, client, batch):
    """Logits of the two passes of a loss, and the loss."""
    with captured(client.model.classifier) as logits:
        loss = ours.method.loss(client, batch)
    assert len(logits) == 2
    return (*logits, loss)


def fixed(value):
    return {"prompt_low": value, "prompt_high": value}


def test_u_1_is_the_own_prompt_and_u_0_the_average(federation):
    ours, client, batch = prompted(federation, **fixed(1.0))
    plain, second, _ = passes(ours, client, batch)
    assert torch.equal(plain, second)
    ours, client, batch = prompted(federation, **fixed(0.0))
    plain, second, _ = passes(ours, client, batch)
    _, prompts = find_prompts(client.model)
    with prompts.replaced(ours.server.state[KEY]):
        assert torch.equal(client.model(batch.images), second)
    assert not torch.allclose(plain, second, atol=1e-6)


def test_between_the_two_prompts():
    method = make_method("fedfd_prompt", fixed(0.25))
    own, average = torch.full((2, 3), 8.0), torch.full((2, 3), 4.0)
    assert torch.equal(method.mixed(own, average), torch.full((2, 3), 5.0))
    torch.manual_seed(0)
    drawn = make_method("fedfd_prompt", {}).mixed(torch.ones(100, 100), torch.zeros(100, 100))
    assert drawn.unique().numel() > 9_000  # an entry of its own for every number
    assert drawn.mean().item() == pytest.approx(0.5, abs=0.01)
    assert 0 <= drawn.min() < drawn.max() <= 1
    with pytest.raises(UserError, match="must not exceed"):
        make_method("fedfd_prompt", {"prompt_low": 2.0}).build(
            lambda: backbones["vit_tiny32"].make(4)
        )


@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_the_loss_is_equation_5(federation, reduction):
    ours, client, batch = prompted(federation, **fixed(0.5), prompt_reduction=reduction)
    with captured(client.model.features_before_dropout) as features:
        plain, second, loss = passes(ours, client, batch)
    squares = (features[0] - features[1]).square()
    distance = squares.mean() if reduction == "mean" else squares.sum(1).mean()
    assert distance > 0
    errors = [torch.nn.functional.cross_entropy(x, batch.labels) for x in (plain, second)]
    expected = 0.9 * errors[0] + 0.1 * errors[1] + 4 * distance
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_second_pass_teaches_the_own_prompt_by_its_share(federation):
    slopes = {}
    for share in (0.0, 0.5, 1.0):
        _, client, batch = prompted(federation)
        _, prompts = find_prompts(client.model)
        average = prompts.tokens.detach().clone()  # all passes see the same tokens
        method = make_method("fedfd_prompt", fixed(share))
        with prompts.replaced(method.mixed(prompts.tokens, average)):
            loss = torch.nn.functional.cross_entropy(client.model(batch.images), batch.labels)
        gradient = torch.autograd.grad(loss, prompts.tokens, allow_unused=True)[0]
        slopes[share] = gradient
    assert slopes[1.0].abs().max() > 0
    assert torch.allclose(slopes[0.5], 0.5 * slopes[1.0], atol=1e-8)
    assert slopes[0.0].abs().max() == 0


def test_the_average_stays_what_it_was_for_the_whole_round(federation):
    ours, client, _ = prompted(federation)
    average = client.scratch["global_prompt"].clone()
    assert torch.equal(average, ours.server.state[KEY])
    assert not torch.allclose(average, client.state[KEY], atol=1e-6)
    for batch in ours.method.batches(client):
        client.optimizer = ours.method.optimizer(client)
        ours.method.step(client, batch)
    assert torch.equal(client.scratch["global_prompt"], average)


def test_without_its_losses_it_is_doprompt_bit_for_bit(federation):
    none = {"prompt_lambda1": 0.0, "prompt_lambda2": 0.0}
    assert equal(run_rounds(federation(spec("fedfd_prompt", none))), run_rounds(federation(spec())))


def test_with_them_it_is_not(federation):
    one = run_rounds(federation(spec("fedfd_prompt")))
    other = run_rounds(federation(spec()))
    assert not torch.allclose(one[KEY], other[KEY], atol=1e-5)


def test_logits_of_the_tested_model_do_not_depend_on_the_batch(federation):
    ours = federation(spec("fedfd_prompt"))
    run_rounds(ours)
    model = ours.server.model.eval()
    images = next(ours.clients[0].val.evaluation_batches()).images
    with torch.no_grad():
        together = model(images)
        single = torch.cat([model(image[None]) for image in images])
    assert torch.allclose(together, single, atol=1e-5)
