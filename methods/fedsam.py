"""FedSAM: clients minimise the loss at the worst point near their weights, so they end up flat.

    ε = ρ·g/‖g‖   g = ∇L(w), one norm over all parameters      w ← w − η·∇L(w + ε), same batch

Paper: Caldarola et al., Improving Generalization in Federated Learning by Seeking Flat Minima, ECCV
2022 (the FedSAM of Qu et al., ICML 2022, has the same client step). Leaves the client besides
weights: nothing. Two forward and two backward passes per step; momentum, weight decay and clipping
act at w, after the second pass. The loss reported is that of the first pass.

Differences: the public code's network has no batch normalisation, so it is silent on statistics;
here only the first pass, at w, updates them (`bn_second_pass=True`: both do). Both passes draw the
same random numbers (dropout masks), the code's do not. Weights come back from a copy instead of by
subtracting ε, bit for bit. The code's CIFAR-10 value is ρ = 0.1; no reproduced paper states one for
its datasets, so the default is SAM's usual 0.05. With ρ = 0 there is no second pass: FedAvg.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.nn.utils import get_total_norm

from benchmark.hparams import Choice, hp
from benchmark.method import Batch, Method, register
from methods.ops.batchnorm import frozen_statistics


@register(
    "fedsam",
    label="FedSAM",
    paper="Improving Generalization in Federated Learning by Seeking Flat Minima",
    venue="ECCV 2022",
    category="federated",
)
class FedSAM(Method):
    """Sharpness-aware local steps: the gradient is taken where the loss is worst nearby."""

    rho: float = hp(0.05, Choice(0.02, 0.05, 0.1), "how far the weights are moved uphill", low=0)
    bn_second_pass: bool = hp(False, doc="let the second pass update batch-norm statistics too")

    def step(self, client, batch: Batch) -> torch.Tensor:
        if self.rho == 0:  # not by super(), which would promise that another step is handed on to
            return Method.step(self, client, batch)
        model, device = client.model, client.train.device
        draws = random_state(device)
        client.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(client, batch)
        loss.backward()
        moved = [(name, w) for name, w in model.named_parameters() if w.grad is not None]
        weights = [weight.detach() for _, weight in moved]
        start = [weight.clone() for weight in weights]
        torch._foreach_add_(weights, self.uphill(moved))
        client.optimizer.zero_grad(set_to_none=True)
        still = contextlib.nullcontext() if self.bn_second_pass else frozen_statistics(model)
        with replayed(draws, device), still:
            self.loss(client, batch).backward()
        torch._foreach_copy_(weights, start)
        client.descend()
        return loss.detach()

    @torch.no_grad()
    def uphill(self, moved: list[tuple[str, torch.nn.Parameter]]) -> list[torch.Tensor]:
        """ε for parameters that hold their gradients."""
        gradients = [weight.grad for _, weight in moved]
        return torch._foreach_mul(gradients, self.rho / (get_total_norm(gradients) + 1e-16))


def random_state(device: torch.device) -> list[torch.Tensor]:
    """Where torch's global generators stand: the processor's and, on a GPU, the GPU's."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _set(states: list[torch.Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)


@contextlib.contextmanager
def replayed(states: list[torch.Tensor], device: torch.device) -> Iterator[None]:
    """Draw as if the generators still stood at `states`; afterwards they go on from where they are
    now, so what follows is the same with or without the replay."""
    now = random_state(device)
    _set(states, device)
    try:
        yield
    finally:
        _set(now, device)
