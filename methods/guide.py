"""Guide: the global classifier, frozen for the round, must also be right on the client's features.

    L = CE(h(g(x)), y) + λ CE(h_G(g(x)), y)      h_G = the classifier received this round

It wraps any base, whose loss takes the place of the first term: `guide+fedavg` (the paper's
gFedAvg, 83.68 on PACS), `guide+ibn` (84.32), `guide+dson` (83.99), `guide+elcfs`, `guide+ccst`,
`guide+mixstyle`. `gperxan` has it built in.

Paper: Le et al., Efficiently Assemble Normalization Layers and Regularization for Federated Domain
Generalization (gPerXAN), CVPR 2024; code lhkhiem28/gPerXAN. Leaves the client besides weights:
nothing. Both heads see the same features of one pass: those that the base's loss classifies, with
whatever the base does to them. A base with several passes is guided in the first (ELCFS: on the
client's own images; `elcfs+guide` guides both).

The paper searches λ in 0, 0.25, …, 1; the code has 0.5, the default here. λ = 0 is the base, bit
for bit. In the first step of a round h = h_G, so the loss is 1 + λ times the cross-entropy.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmark.hparams import Choice, hp
from benchmark.method import Batch, Method, register
from methods.ops.features import classified


@register(
    "guide",
    label="Guide",
    paper="Efficiently Assemble Normalization Layers and Regularization for Federated Domain "
    "Generalization",
    venue="CVPR 2024",
    category="federated DG",
)
class Guide(Method):
    """Features that the global classifier can use."""

    guide_lambda: float = hp(0.5, Choice(0.0, 0.25, 0.5, 0.75, 1.0), "λ, of the guidance", low=0)

    def receive(self, server, client) -> None:
        super().receive(server, client)
        if self.guide_lambda:
            head = client.model.classifier
            client.scratch["guide"] = [part.detach().clone() for part in (head.weight, head.bias)]

    def loss(self, client, batch: Batch) -> torch.Tensor:
        if self.guide_lambda == 0:
            return super().loss(client, batch)
        loss, features, _ = classified(super().loss, client, batch)
        guided = F.linear(features, *client.scratch["guide"])
        return loss + self.guide_lambda * F.cross_entropy(guided, batch.labels)
