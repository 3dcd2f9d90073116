"""FedASAM: perturbations that scale with the weights."""

import pytest
import torch

from methods.fedasam import FedASAM
from methods.fedsam import FedSAM
from tests.conftest import toy_spec
from tests.methods.scalar import Weight, scalar_federation
from tests.test_federation import equal, run_rounds


def perturbed(name: str, start: float, **hparams) -> float:
    model = Weight(start, name)
    (0.5 * model.value.square().sum()).backward()
    step = FedASAM(**hparams).uphill(list(model.named_parameters()))
    return (model.value + step[0]).item()


def test_scalar_oracle():
    """L = ½w², w = 2, η_A = 0, ρ = 0.1: T²g/|Tg| = T = 2, so the point is 2.2."""
    assert perturbed("weight", 2.0, rho=0.1, asam_eta=0.0) == pytest.approx(2.2, abs=1e-6)
    assert perturbed("weight", -2.0, rho=0.1, asam_eta=0.5) == pytest.approx(-2.25, abs=1e-6)


def test_a_bias_moves_as_in_sam():
    assert perturbed("bias", 2.0, rho=0.1, asam_eta=0.2) == pytest.approx(2.1, abs=1e-6)


def test_the_step_descends_from_the_weights_with_the_gradient_at_the_perturbed_point(monkeypatch):
    """w = 2 − 0.1·2.2."""
    from benchmark.federation import rounds

    hparams = {"rho": 0.1, "asam_eta": 0.0}
    parts = scalar_federation(monkeypatch, "fedasam", [0.0], start=2.0, hparams=hparams)
    next(rounds(*parts))
    assert parts[1].model.value.item() == pytest.approx(1.78, abs=1e-6)


def test_one_norm_over_weights_and_biases():
    """g = (3, 4), T = (2, 1): ε = ρ·(4·3, 4)/‖(6, 4)‖."""
    model = torch.nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(2.0)
    model.weight.grad, model.bias.grad = torch.tensor([[3.0]]), torch.tensor([4.0])
    weight, bias = FedASAM(rho=1.0, asam_eta=0.0).uphill(list(model.named_parameters()))
    assert weight.item() == pytest.approx(12 / 52**0.5, rel=1e-6)
    assert bias.item() == pytest.approx(4 / 52**0.5, rel=1e-6)


def test_rescaling_a_layer_rescales_its_perturbation():
    """Twice the weight and half its gradient, the same function: the relative move is the same."""
    moves = []
    for scale in (1.0, 2.0):
        weight = torch.nn.Parameter(torch.tensor([3.0, -1.0]) * scale)
        weight.grad = torch.tensor([0.2, 0.7]) / scale
        step = FedASAM(rho=0.5, asam_eta=0.0).uphill([("weight", weight)])[0]
        moves.append(step / weight.detach())
    assert torch.allclose(*moves)


def test_it_extends_fedsam_with_its_own_defaults(federation):
    assert issubclass(FedASAM, FedSAM)
    assert (FedASAM().rho, FedASAM().asam_eta, FedASAM().bn_second_pass) == (0.7, 0.2, False)
    ours = federation(toy_spec("fedasam"))
    state = run_rounds(ours)
    assert not equal(state, run_rounds(federation(toy_spec("fedsam"))))
    assert set(ours.server.traffic.counts) == {"up/weights", "down/weights"}


def test_without_radius_it_is_fedavg_bit_for_bit(federation):
    without = toy_spec("fedasam", overrides={"fedasam": {"rho": 0.0}})
    assert equal(run_rounds(federation(without)), run_rounds(federation(toy_spec("fedavg"))))
