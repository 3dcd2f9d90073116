"""L2D: a module learns to change the style of images, the network learns to see through it.

    network:   CE([x⁺; x]) + α₁ · SupCon(z⁺, z) + α₂ · mean((μ − z⁺)² / v + log v)
    augmenter: MMD(z⁺, z | class) + β · CLUB(z⁺; μ, v),     x⁺ = 0.6 · n(sigmoid(T(x))) + 0.4 · x

with z drawn from N(μ, v) of two linear heads on the features, ⁺ for the changed images and n for
the protocol's normalisation. Each step trains the network on fresh random styles, then T, which
keeps classes together while it carries little information about the original.

Paper: Wang et al., Learning to Diversify for Single Domain Generalization, ICCV 2021; code
BUserName/Learning_to_diversify. Leaves the client besides weights: nothing; the augmenter stays
with the client from visit to visit, the two heads are part of the network and are averaged. At test
z = μ. Follows the code, with these remarks:

- T minimises the bound, as the paper says; the first release of the code had the sign reversed.
- The augmenter's learning rate is that of the run script, 0.005 (the argument's default is 10).
- The embedding has 512 numbers, or as many as there are features if those are fewer.
- Scales and shifts have the size of the images (the code's are for 224); classes absent from a
  batch are skipped in the MMD, where the code gives NaN; a near-zero sum of branch weights is kept
  away from zero.
- Both passes move batch-normalisation statistics. The second leaves no gradient on the network.
"""

from __future__ import annotations

import contextlib
import dataclasses

import torch

from benchmark.hparams import LogUniform, Uniform, hp
from benchmark.method import Batch, Method, register
from methods.ops.capture import captured
from methods.ops.diversify import (
    GaussianHead,
    StyleComplement,
    class_mmd,
    contrast,
    information_bound,
    surprise,
)
from methods.ops.local_modules import keep, lend


@register(
    "l2d",
    label="L2D",
    paper="Learning to Diversify for Single Domain Generalization",
    venue="ICCV 2021",
    category="augmentation",
)
class L2D(Method):
    """Learnt style changes against a network with a stochastic embedding."""

    l2d_contrast: float = hp(1.0, LogUniform(0.1, 10), "of the contrastive term α₁", low=0)
    l2d_likelihood: float = hp(1.0, LogUniform(0.1, 10), "of the likelihood term α₂", low=0)
    l2d_beta: float = hp(0.1, LogUniform(0.01, 1), "of the augmenter's bound β", low=0)
    l2d_lr: float = hp(0.005, LogUniform(1e-3, 10), "the augmenter's rate; 0 = untrained", low=0)
    l2d_blend: float = hp(0.6, Uniform(0.3, 0.9), "share of the changed image", low=0, high=1)
    l2d_width: int = hp(512, doc="size of the embedding, at most that of the features", low=1)

    def build(self, make):
        model = super().build(make)
        features = model.feature_size
        width = min(self.l2d_width, features)
        model.insert("features", GaussianHead(features, width))
        if width != features:
            model.widen_classifier(width)
        return model

    def receive(self, server, client) -> None:
        super().receive(server, client)
        lend(client, "l2d", lambda: StyleComplement(client.train.transform.size))

    def upload(self, client):
        keep(client, "l2d")
        return super().upload(client)

    def augment(self, client, batch: Batch) -> Batch:
        batch = super().augment(client, batch)
        with torch.no_grad():
            changed = self._changed(client, batch.images, fresh=True)
        return dataclasses.replace(batch, extras={**batch.extras, "l2d": changed})

    def _changed(self, client, images: torch.Tensor, fresh: bool) -> torch.Tensor:
        pixels = client.scratch["l2d"](images, fresh).sigmoid()
        new = client.train.transform.from_pixels(pixels)
        return self.l2d_blend * new + (1 - self.l2d_blend) * images

    def loss(self, client, batch: Batch) -> torch.Tensor:
        both = dataclasses.replace(
            batch,
            images=torch.cat([batch.extras["l2d"], batch.images]),
            labels=batch.labels.repeat(2),
            domains=batch.domains.repeat(2),
        )
        with _embedding(client.model, len(batch)) as found:
            loss = super().loss(client, both)
        changed, original, mean, log_variance = found()
        loss = loss + self.l2d_likelihood * surprise(mean, log_variance, changed)
        return loss + self.l2d_contrast * contrast(changed, original, batch.labels)

    def step(self, client, batch: Batch) -> torch.Tensor:
        loss = super().step(client, batch)
        if self.l2d_lr > 0:
            self._train_augmenter(client, batch)
        return loss

    def _train_augmenter(self, client, batch: Batch) -> None:
        """One step of plain SGD on the augmenter alone."""
        images = torch.cat([self._changed(client, batch.images, fresh=False), batch.images])
        with _embedding(client.model, len(batch)) as found:
            client.model.features(images)
        changed, original, mean, log_variance = found()
        order = torch.randperm(len(batch)).to(images.device)
        loss = class_mmd(changed, original, batch.labels)
        loss = loss + self.l2d_beta * information_bound(mean, log_variance, changed, order)
        learnt = client.scratch["l2d"].learnt()
        gradients = torch.autograd.grad(loss, learnt)
        with torch.no_grad():
            torch._foreach_add_(learnt, gradients, alpha=-self.l2d_lr)


@contextlib.contextmanager
def _embedding(model, count: int):
    """Captures a pass of [changed; original]: afterwards, z of both and μ, log v of the latter."""
    head = next(part for part in model.modules() if isinstance(part, GaussianHead))
    with (
        captured(head) as samples,
        captured(head.mean) as means,
        captured(head.log_variance) as log_variances,
    ):
        yield lambda: (
            samples[0][:count],
            samples[0][count:],
            means[0][count:],
            log_variances[0][count:],
        )
