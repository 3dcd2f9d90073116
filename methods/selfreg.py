"""SelfReg: features and logits of a class are pulled together, without negative pairs.

    L = CE + min(CE, 1) · (λ·L_ind + (1 − λ)·L_hdl)          λ ~ Beta(½, ½), one draw per step
    L_ind = MSE(o, o₂) + 0.3·MSE(f, z₂)      L_hdl = MSE(o, o₃) + 0.3·MSE(f, z₃)

o and f are logits and features; o₂ are the logits of a random other sample of the same class, z₂
its features after a small network (the class-specific domain perturbation layer); o₃, z₃ mix those
of two such samples by λ. The factor min(CE, 1) is a constant.

Paper: Kim et al., SelfReg: Self-supervised Contrastive Regularization for Domain Generalization,
ICCV 2021. Leaves the client besides weights: nothing; the perturbation layer is not needed at test
and stays with the client unless `selfreg_share` is set. This is DomainBed's version. Differences:
DomainBed builds its optimiser before that layer and so never trains it (`selfreg_train_layer=False`
is that; its batch normalisation moves all the same); the original's weight averaging and curriculum
over domains are in neither, and clients with one domain have no use for the latter.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from benchmark.hparams import LogUniform, hp
from benchmark.method import Batch, Method, register
from methods.ops.local_modules import keep, lend, train_along


@register(
    "selfreg",
    label="SelfReg",
    paper="SelfReg: Self-supervised Contrastive Regularization for Domain Generalization",
    venue="ICCV 2021",
    category="regularisation",
)
class SelfReg(Method):
    """Cross-entropy plus distances within a class, of logits and of perturbed features."""

    selfreg_weight: float = hp(1.0, LogUniform(0.1, 10), "weight of all distances", low=0)
    selfreg_feature_weight: float = hp(0.3, doc="of the features' distances", low=0)
    selfreg_train_layer: bool = hp(True, doc="train the perturbation layer (DomainBed: no)")
    selfreg_share: bool = hp(False, doc="average the perturbation layer over the clients")

    def build(self, make):
        model = super().build(make)
        if self.selfreg_share:
            model.perturbation = perturbation(model.feature_size)
            model.perturbation.requires_grad_(self.selfreg_train_layer)
        return model

    @property
    def _local(self) -> bool:
        return self.selfreg_weight > 0 and not self.selfreg_share

    def receive(self, server, client) -> None:
        super().receive(server, client)
        if self._local:
            layer = lend(client, "selfreg", lambda: perturbation(client.model.feature_size))
            layer.requires_grad_(self.selfreg_train_layer)

    def optimizer(self, client) -> torch.optim.Optimizer:
        optimizer = super().optimizer(client)
        if self._local and self.selfreg_train_layer:
            train_along(optimizer, client.scratch["selfreg"])
        return optimizer

    def upload(self, client):
        if self._local:
            keep(client, "selfreg")
        return super().upload(client)

    def loss(self, client, batch: Batch) -> torch.Tensor:
        model, labels = client.model, batch.labels
        features = model.features(batch.images)
        logits = model.classifier(features)
        loss = F.cross_entropy(logits, labels)
        if self.selfreg_weight == 0 or len(batch) < 2:  # one sample has no batch statistics
            return loss
        layer = model.perturbation if self.selfreg_share else client.scratch["selfreg"]
        half = torch.tensor(0.5)
        share = torch.distributions.Beta(half, half).sample().to(loss.device)
        projected, first, second = layer(features), partners(labels), partners(labels)

        def distance(mix: torch.Tensor | int) -> torch.Tensor:
            """To another sample of the class, or to a mixture of two."""
            o = torch.lerp(logits[second], logits[first], mix)
            z = torch.lerp(projected[second], projected[first], mix)
            return F.mse_loss(logits, o) + self.selfreg_feature_weight * F.mse_loss(features, z)

        distances = combine(loss, share, distance(1), distance(share))
        return loss + self.selfreg_weight * distances


def combine(classification, share, individual, mixed) -> torch.Tensor:
    """min(CE, 1) · (λ·L_ind + (1 − λ)·L_hdl), the first factor a constant."""
    return classification.detach().clamp(max=1) * (share * individual + (1 - share) * mixed)


def partners(labels: torch.Tensor) -> torch.Tensor:
    """A random permutation of the batch that maps every class onto itself."""
    drawn = torch.randperm(len(labels)).to(labels.device)
    drawn = drawn[labels[drawn].argsort(stable=True)]
    partner = torch.empty_like(drawn)
    partner[labels.argsort(stable=True)] = drawn
    return partner


def perturbation(size: int) -> nn.Sequential:
    """D → H → H → D with batch normalisation after each layer, H = 2·D (2048 for D = 2048)."""
    hidden = size if size == 2048 else 2 * size
    layers: list[nn.Module] = []
    for wide, narrow in ((size, hidden), (hidden, hidden), (hidden, size)):
        layers += [nn.Linear(wide, narrow), nn.BatchNorm1d(narrow), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers[:-1])
