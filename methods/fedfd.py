"""FedFD: clients also train on features normalised with statistics between theirs and all clients'.

    μ_Δ = u μ_k + (1 − u) μ_G      σ_Δ = u σ_k + (1 − u) σ_G      u ~ U(0, 1) per channel
    L = (1 − λ1) CE(C(f), y) + λ1 CE(C(f_Δ), y) + λ2 mean (f − f_Δ)²

f are the classifier's inputs of the ordinary pass, f_Δ those of a second pass in which every layer
that batch-normalises maps uses μ_Δ, σ_Δ, one after the other. G are the global model's statistics
at the start of the round, constants; k are each sample's own. u is drawn for every step and layer.

Paper: Yang et al., Feature Diversification and Adaptation for Federated Domain Generalization, ECCV
2024; no public code. Leaves the client besides weights: nothing; clients that keep their running
statistics are sent the global ones besides (`fedfd+silobn`, the paper's default base: 84.07 on
PACS; `fedfd+fedavg`, `fedfd+fedbn`).

Stated: λ1 = 0.1, λ2 = 4, U(0, 1), statistics of samples, which `local_statistic=batch` changes.
u_low = u_high is a fixed u (0: global only, 81.75; 1: instance only, 82.52; 0.5: 83.43).
`fedfd_pass=mixstyle` is its comparison "Mixstyle with CAL" (82.98): the second pass has ordinary
batch normalisation with MixStyle in it. Not stated and chosen here:
- σ = sqrt(var + eps) on both sides, so u = 0 is exactly batch normalisation with global statistics
  and u = 1 exactly instance normalisation; with u beyond [0, 1], σ_Δ stays above sqrt(eps).
- One u for the whole batch, as the equation has no index of samples (`per_sample=True`: one each).
- The second pass touches no running statistics. BatchNorm1d has no statistics of a sample and uses
  the batch's there.
- Gradients flow through the samples' statistics and into both features (`detach_stats`,
  `detach_clean`).
The paper prints ‖f − f_Δ‖², a sum over features (`cafl_reduction=sum`). In a trial with its λ2, its
learning rate and its network, but fresh weights and synthetic images, that term drew all features
to 0, and it diverges on small networks; so the default is the mean over features.
G are the average of the last round's clients; nobody remembers anything of those who were absent.
With λ1 = λ2 = 0 there is no second pass: the base. Layers that learn a mix themselves (`fedfd+bin`,
`fedfd+dson`) use it in the ordinary pass only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn

from benchmark.backbones.base import Backbone, replace_norm
from benchmark.errors import UserError
from benchmark.hparams import Stated, Uniform, hp
from benchmark.method import Batch, Method, register
from methods.mixstyle import StyleMixing
from methods.ops.agreement import feature_distance, total_loss
from methods.ops.batchnorm import frozen_statistics
from methods.ops.features import classified
from methods.ops.global_norm import (
    GlobalNorm2d,
    drop_snapshot,
    mixing,
    statistics_keys,
    take_snapshot,
    with_global,
)
from methods.ops.normalisation import Statistics
from methods.ops.stages import early_stages


class SecondPassStyles(StyleMixing):
    """MixStyle that acts only while `active`."""

    active: bool = False

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        return super().forward(maps) if self.active else maps


@register(
    "fedfd",
    label="FedFD",
    paper="Feature Diversification and Adaptation for Federated Domain Generalization",
    venue="ECCV 2024",
    category="federated DG",
    needs_batchnorm=True,
)
class FedFD(Method):
    """Client-agnostic losses on features of locally and globally mixed statistics."""

    lambda1: float = hp(0.1, Uniform(0.1, 0.5), "λ1, of classifying f_Δ", low=0, high=1)
    lambda2: float = hp(4.0, Uniform(2, 5), "λ2, of the distance of the features", low=0)
    u_low: float = hp(0.0, doc="least weight of local statistics")
    u_high: float = hp(1.0, doc="largest weight of local statistics; equal to u_low: fixed")
    cafl_reduction: str = hp("mean", Stated("mean", "sum"), "over the features, of the distance")
    local_statistic: str = hp("instance", Stated("instance", "batch"), "what u = 1 stands for")
    per_sample: bool = hp(False, doc="draw u for every sample")
    detach_stats: bool = hp(False, doc="no gradient through local statistics in the second pass")
    detach_clean: bool = hp(False, doc="the distance teaches the second pass only")
    fedfd_pass: str = hp("fedfd", Stated("fedfd", "mixstyle"), "what diversifies the second pass")
    fedfd_mixstyle_p: float = hp(0.5, doc="of mixstyle: probability at each stage", low=0, high=1)

    @property
    def _second(self) -> bool:
        """Whether there is a second pass."""
        return self.lambda1 > 0 or self.lambda2 > 0

    @property
    def _informed(self) -> bool:
        """Whether layers must know the global statistics."""
        return self._second and self.fedfd_pass == "fedfd"

    def build(self, make: Callable[[], Backbone]) -> Backbone:
        if self.u_low > self.u_high:
            raise UserError(f"u_low={self.u_low} must not exceed u_high={self.u_high}")
        model = super().build(make)
        if self._informed:
            replace_norm(model, with_global)
        if self._second and self.fedfd_pass == "mixstyle":
            for stage in early_stages(model, 3):
                model.insert(stage, SecondPassStyles(self.fedfd_mixstyle_p, 0.1))
        return model

    def prepare(self, server, clients) -> None:
        super().prepare(server, clients)
        layers = [m for m in server.model.modules() if isinstance(m, nn.BatchNorm2d)]
        if self._informed and not all(isinstance(layer, GlobalNorm2d) for layer in layers):
            raise UserError(
                f"{self.name!r}: a method on the left puts its own layers in the place of FedFD's; "
                f"write it to the right"
            )

    def receive(self, server, client) -> None:
        super().receive(server, client)
        if not self._informed:
            return
        kept = client.memory.get("kept", {})
        keys = statistics_keys(client.model)
        missing = {key: server.state[key] for key in keys if key in kept}
        if missing:  # the others have come with the weights
            server.send(client, "statistics", missing)
        take_snapshot(client.model, server.state)

    def loss(self, client, batch: Batch) -> torch.Tensor:
        if not self._second:
            return super().loss(client, batch)
        model = client.model
        plain, features, _ = classified(super().loss, client, batch)
        with self._diversified(model):
            diverse = model.features(batch.images)
        classification = F.cross_entropy(model.classifier(diverse), batch.labels)
        features = features.detach() if self.detach_clean else features
        distance = feature_distance(features, diverse, self.cafl_reduction)
        return total_loss(plain, classification, distance, self.lambda1, self.lambda2)

    @contextlib.contextmanager
    def _diversified(self, model: Backbone) -> Iterator[None]:
        """The second pass; running statistics come out as they went in."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(frozen_statistics(model))
            if self.fedfd_pass == "fedfd":
                of_batch = self.local_statistic == "batch"
                mixed = mixing(model, lambda path: self._draw, of_batch, self.detach_stats)
                stack.enter_context(mixed)
            for place in model.taps.modules():
                if isinstance(place, SecondPassStyles):
                    place.active = True
                    stack.callback(setattr, place, "active", False)
            yield

    def _draw(self, local: Statistics, reference: Statistics) -> torch.Tensor | float:
        """u, drawn on the CPU, so that all devices see the same."""
        if self.u_low == self.u_high:
            return self.u_low
        shape = local.mean.shape if self.per_sample else reference.mean.shape
        draws = torch.rand(shape).to(local.mean.device)
        return self.u_low + (self.u_high - self.u_low) * draws

    def upload(self, client):
        drop_snapshot(client.model)  # what is judged from now on has statistics of its own
        return super().upload(client)
