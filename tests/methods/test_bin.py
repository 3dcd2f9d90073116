"""BIN: gates between batch and instance normalisation."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmark.backbones.base import make_backbone
from benchmark.errors import UserError
from benchmark.federation import visit
from benchmark.method import compose, make_method
from benchmark.state import batchnorm_keys
from methods.bin import BatchInstanceNorm2d, clamp_gates, gates_of
from methods.ops.batchnorm import frozen_statistics
from methods.ops.normalisation import converted
from tests.conftest import TRAINING, toy_spec
from tests.methods.parts import trained_norm
from tests.test_federation import equal, run_rounds


def layers() -> tuple[BatchInstanceNorm2d, nn.BatchNorm2d]:
    """A gated layer and the batch normalisation it was made from."""
    return converted(BatchInstanceNorm2d, trained_norm()), trained_norm()


@pytest.mark.parametrize("training", [True, False])
def test_an_open_gate_is_batch_normalisation_bit_for_bit(training):
    gated, plain = layers()
    x = torch.randn(5, 6, 4, 4)
    assert gated.gate.tolist() == [1.0] * 6
    assert torch.equal(gated.train(training)(x), plain.train(training)(x))
    assert torch.equal(gated.running_mean, plain.running_mean)
    assert torch.equal(gated.running_var, plain.running_var)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("gate", [0.0, 0.25])
def test_other_gates_mix_outputs_and_count_the_bias_once(training, gate):
    gated, plain = layers()
    gated.gate.data.fill_(gate)
    x = torch.randn(5, 6, 4, 4)
    instance = F.instance_norm(x, weight=plain.weight, bias=plain.bias)
    expected = gate * plain.train(training)(x) + (1 - gate) * instance
    assert torch.allclose(gated.train(training)(x), expected, atol=1e-5)


def test_frozen_statistics_hold_for_it():
    gated, _ = layers()
    before = gated.running_mean.clone()
    with frozen_statistics(gated):
        gated(torch.randn(5, 6, 4, 4))
    assert torch.equal(gated.running_mean, before)


def test_a_converted_network_is_the_same_and_has_a_gate_per_channel():
    def make():
        torch.manual_seed(0)
        return make_backbone("resnet18", 7, "none")

    plain, gated = make().eval(), make_method("bin", {}).build(make).eval()
    x = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        assert torch.equal(plain(x), gated(x))
    assert sum(gate.numel() for gate in gates_of(gated)) == 4800
    assert not any(type(m) is nn.BatchNorm2d for m in gated.modules())
    assert batchnorm_keys(gated) == batchnorm_keys(plain)


def test_with_gates_that_do_not_learn_it_is_fedavg_bit_for_bit(federation):
    fedavg = run_rounds(federation(toy_spec("fedavg")))
    still = run_rounds(federation(toy_spec("bin", overrides={"bin": {"bin_lr": 0.0}})))
    assert equal({key: still[key] for key in fedavg}, fedavg)
    learnt = run_rounds(federation(toy_spec("bin")))
    assert not equal({key: learnt[key] for key in fedavg}, fedavg)


def test_gates_learn_and_are_shared_as_weights(federation):
    ours = federation(toy_spec("bin"))
    run_rounds(ours)
    gates = torch.cat(gates_of(ours.server.model))
    assert (gates < 1).float().mean() > 0.2
    assert gates.max() <= 1
    assert compose("bin").info.shares == ()
    assert set(ours.server.traffic.counts) == {"up/weights", "down/weights"}


def test_gates_stay_in_range_however_fast_they_learn(federation):
    ours = federation(toy_spec("bin", overrides={"bin": {"bin_lr": 1e4}}))
    for client in ours.clients:
        visit(ours.method, ours.server, client)
        gates = torch.cat(gates_of(client.model))
        assert gates.min() == 0
        assert gates.max() == 1


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_gates_have_ten_times_the_rate_and_no_decay(federation, kind):
    training = TRAINING.changed({"optimizer": kind, "weight_decay": 0.1})
    ours = federation(toy_spec("bin", training=training))
    client = ours.clients[0]
    optimizer = ours.method.optimizer(client)
    others, gates = optimizer.param_groups
    assert (others["lr"], others["weight_decay"]) == (0.05, 0.1)
    assert (gates["lr"], gates["weight_decay"]) == (pytest.approx(0.5), 0.0)
    assert {id(p) for p in gates["params"]} == {id(p) for p in gates_of(client.model)}
    count = len(list(client.model.parameters()))
    assert len(others["params"]) + len(gates["params"]) == count


def test_one_step_by_hand(federation):
    """ρ = 1 with gradient g: SGD with rate 0.5 gives 1 − 0.5 g, brought back to [0, 1]."""
    ours = federation(toy_spec("bin", training=TRAINING.changed({"momentum": 0.0})))
    client = ours.clients[0]
    optimizer = ours.method.optimizer(client)
    gate = gates_of(client.model)[0]
    for parameter in client.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    gate.grad[:3] = torch.tensor([-1.0, 0.5, 10.0])
    optimizer.step()
    assert gate[:4].tolist() == [1.0, 0.75, 0.0, 1.0]


def test_loaded_gates_are_brought_back_to_range(federation):
    ours = federation(toy_spec("bin"))
    gates_of(ours.server.model)[0].data.fill_(1.5)
    ours.method.receive(ours.server, ours.clients[0])
    assert gates_of(ours.clients[0].model)[0].max() == 1
    gates_of(ours.server.model)[0].data.fill_(-1.5)
    clamp_gates(ours.server.model)
    assert gates_of(ours.server.model)[0].min() == 0


def test_gates_keep_their_momentum_over_rounds_where_the_protocol_says_so(federation):
    ours = federation(toy_spec("bin", training=TRAINING.changed({"keep_optimizer": True})))
    run_rounds(ours)
    groups = ours.clients[0].memory["optimizer"]["param_groups"]
    assert [group["weight_decay"] for group in groups] == [0.0, 0.0]
    assert groups[1]["lr"] == pytest.approx(0.5)


def test_fedbn_keeps_batch_normalisation_and_shares_the_gates(federation):
    ours = federation(toy_spec("bin+fedbn"))
    visit(ours.method, ours.server, ours.clients[0])
    assert "block1.1.weight" in ours.clients[0].memory["kept"]
    assert "block1.1.gate" not in ours.clients[0].memory["kept"]


def test_two_trained_mixes_do_not_go_together(federation):
    with pytest.raises(UserError, match="leave out one of the two methods"):
        federation(toy_spec("bin+dson"))
