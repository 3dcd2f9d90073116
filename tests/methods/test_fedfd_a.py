"""FedFD-A: adapters beside FedFD, trained in turn with the network, at work at test."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmark.backbones.base import make_backbone, replace_norm
from benchmark.costs import bytes_of, parameter_count
from benchmark.errors import UserError
from benchmark.execute import execute
from benchmark.federation import rounds, visit
from benchmark.method import compose, make_method
from benchmark.state import copy_of, parameter_names
from methods.fedfd_a import (
    Adapted,
    InstanceAdapter,
    adapting,
    interpolation,
    interpolations,
)
from methods.ops.global_norm import global_norms, mixing, with_global
from methods.ops.normalisation import Statistics
from tests.conftest import TRAINING, toy_spec
from tests.test_federation import equal, run_rounds

RULES = ("tbn", "iabn", "mixnorm", "random_alpha", "fixed_alpha")


def fedfd_a(federation, expression="fedfd_a", changes=None, **hparams):
    return federation(toy_spec(expression, overrides={"fedfd_a": hparams}, **(changes or {})))


def ready(ours):
    """A client in the middle of a visit, and a batch of its own."""
    client = ours.clients[0]
    ours.method.receive(ours.server, client)
    client.model.train()
    client.lr = ours.method.learning_rate(client)
    client.optimizer = ours.method.optimizer(client)
    return client, next(ours.method.batches(client))


def a_model(backbone: str = "cnn_tiny_bn"):
    """A network with adapters and statistics worth mixing."""
    torch.manual_seed(0)
    model = make_method("fedfd_a", {}).build(lambda: make_backbone(backbone, 4, "none"))
    for _ in range(3):
        model(images(8) * 2 + 1)
    return model.eval()


def images(count: int) -> torch.Tensor:
    return torch.randn(count, 3, 32, 32).to(memory_format=torch.channels_last)


def force(model: nn.Module, spread: float, centre: float) -> None:
    """Adapters that give δ and ε whatever they see."""
    for adapter in model.adapters.values():
        adapter.last.weight.data.zero_()
        adapter.last.bias.data.copy_(torch.tensor([spread, centre]))


@torch.inference_mode()
def logits(predict, x: torch.Tensor) -> torch.Tensor:
    return predict(x)


def adapter_keys(model: nn.Module) -> set[str]:
    return {key for key in model.state_dict() if key.startswith("adapters.")}


def test_the_papers_parameters():
    """Its 11.31 M and 11.53 M: 218,540 in 20 adapters of ResNet-18 with the bottleneck."""
    plain = make_backbone("resnet18_b256", 7, "none")
    model = make_method("fedfd_a", {}).build(lambda: make_backbone("resnet18_b256", 7, "none"))
    assert parameter_count(plain) == 11_310_151
    assert parameter_count(model.adapters) == 218_540
    assert parameter_count(model) == 11_528_691
    assert len(model.adapters) == 20
    sizes = {"layer1-0-bn1": 526, "layer2-0-downsample-1": 2_074, "layer4-1-bn2": 32_866}
    for name, size in sizes.items():
        assert parameter_count(model.adapters[name]) == size


def test_the_papers_parameters_on_other_networks():
    for backbone, count in (("resnet50", 3_531_230), ("alexnet_bn", 40_162)):
        with torch.device("meta"):
            model = make_method("fedfd_a", {}).build(lambda b=backbone: make_backbone(b, 7, "none"))
        assert parameter_count(model.adapters) == count


def test_the_interpolation_by_hand():
    """δ = 0.2, ε = 0.9: z = 1 is clamped to 1, z = −1 gives 0.7, the test's z = 0 gives 0.9."""
    spread, centre = torch.tensor([0.2]), torch.tensor([0.9])
    values = [interpolation(spread, centre, z).item() for z in (1.0, -1.0, 0.0)]
    assert values == pytest.approx([1.0, 0.7, 0.9])
    assert interpolation(spread, torch.tensor([-0.5]), 0.0).item() == 0


def test_the_layer_by_hand():
    """Map 0, 2, 4, 6 against mean 1 and variance 4: the adapter sees 2 and √5 − 2, and α = ½ gives
    the mean 2 and the spread 2.118034."""
    adapter = InstanceAdapter(1, 16, 0.5, False).eval()
    adapter.last.weight.data.zero_()
    layer, seen = with_global(nn.BatchNorm2d(1, eps=0.0)), []
    layer.running_mean.fill_(1)
    layer.running_var.fill_(4)
    adapter.first.register_forward_pre_hook(lambda _, x: seen.append(x[0]))
    with mixing(layer, lambda path: adapter.__call__):
        output = layer(torch.tensor([[[[0.0, 2], [4, 6]]]]))
    assert seen[0].tolist()[0] == pytest.approx([2, 5**0.5 - 2], abs=1e-6)
    expected = [-0.944272, 0, 0.944272, 1.888544]
    assert output.flatten().tolist() == pytest.approx(expected, abs=1e-6)


def test_without_own_statistics_it_is_the_global_model():
    model, x = a_model(), images(5)
    force(model, 0.5, -1.0)
    assert torch.allclose(logits(Adapted(model), x), logits(model, x), atol=1e-5)
    force(model, 0.5, 0.3)
    assert not torch.allclose(logits(Adapted(model), x), logits(model, x), atol=1e-2)


def test_with_own_statistics_only_it_is_instance_normalisation():
    model, x = a_model(), images(5)
    force(model, 0.5, 2.0)
    other = copy.deepcopy(model)

    def instance(old):
        new = nn.InstanceNorm2d(old.num_features, affine=True)
        new.load_state_dict({"weight": old.weight, "bias": old.bias})
        return new

    replace_norm(other, instance)
    assert torch.allclose(logits(Adapted(model), x), logits(other, x), atol=1e-4)


def test_without_spread_training_and_test_coincide():
    model, x = a_model(), images(5)
    force(model, 0.0, 0.3)
    tested = logits(Adapted(model).eval(), x)
    assert torch.allclose(logits(Adapted(model).train(), x), tested, atol=1e-5)
    force(model, 0.4, 0.3)
    torch.manual_seed(0)
    assert not torch.allclose(logits(Adapted(model).train(), x), tested, atol=1e-2)


def test_in_training_a_number_is_drawn_for_every_sample_and_layer():
    adapter = InstanceAdapter(16, 16, 0.5, False)
    adapter.last.weight.data.zero_()
    local = Statistics(torch.randn(2000, 16), torch.rand(2000, 16))
    reference = Statistics(torch.zeros(16), torch.ones(16))
    alphas = adapter(local, reference)
    assert alphas.shape == (2000, 1)
    assert alphas.mean().item() == pytest.approx(0.5, abs=0.01)
    assert alphas.std().item() == pytest.approx(0.1, abs=0.01)
    assert not torch.equal(adapter(local, reference), alphas)
    assert torch.equal(adapter.eval()(local, reference), torch.full((2000, 1), 0.5))


@pytest.mark.parametrize("backbone", ["cnn_tiny_bn", "resnet18_b256"])
def test_a_batch_of_eight_is_eight_single_samples(backbone):
    model, x = a_model(backbone), images(8)
    for adapter in model.adapters.values():
        adapter.last.weight.data.normal_()  # adapters with opinions
    together = logits(Adapted(model), x)
    alone = torch.cat([logits(Adapted(model), x[k : k + 1]) for k in range(8)])
    assert torch.allclose(alone, together, atol=1e-5, rtol=1e-5)
    assert torch.equal(logits(Adapted(model), x), together)


def test_each_half_of_a_step_changes_its_own_part_only(federation, monkeypatch):
    ours = fedfd_a(federation, changes={"training": TRAINING.changed({"weight_decay": 0.1})})
    client, batch = ready(ours)
    states, adapt = [copy_of(client.state)], type(ours.method)._adapt

    def watched(self, client, batch):
        states.append(copy_of(client.state))
        adapt(self, client, batch)
        states.append(copy_of(client.state))

    monkeypatch.setattr(type(ours.method), "_adapt", watched)
    ours.method.step(client, batch)
    before, between, after = states
    own = adapter_keys(client.model)
    assert len(own) == 16
    network = before.keys() - own
    assert all(torch.equal(before[key], between[key]) for key in own)
    assert all(torch.equal(between[key], after[key]) for key in network)
    assert not torch.equal(before["block1.0.weight"], between["block1.0.weight"])
    assert all(
        not torch.equal(between[key], after[key]) for key in own if key.endswith(".last.bias")
    )


def test_the_adapters_step_leaves_no_gradients_and_is_in_no_other_optimiser(federation):
    ours = fedfd_a(federation)
    client, batch = ready(ours)
    main = {id(p) for group in client.optimizer.param_groups for p in group["params"]}
    own = {id(p) for p in client.model.adapters.parameters()}
    assert not main & own
    assert len(main) + len(own) == len(list(client.model.parameters()))
    client.model.zero_grad()
    ours.method._adapt(client, batch)
    assert all(parameter.grad is None for parameter in client.model.parameters())


def test_the_adapters_step_follows_the_cross_entropy_of_the_adapted_pass(federation):
    ours = fedfd_a(
        federation, adapter_lr=0.5, changes={"training": TRAINING.changed({"momentum": 0})}
    )
    client, batch = ready(ours)
    weight = client.model.adapters["block3-1"].last.bias
    before = weight.detach().clone()
    twin = copy.deepcopy(client.model)
    torch.manual_seed(0)
    with adapting(twin):
        F.cross_entropy(twin(batch.images), batch.labels).backward()
    gradient = twin.adapters["block3-1"].last.bias.grad
    torch.manual_seed(0)
    ours.method._adapt(client, batch)
    assert gradient.abs().max() > 0
    assert torch.allclose(weight, before - 0.5 * 0.05 * gradient, atol=1e-7)


def test_adapters_inputs_pass_gradients_on_unless_detached(federation):
    gradients = []
    for detach in (False, True):
        ours = fedfd_a(federation, adapter_detach=detach)
        client, batch = ready(ours)
        for adapter in client.model.adapters.values():
            adapter.last.weight.data.fill_(0.05)
        torch.manual_seed(0)
        with adapting(client.model):
            loss = F.cross_entropy(client.model(batch.images), batch.labels)
        early = client.model.adapters["block1-1"].last.bias
        gradients.append(torch.autograd.grad(loss, early)[0])
    assert not torch.allclose(*gradients, rtol=1e-3)


def test_clipping_bounds_the_adapters_step_too(federation):
    training = TRAINING.changed({"clip": 1e-3, "momentum": 0.0, "lr": 1.0})
    ours = fedfd_a(federation, changes={"training": training})
    client, batch = ready(ours)
    before = copy_of(client.state)
    ours.method._adapt(client, batch)
    moved = [client.state[key] - before[key] for key in adapter_keys(client.model)]
    assert torch.cat([part.flatten() for part in moved]).norm() <= 1.01e-3


def test_without_fedfds_losses_the_network_trains_like_the_base(federation):
    ours = fedfd_a(federation, "fedfd_a+silobn", lambda1=0.0, lambda2=0.0)
    state, base = run_rounds(ours), run_rounds(federation(toy_spec("silobn")))
    assert all(torch.equal(state[key], base[key]) for key in base)
    start = federation(toy_spec("fedfd_a+silobn")).server.state
    assert any(not torch.equal(state[key], start[key]) for key in adapter_keys(ours.server.model))


def test_adapters_are_averaged_and_never_kept(federation):
    for base in ("fedavg", "silobn", "fedbn"):
        ours = fedfd_a(federation, f"fedfd_a+{base}")
        own = adapter_keys(ours.server.model)
        updates = [visit(ours.method, ours.server, client)[0] for client in ours.clients]
        assert not own & ours.clients[0].memory.get("kept", {}).keys()
        for update in updates:
            update.weight = 1 / 3
        ours.method.aggregate(ours.server, updates)
        for key in own:
            mean = sum(update.state[key] for update in updates) / 3
            assert torch.allclose(ours.server.state[key], mean, atol=1e-6)
        assert own <= parameter_names(ours.server.model)


def test_nothing_more_is_shared_than_weights(federation):
    ours = fedfd_a(federation, "fedfd_a+silobn", lambda1=0.0, lambda2=0.0)
    run_rounds(ours, 2)
    counts = ours.server.traffic.counts
    assert {kind for kind in counts if kind.startswith("up/")} == {"up/weights"}
    assert counts["up/weights"] == 6 * bytes_of(ours.server.state)
    assert counts["down/statistics"] > 0  # adapters need the global statistics without FedFD too
    assert compose("fedfd_a").info.shares == ()


@pytest.mark.parametrize("first", [True, False])
def test_the_inference_rules_are_rows_of_one_run(store, place, first):
    parts = ("fedfd_a", *RULES, "silobn") if first else (*RULES, "fedfd_a", "silobn")
    result = execute(toy_spec("+".join(parts)), store, place)
    rows = list(dict.fromkeys(result.records["predictor"]))
    assert rows == ["adapter", *RULES, "global"] if first else [*RULES, "adapter", "global"]
    assert result.about["predictor"] == rows[0]


def test_the_rules_see_the_trained_network_without_adapters(federation):
    ours = federation(
        toy_spec("tbn+fixed_alpha+fedfd_a", overrides={"fixed_alpha": {"alpha_instance": 0}})
    )
    run_rounds(ours)
    rows = ours.method.predictors(ours.server, ours.clients)
    x = next(ours.clients[0].val.evaluation_batches()).images
    found = {name: logits(predict.eval(), x) for name, predict in rows.items()}
    assert torch.allclose(found["fixed_alpha"], found["global"], atol=1e-5)
    force(ours.server.model, 0.1, 1.5)
    assert torch.allclose(logits(rows["adapter"], x), found["tbn"], atol=1e-3)
    assert not torch.allclose(found["adapter"], found["global"], atol=1e-3)


def test_local_validation_takes_the_adapters_and_the_received_statistics(federation):
    ours = fedfd_a(federation, "fedfd_a+silobn")
    run_rounds(ours, 1)
    client, batch = ready(ours)
    ours.method.step(client, batch)
    client.model.eval()
    predict = ours.method.local_predictor(client)
    reference = copy.deepcopy(client.model)
    for layer in global_norms(reference).values():
        layer.running_mean.copy_(layer.snapshot.mean)
        layer.running_var.copy_(layer.snapshot.std.square() - layer.eps)
        layer.snapshot = None
    x = next(client.val.evaluation_batches()).images
    assert torch.allclose(logits(predict, x), logits(Adapted(reference), x), atol=1e-4)
    assert not torch.allclose(logits(predict, x), logits(client.model, x), atol=1e-3)


def test_after_the_upload_a_model_is_judged_by_its_own_statistics(federation):
    """GA asks for the risk of the new global model, whose statistics nobody has received yet."""
    ours = federation(toy_spec("ga+fedfd_a+silobn"))
    run_rounds(ours, 1)
    layers = global_norms(ours.clients[0].model).values()
    assert [layer.snapshot for layer in layers] == [None] * 4


def test_the_adapters_optimiser_is_carried_over_where_the_protocol_says_so(federation):
    for keep in (True, False):
        training = TRAINING.changed({"keep_optimizer": keep, "schedule": "cosine"})
        ours = fedfd_a(federation, changes={"training": training}, adapter_lr=2.0)
        run_rounds(ours, 2)
        client = ours.clients[0]
        assert ("adapter_optimizer" in client.memory) == keep
        assert "adapter_optimizer" not in client.scratch
        client.round = ours.server.round = 2
        client, _ = ready(ours)
        optimizer = client.scratch["adapter_optimizer"]
        assert optimizer.param_groups[0]["lr"] == pytest.approx(2 * client.lr)
        assert client.lr == pytest.approx(0.05 * 0.25)
        assert bool(optimizer.state) == keep


def test_interpolations_by_layer_and_image():
    model, x = a_model(), images(6)
    found = interpolations(model, x)
    assert list(found) == ["block1.1", "block2.1", "block3.1", "block4.1"]
    assert all(alpha.shape == (6,) for alpha in found.values())
    force(model, 5.0, 0.25)
    assert all(torch.allclose(a, torch.full((6,), 0.25)) for a in interpolations(model, x).values())


def test_adapters_start_near_their_start_and_learn_to_tell_samples_apart(federation):
    training = TRAINING.changed({"rounds": 4, "local_steps": 8})
    ours = fedfd_a(federation, changes={"training": training})
    x = next(ours.clients[0].val.evaluation_batches()).images
    start = torch.cat(list(interpolations(ours.server.model, x).values()))
    assert start.mean().item() == pytest.approx(0.1, abs=0.1)
    run_rounds(ours)
    after = interpolations(ours.server.model, x)
    assert any(alpha.std() > 1e-3 for alpha in after.values())
    assert all(((alpha >= 0) & (alpha <= 1)).all() for alpha in after.values())


def test_it_does_not_go_with_layers_that_have_learnt_a_mix(federation):
    for expression in ("fedfd_a+bin", "fedfd_a+dson"):
        with pytest.raises(UserError, match="already mix batch and instance statistics"):
            federation(toy_spec(expression))
    ours = federation(toy_spec("ibn+fedfd_a"))
    with pytest.raises(UserError, match="write it to the right"):
        next(rounds(ours.method, ours.server, ours.clients))
    with pytest.raises(UserError, match="put fedfd_a first"):
        compose("fedsam+fedfd_a")
    both = run_rounds(federation(toy_spec("fedfd_a+fedsam")))
    assert not equal(both, run_rounds(federation(toy_spec("fedfd_a"))))
