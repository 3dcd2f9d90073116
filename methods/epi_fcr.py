"""Epi-FCR: features and classifier must work with partners that were trained on another domain.

    L = 1/K · [ Σ_domains CE(C(F(x))) + λ_f · CE(C̄_j(F(x_i))) + λ_c · CE(C(F̄_j(x_i)))
                + λ_r · Σ_domains CE(C̄_rand(F(x))) ]               i ≠ j drawn at every step

F_j, C_j is a network of domain j alone, trained along by cross-entropy on its own images; C_rand is
random for ever. A bar means frozen: the λ_f and λ_r terms train F, the λ_c term trains C.

Paper: Li et al., Episodic Training for Domain Generalization, ICCV 2019. Sees the images of all
sources in one place, so everything leaves the client. Defaults are those of the public ResNet-18
run. Its 500 of 3001 iterations without episodes are a sixth of the rounds here. Differences: all
networks take one joint step, where the code steps the domain networks first; frozen partners
normalise by their own running statistics. The code trains pretrained networks with batch
normalisation frozen in evaluation mode: that is `epi_freeze_batchnorm=True`, which would cripple a
network that starts from scratch and is therefore not the default. Paper and code have no factor
1/K, which makes a step K times as long as that of `erm_pool` at the same learning rate: that is
`epi_sum=True`. Runs of the FedADG paper's tables have both. The domain networks learn from plain
means either way; the training loss that is reported contains theirs.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from benchmark.hparams import LogUniform, Uniform, hp
from benchmark.method import Batch, register
from methods.erm_pool import ErmPool
from methods.ops.local_modules import keep, lend, train_along
from methods.ops.sources import source_count, source_numbers


@register(
    "epi_fcr",
    label="Epi-FCR",
    paper="Episodic Training for Domain Generalization",
    venue="ICCV 2019",
    category="centralised",
    shares=("images",),
    centralised=True,
)
class EpiFCR(ErmPool):
    """Summed cross-entropies of the domains, and three terms with frozen partners."""

    balanced: bool = hp(True, doc="the same number of images of each source in every batch")
    epi_feature: float = hp(2.0, Uniform(0.5, 3), "λ_f, features with another's head", low=0)
    epi_classifier: float = hp(0.05, LogUniform(0.01, 1), "λ_c, head on another's features", low=0)
    epi_random: float = hp(0.1, LogUniform(0.01, 1), "λ_r, features with a random head", low=0)
    epi_warmup: float = hp(1 / 6, doc="share of rounds without the three terms", low=0, high=1)
    epi_sum: bool = hp(False, doc="without the factor 1/K, as in the paper")
    epi_freeze_batchnorm: bool = hp(False, doc="batch normalisation in evaluation mode")

    @property
    def _episodic(self) -> bool:
        return self.epi_feature > 0 or self.epi_classifier > 0

    def receive(self, server, client) -> None:
        super().receive(server, client)
        if self._episodic:
            lend(client, "epi_domains", lambda: _copies(client.model, source_count(client)))
        if self.epi_random > 0:
            sizes = client.model.feature_size, client.model.class_count
            lend(client, "epi_random", lambda: nn.Linear(*sizes)).requires_grad_(False)

    def optimizer(self, client) -> torch.optim.Optimizer:
        optimizer = super().optimizer(client)
        if self._episodic:
            train_along(optimizer, client.scratch["epi_domains"])
        return optimizer

    def upload(self, client):
        for name in ("epi_domains", "epi_random"):
            if name in client.scratch:
                keep(client, name)
        return super().upload(client)

    def loss(self, client, batch: Batch) -> torch.Tensor:
        model, labels = client.model, batch.labels
        sources, count = source_numbers(client, batch.domains), source_count(client)
        if self.epi_freeze_batchnorm:
            _freeze_batchnorm(model)
        features = model.features(batch.images)
        loss = self._total(model.classifier(features), labels, sources)
        warm = client.progress < self.epi_warmup
        if self.epi_random > 0 and not warm:
            random = client.scratch["epi_random"](features)
            loss = loss + self.epi_random * self._total(random, labels, sources)
        if not self._episodic:
            return loss
        loss = loss + self._own_domains(client, batch, sources)
        return loss if warm or count < 2 else loss + self._episode(client, batch, sources, features)

    def _total(self, logits, labels, sources) -> torch.Tensor:
        """The mean over the batch, or the sum of the domains' means."""
        if not self.epi_sum:
            return F.cross_entropy(logits, labels)
        share = 1 / torch.bincount(sources)[sources]
        return (share * F.cross_entropy(logits, labels, reduction="none")).sum()

    def _own_domains(self, client, batch, sources) -> torch.Tensor:
        """Cross-entropy of each domain's network on that domain's images."""
        networks = client.scratch["epi_domains"].train()
        if self.epi_freeze_batchnorm:
            _freeze_batchnorm(networks)
        losses = []
        for number, network in enumerate(networks):
            own = (sources == number).nonzero().flatten()
            if len(own) > 1:  # batch normalisation cannot do with one image
                losses.append(F.cross_entropy(network(batch.images[own]), batch.labels[own]))
        return sum(losses) if losses else batch.images.new_zeros(())

    def _episode(self, client, batch, sources, features) -> torch.Tensor:
        """Images of a drawn domain meet the frozen network of another one."""
        tested, trained = torch.randperm(source_count(client))[:2].tolist()
        chosen = (sources == tested).nonzero().flatten()
        if not len(chosen):
            return features.new_zeros(())
        labels, partner = batch.labels[chosen], client.scratch["epi_domains"][trained].eval()
        weight, bias = partner.classifier.weight.detach(), partner.classifier.bias.detach()
        foreign_head = F.linear(features[chosen], weight, bias)
        with torch.no_grad():
            foreign_features = partner.features(batch.images[chosen])
        own_head = client.model.classifier(foreign_features)
        loss = self.epi_feature * F.cross_entropy(foreign_head, labels)
        loss = loss + self.epi_classifier * F.cross_entropy(own_head, labels)
        return loss if self.epi_sum else loss / source_count(client)


def _copies(model, count: int) -> nn.ModuleList:
    return nn.ModuleList(copy.deepcopy(model) for _ in range(count))


def _freeze_batchnorm(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.eval()
