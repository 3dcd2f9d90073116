"""MOON: a client's features are drawn to the global model's and away from its own last model's.

    L = CE + μ·ℓ    ℓ = −log e^{s(z,z_g)/T} / (e^{s(z,z_g)/T} + e^{s(z,z_p)/T})    s = cosine

z, z_g, z_p: the batch's projected features under the current, the received and the client's
previous model; only z has a gradient. The projection Linear(d, d), ReLU, Linear(d, 256) sits before
the classifier and is averaged like the rest.

Paper: Li, He and Song, Model-Contrastive Federated Learning, CVPR 2021. Leaves the client besides
weights: nothing (the weights include the projection). Three forward passes and one backward.
Default μ = 1 is the code's; its README's example for CIFAR-10 has 5. As in the code the two frozen
models run in evaluation mode, and a client without a previous model (its first visit) trains
without ℓ. The previous model is the uploaded one, after local training and checkpoint selection; a
client that is not sampled keeps it. Only the code's default of one previous model is kept. With
local batch normalisation (`moon+fedbn`) the received model is the one the client has: the server's
with its own layers. With μ = 0 it is FedAvg on the network with the projection.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from benchmark.backbones.base import Backbone
from benchmark.hparams import Choice, hp
from benchmark.method import Batch, Method, register
from benchmark.state import State, copy_of, state_of, write
from methods.ops.features import classified


@register(
    "moon",
    label="MOON",
    paper="Model-Contrastive Federated Learning",
    venue="CVPR 2021",
    category="federated",
)
class Moon(Method):
    """Cross-entropy plus a contrast between global and previous features."""

    moon_mu: float = hp(1.0, Choice(0.1, 1.0, 5.0), "weight of the contrastive loss", low=0)
    moon_temperature: float = hp(0.5, doc="of the contrastive loss", low=1e-3)
    moon_size: int = hp(256, doc="dimensions of the projected features", low=1)

    def build(self, make: Callable[[], Backbone]) -> Backbone:
        model = super().build(make)
        wide = model.feature_size
        head = nn.Sequential(nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, self.moon_size))
        model.insert("features", head)
        model.widen_classifier(self.moon_size)
        return model

    def receive(self, server, client) -> None:
        super().receive(server, client)
        if self.moon_mu and "moon_previous" in client.memory:
            states = client.state, client.memory["moon_previous"]
            client.scratch["moon"] = [_frozen(client.model, state) for state in states]

    def loss(self, client, batch: Batch) -> torch.Tensor:
        if "moon" not in client.scratch:
            return super().loss(client, batch)
        loss, z, _ = classified(super().loss, client, batch)
        with torch.no_grad():
            z_global, z_previous = (m.features(batch.images) for m in client.scratch["moon"])
        return loss + self.moon_mu * contrast(z, z_global, z_previous, self.moon_temperature)

    def upload(self, client):
        client.scratch.pop("moon", None)  # two models: not to be held for every client at once
        client.memory["moon_previous"] = copy_of(client.state)
        return super().upload(client)


def contrast(
    z: torch.Tensor, z_global: torch.Tensor, z_previous: torch.Tensor, temperature: float
) -> torch.Tensor:
    """ℓ, the mean over the batch: softplus of the difference is −log of the two-way softmax."""
    nearer = F.cosine_similarity(z, z_previous) - F.cosine_similarity(z, z_global)
    return F.softplus(nearer / temperature).mean()


def _frozen(model: Backbone, state: State) -> Backbone:
    """A model of its own with this state that neither trains nor changes."""
    other = copy.deepcopy(model).eval().requires_grad_(False)
    write(state_of(other), state)
    return other
