"""FedFD-A: FedFD, and adapters that say how much of each test sample's own statistics to use.

    μ* = α μ_i + (1 − α) μ_G      σ* = α σ_i + (1 − α) σ_G
    α = clamp(z δ + ε, 0, 1)      (δ, ε) = G([μ_i − μ_G; σ_i − σ_G])      z ~ N(0, 1)

Every layer that batch-normalises maps has an adapter G, two linear layers 2C → C/16 → 2; α is one
number for a sample and layer. On each batch FedFD's step of the network comes first, without the
adapters; then the adapters alone make a step on the cross-entropy of a pass with μ*, σ* in all
layers, the global statistics being those of the start of the round. At test z = 0, and nothing
depends on other samples.

Paper: Yang et al., Feature Diversification and Adaptation for Federated Domain Generalization, ECCV
2024; no public code. Leaves the client besides weights: nothing; adapters are weights, averaged
like others and never kept. Rows: `adapter` (the method's own) and `global` (FedFD's inference); its
Table 3 is rows of one run, `fedfd_a+tbn+iabn+mixnorm+random_alpha+fixed_alpha+silobn`, but for BIN
and DSON, which train other layers. The adapter on plain SiloBN (83.40 on PACS): λ1 = λ2 = 0.

The width C/16 with biases is what the paper's 11.53 M parameters imply: 218,540 on ResNet-18 (on
ResNet-50 it would be 3.5 M). Its prose puts the adapters in "each BN layer"; vectors (BatchNorm1d)
have no statistics of a sample and no adapter. Not stated and chosen here:
- ReLU between the two; ε starts at `adapter_start` and hardly depends on the input, because the
  clamp has no gradient outside of (0, 1); δ starts at 0.1.
- The adapters' optimiser is the protocol's, apart from the network's, `adapter_lr` times its rate,
  clipped and carried over rounds like it.
- The adapters' pass touches no running statistics; BatchNorm1d uses the batch's in it. Gradients
  flow through adapters' inputs into earlier adapters (`adapter_detach=True`: they do not).
- Clients validate their checkpoints as the model is tested: with adapters and the global statistics
  they have received.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import nn

from benchmark.backbones.base import Backbone
from benchmark.hparams import LogUniform, hp
from benchmark.method import Batch, Predictor, register
from methods.fedfd import FedFD
from methods.ops.batchnorm import frozen_statistics
from methods.ops.capture import captured
from methods.ops.global_norm import global_norms, mixing
from methods.ops.normalisation import Statistics, refuse_trained
from methods.ops.side_training import side_optimizer


class InstanceAdapter(nn.Module):
    """G and the clamp of one layer: a mix, α (B, 1) from a sample's and the global statistics."""

    def __init__(self, channels: int, reduction: int, start: float, detached: bool):
        super().__init__()
        hidden = max(1, channels // reduction)
        self.first, self.last = nn.Linear(2 * channels, hidden), nn.Linear(hidden, 2)
        self.detached = detached
        with torch.no_grad():
            self.last.weight.mul_(0.1)
            self.last.bias.copy_(torch.tensor([0.1, start]))

    def forward(self, local: Statistics, reference: Statistics) -> torch.Tensor:
        distance = torch.cat((local.mean - reference.mean, local.std - reference.std), 1)
        distance = distance.detach() if self.detached else distance
        spread, centre = self.last(self.first(distance).relu()).split(1, 1)
        z = torch.randn(len(centre), 1).to(centre.device) if self.training else 0.0
        return interpolation(spread, centre, z)


def interpolation(
    spread: torch.Tensor, centre: torch.Tensor, z: torch.Tensor | float
) -> torch.Tensor:
    """Eq. 7: δ is the spread, ε the centre."""
    return (z * spread + centre).clamp(0, 1)


def adapter_of(model: Backbone, path: str) -> InstanceAdapter:
    """The adapter of the layer at a path; names of modules have no dots."""
    return model.adapters[path.replace(".", "-")]


def adapting(model: Backbone) -> AbstractContextManager[None]:
    """Every layer asks its adapter meanwhile."""
    # The call, not the module: a layer would take a module for a part of its own.
    return mixing(model, lambda path: adapter_of(model, path).__call__)


@torch.no_grad()
def interpolations(model: Backbone, images: torch.Tensor) -> dict[str, torch.Tensor]:
    """α of each image in each layer, by the layers' paths in order (the paper's Fig. 6)."""
    model.eval()
    with contextlib.ExitStack() as stack:
        stack.enter_context(adapting(model))
        found = {
            path: stack.enter_context(captured(adapter_of(model, path)))
            for path in global_norms(model)
        }
        model(images)
    return {path: outputs[0].flatten() for path, outputs in found.items()}


class Adapted(nn.Module):
    """Predicts with the adapters of a model at work."""

    def __init__(self, model: Backbone, predict: Predictor | None = None):
        super().__init__()
        self.model = model
        self.predict = model if predict is None else predict

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        with adapting(self.model):
            return self.predict(images)


@register(
    "fedfd_a",
    label="FedFD-A",
    paper="Feature Diversification and Adaptation for Federated Domain Generalization",
    venue="ECCV 2024",
    category="federated DG",
    needs_batchnorm=True,
)
class FedFDA(FedFD):
    """FedFD with instance feature adapters, trained in turn with the network."""

    adapter_reduction: int = hp(16, doc="channels over hidden units of an adapter", low=1)
    adapter_start: float = hp(0.1, doc="α before training", low=0.01, high=0.99)
    adapter_lr: float = hp(1.0, LogUniform(0.1, 10), "learning rate over the network's", low=0)
    adapter_detach: bool = hp(False, doc="no gradient through the adapters' inputs")

    @property
    def _informed(self) -> bool:
        return True

    def build(self, make: Callable[[], Backbone]) -> Backbone:
        model = super().build(make)
        refuse_trained(model)
        model.adapters = nn.ModuleDict()
        for path, layer in global_norms(model).items():
            model.adapters[path.replace(".", "-")] = InstanceAdapter(
                layer.num_features, self.adapter_reduction, self.adapter_start, self.adapter_detach
            )
        return model

    def optimizer(self, client) -> torch.optim.Optimizer:
        optimizer = super().optimizer(client)
        adapters = client.model.adapters
        own = {id(parameter) for parameter in adapters.parameters()}
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if id(p) not in own]
        left = client.memory.get("adapter_optimizer")
        other = side_optimizer(self, client, adapters, self.adapter_lr, left)
        client.scratch["adapter_optimizer"] = other
        return optimizer

    def step(self, client, batch: Batch) -> torch.Tensor:
        loss = super().step(client, batch)
        self._adapt(client, batch)
        return loss

    def _adapt(self, client, batch: Batch) -> None:
        """One step of the adapters; gradients cross the network but are not left on it."""
        model, parameters = client.model, list(client.model.adapters.parameters())
        with frozen_statistics(model), adapting(model):
            loss = F.cross_entropy(model(batch.images), batch.labels)
        for parameter, gradient in zip(
            parameters, torch.autograd.grad(loss, parameters), strict=True
        ):
            parameter.grad = gradient
        if client.training.clip is not None:
            nn.utils.clip_grad_norm_(parameters, client.training.clip)
        optimizer = client.scratch["adapter_optimizer"]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def local_predictor(self, client) -> Predictor:
        return Adapted(client.model, super().local_predictor(client))

    def upload(self, client):
        optimizer = client.scratch.pop("adapter_optimizer")
        if client.training.keep_optimizer:
            client.memory["adapter_optimizer"] = optimizer.state_dict()
        return super().upload(client)

    def predictors(self, server, clients) -> dict[str, Predictor]:
        return {"adapter": Adapted(server.model), **super().predictors(server, clients)}
