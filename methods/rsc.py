"""RSC: mute the features the prediction leans on most and classify with what is left.

    g = ∂ logit_y / ∂ f      muted: the top third of g, in the samples whose p_y drops most by it
    L = CE(head(f · mask), y)

Paper: Huang et al., Self-Challenging Improves Cross-Domain Generalization, ECCV 2020.
Leaves the client besides weights: nothing. The papers that use it do not say in which version; the
default is DomainBed's, on the pooled features, with one cross-entropy, the muted one.
`rsc_variant=official` is the authors' code: each batch together with its mirror images, a mask on
the last maps, over places (the top third of Σ_c x·ḡ_c) or over channels (the top 1/3.2 of ḡ) by a
fair coin, for a share of samples that grows from 0.3 by 0.2 every ten epochs. Epochs are rounds
here, the share ends at 1 and the places are counted instead of fixed at 49.

The gradient is that of the true class's logit, not of the loss. Masks are constants. Values equal
to the threshold are muted (official: kept).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F

from benchmark.hparams import Choice, Uniform, hp
from benchmark.method import Batch, Method, register
from methods.ops.stages import early_stages


@register(
    "rsc",
    label="RSC",
    paper="Self-Challenging Improves Cross-Domain Generalization",
    venue="ECCV 2020",
    category="regularisation",
)
class RSC(Method):
    """Cross-entropy of features without their most predictive part."""

    rsc_variant: str = hp("domainbed", Choice("domainbed", "official"), "whose version")
    rsc_features: float = hp(1 / 3, Uniform(0, 0.5), "share of features muted", low=0, high=1)
    rsc_batch: float = hp(1 / 3, Uniform(0, 0.5), "share of samples muted", low=0, high=1)
    rsc_epochs: int = hp(10, doc="official: rounds until the share of samples grows", low=1)

    def build(self, make):
        model = super().build(make)
        if self.rsc_variant == "official":
            early_stages(model, 1)  # maps are needed, not tokens
        return model

    def loss(self, client, batch: Batch) -> torch.Tensor:
        model, labels = client.model, batch.labels
        if self.rsc_variant == "domainbed":
            features = model.features(batch.images)
            mask = muting(model.classifier, features, labels, self.rsc_features, self.rsc_batch)
            return F.cross_entropy(model.classifier(features * mask), labels)
        labels = labels.repeat(2)
        maps = model.maps(torch.cat([batch.images, batch.images.flip(3)]))
        share = min(0.3 + 0.2 * (client.round // self.rsc_epochs), 1.0)
        mask = muting_maps(model, maps, labels, share)
        return F.cross_entropy(model.classifier(model.features_of(maps * mask)), labels)


def muting(head, features, labels, feature_share: float, batch_share: float) -> torch.Tensor:
    """DomainBed's mask on (B, D) features: 0 where muted."""
    logits, gradient = _logit_gradient(head, features, labels)
    with torch.no_grad():
        threshold = torch.quantile(gradient, 1 - feature_share, dim=1, keepdim=True)
        mask = gradient < threshold
        change = _probability(logits, labels) - _probability(head(features * mask), labels)
        spared = change < torch.quantile(change, 1 - batch_share)
        return (mask | spared[:, None]).to(features.dtype)


def muting_maps(model, maps, labels, batch_share: float) -> torch.Tensor:
    """The authors' mask on (B, C, H, W) maps, over places or over channels: 0 where muted."""

    def head(x: torch.Tensor) -> torch.Tensor:
        return model.classifier(model.features_of(x))

    with _evaluating(model):
        logits, gradient = _logit_gradient(head, maps, labels)
        with torch.no_grad():
            channels = gradient.mean((2, 3))
            if torch.rand(()) < 0.5:
                scores, share = (maps * channels[..., None, None]).sum(1), 1 / 3
            else:
                scores, share = channels[..., None, None], 1 / 3.2
            flat = scores.flatten(1)
            rank = min(math.ceil(flat.shape[1] * share), flat.shape[1] - 1)
            kept = flat <= flat.sort(dim=1, descending=True)[0][:, rank : rank + 1]
            mask = kept.view_as(scores).unsqueeze(1) if scores.dim() == 3 else kept.view_as(scores)
            muted = _probability(head(maps * mask), labels)
            change = (_probability(logits, labels) - muted - 1e-4).clamp(min=0)
            rank = min(round(len(change) * batch_share), len(change) - 1)
            spared = change <= change.sort(descending=True)[0][rank]
            return (mask | spared[:, None, None, None]).to(maps.dtype)


def _logit_gradient(head, x, labels) -> tuple[torch.Tensor, torch.Tensor]:
    """The logits of `x`, and the gradient of the true classes' logits with respect to it."""
    leaf = x.detach().requires_grad_()
    with torch.enable_grad():
        logits = head(leaf)
        chosen = logits.gather(1, labels[:, None]).sum()
        return logits.detach(), torch.autograd.grad(chosen, leaf)[0]


def _probability(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return logits.softmax(1).gather(1, labels[:, None]).squeeze(1)


@contextlib.contextmanager
def _evaluating(model) -> Iterator[None]:
    """The model in evaluation mode, afterwards each of its modules in the mode it had."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
