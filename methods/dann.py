"""DANN: features from which a second head, trained to do so, cannot tell the domain.

    L = CE(C(F(x)), y) + CE(D(R_λ(F(x))), domain)    R_λ: identity forwards, −λ · gradient back

The domain head D descends, the features F ascend on the domains' cross-entropy; C takes no part in
it. λ grows over the rounds as 2/(1 + e^(−10p)) − 1, p being the part of all rounds that has passed.

Paper: Ganin et al., Domain-Adversarial Training of Neural Networks, JMLR 2016. Sees the images of
all sources in one place, so everything leaves the client. The original aligns one source with an
unlabelled target; here, as in the domain generalisation literature, the K sources with each other.
Differences: DomainBed alternates between an Adam step of D and one of F and C with constant λ = 1;
this is the original's single step with its growing λ (`dann_ramp=False` keeps it constant), for
which D has DomainBed's size, three layers of width 256, and the optimiser of the protocol. λ
changes once a round where the original changes it at every step.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from benchmark.hparams import Choice, LogUniform, hp
from benchmark.method import Batch, register
from methods.erm_pool import ErmPool
from methods.ops.local_modules import keep, lend, train_along
from methods.ops.sources import source_count, source_numbers


@register(
    "dann",
    label="DANN",
    paper="Domain-Adversarial Training of Neural Networks",
    venue="JMLR 2016",
    category="centralised",
    shares=("images",),
    centralised=True,
)
class DANN(ErmPool):
    """Cross-entropy of the class, and of the domain through a gradient reversal."""

    dann_lambda: float = hp(1.0, LogUniform(0.01, 100), "λ at the end of its growth", low=0)
    dann_ramp: bool = hp(True, doc="let λ grow from 0 over the rounds")
    dann_width: int = hp(256, Choice(64, 128, 256, 512, 1024), "of the domain head", low=1)

    def strength(self, progress: float) -> float:
        """λ when this part of all rounds has passed."""
        ramp = 2 / (1 + math.exp(-10 * progress)) - 1 if self.dann_ramp else 1.0
        return self.dann_lambda * ramp

    def receive(self, server, client) -> None:
        super().receive(server, client)
        sizes = client.model.feature_size, self.dann_width, source_count(client)
        lend(client, "dann", lambda: domain_head(*sizes))

    def optimizer(self, client) -> torch.optim.Optimizer:
        return train_along(super().optimizer(client), client.scratch["dann"])

    def upload(self, client):
        keep(client, "dann")
        return super().upload(client)

    def loss(self, client, batch: Batch) -> torch.Tensor:
        features = client.model.features(batch.images)
        loss = F.cross_entropy(client.model.classifier(features), batch.labels)
        reversed_features = reverse_gradient(features, self.strength(client.progress))
        domains = source_numbers(client, batch.domains)
        return loss + F.cross_entropy(client.scratch["dann"](reversed_features), domains)


def domain_head(features: int, width: int, domains: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(features, width),
        nn.ReLU(inplace=True),
        nn.Linear(width, width),
        nn.ReLU(inplace=True),
        nn.Linear(width, domains),
    )


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor, strength: float) -> torch.Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return -ctx.strength * gradient, None


def reverse_gradient(x: torch.Tensor, strength: float) -> torch.Tensor:
    """`x` itself; what flows back is −strength times what comes in."""
    return _Reversal.apply(x, strength)
