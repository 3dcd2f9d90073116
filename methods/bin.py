"""BIN: a trained gate per channel between batch and instance normalisation.

    y = γ (ρ x_BN + (1 − ρ) x_IN) + β      ρ ∈ [0, 1] per channel, starts at 1

Paper: Nam and Kim, Batch-Instance Normalization for Adaptively Style-Invariant Neural Networks,
NeurIPS 2018. Leaves the client besides weights: nothing; the gates are weights like others.

As in the public code (hyeonseobnam/Batch-Instance-Normalization): every batch normalisation of maps
becomes this layer, ρ = 1 leaves a network as it was, gates learn with ten times the learning rate
and without weight decay, and are brought back to [0, 1] after every step of the optimiser. In a
federation also after the average, which only server-side optimisers can push out of the range, and
after loading. The FedFD-A paper has it on FedFD-trained networks (83.54 on PACS) without details.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmark.backbones.base import Backbone
from benchmark.hparams import LogUniform, hp
from benchmark.method import Method, register
from methods.ops.centred import instance_norm
from methods.ops.normalisation import TrainedMix, converted, replace_untrained


class BatchInstanceNorm2d(TrainedMix):
    """Batch normalisation, gated per channel against instance normalisation; one γ and one β."""

    def __init__(self, channels: int, *settings) -> None:
        super().__init__(channels, *settings)
        self.gate = nn.Parameter(torch.ones(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Both sides carry γ and β; the weights of the mix sum to one, so they count once.
        batch = super().forward(x)
        instance = instance_norm(x, self.weight, self.bias, self.eps)
        return torch.lerp(instance, batch.to(instance), self.gate[:, None, None])


def gates_of(model: nn.Module) -> list[nn.Parameter]:
    return [m.gate for m in model.modules() if isinstance(m, BatchInstanceNorm2d)]


@torch.no_grad()
def clamp_gates(model: nn.Module) -> None:
    torch._foreach_clamp_min_(gates_of(model), 0.0)
    torch._foreach_clamp_max_(gates_of(model), 1.0)


@register(
    "bin",
    label="BIN",
    paper="Batch-Instance Normalization for Adaptively Style-Invariant Neural Networks",
    venue="NeurIPS 2018",
    category="normalisation",
    needs_batchnorm=True,
)
class BIN(Method):
    """Every layer learns per channel how much of a sample's style to take out."""

    bin_lr: float = hp(10.0, LogUniform(1, 100), "learning rate of gates over the others'", low=0)

    def build(self, make: Callable[[], Backbone]) -> Backbone:
        model = super().build(make)
        replace_untrained(model, lambda old: converted(BatchInstanceNorm2d, old))
        return model

    def receive(self, server, client) -> None:
        super().receive(server, client)
        clamp_gates(client.model)

    def optimizer(self, client) -> torch.optim.Optimizer:
        optimizer = super().optimizer(client)
        gates = gates_of(client.model)
        numbers = {id(gate) for gate in gates}
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if id(p) not in numbers]
        optimizer.add_param_group(
            {"params": gates, "lr": self.bin_lr * client.lr, "weight_decay": 0.0}
        )
        # A hook of the optimiser, so that no way of stepping can leave the clamp out.
        optimizer.register_step_post_hook(lambda *_: clamp_gates(client.model))
        return optimizer

    def aggregate(self, server, updates) -> None:
        super().aggregate(server, updates)
        clamp_gates(server.model)
