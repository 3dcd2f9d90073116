"""COPA: one extractor for all, one classifier per client; the classifiers work together.

    client   L = CE(φ_k(F(x)), y) + λ·1/J Σ_{j≠k} CE(φ_j(F(x)), y)    φ_j: J frozen heads of others
    server   F ← Σ p_k F_k; heads are collected, not averaged
    test     ŷ = argmax 1/K Σ_k softmax φ_k(F(x))

Every client's extractor must also serve the other domains' classifiers, whose heads the server
hands round and nobody but their owner changes. The extractor's first two stages mix batch and
instance normalisation by a trained gate per channel (BIN, methods/bin.py), which starts at 0.5, and
training images pass RandAugment (2 operations, magnitude 9; `randaug_n=0` switches it off).

Paper: Wu and Gong, Collaborative Optimization and Aggregation for Decentralized Domain
Generalization and Adaptation, ICCV 2021. Leaves the client besides weights: its head, which, unlike
averaged weights, reaches the other clients as it is. gPerXAN's Table 1 sees no risk in that,
FedADG's no strong privacy.

No code is public, and only the abstract and what others report was at hand: extractor and heads,
frozen heads, ensemble, hybrid normalisation and RandAugment (gPerXAN) are stated; the losses' form,
λ = 1, which layers are hybrid and how are a reconstruction. `copa_norm=ibn_a` is the other reading
(half of the channels instance-normalised, methods/ibn.py), `bn` leaves the network as it is. The
paper's agreement of predictions belongs to its domain adaptation and is not here.

A head enters the bank when its client has reported first, so there are no frozen heads in round 0
and none of clients not sampled yet; those not sampled again stay, stale. A client goes on with its
own head. `server.model` has the average of the round's heads; predictor `global` is that model, a
row for comparison, and `copa` is the ensemble.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import nn

from benchmark.backbones.base import Backbone
from benchmark.hparams import Choice, LogUniform, hp
from benchmark.method import Batch, Predictor, register
from benchmark.state import State, copy_of
from methods.bin import BatchInstanceNorm2d, clamp_gates
from methods.ibn import IBN
from methods.ops.capture import captured
from methods.ops.normalisation import converted, replace_untrained
from methods.ops.stages import early_stages
from methods.randaug import RandAug


@register(
    "copa",
    label="COPA",
    paper="Collaborative Optimization and Aggregation for Decentralized Domain Generalization and "
    "Adaptation",
    venue="ICCV 2021",
    category="federated DG",
    shares=("heads",),
    needs_batchnorm=True,
)
class COPA(RandAug):
    """A shared extractor that all clients' classifiers can use, and their ensemble."""

    copa_lambda: float = hp(1.0, LogUniform(0.1, 10), "λ, weight of the others' heads", low=0)
    copa_norm: str = hp("bin", Choice("bin", "ibn_a", "bn"), "normalisation of the early stages")
    copa_stages: int = hp(2, doc="stages with gated normalisation", low=1)

    def build(self, make: Callable[[], Backbone]) -> Backbone:
        model = super().build(make)
        if self.copa_norm == "bin":
            stages = tuple(f"{stage}." for stage in early_stages(model, self.copa_stages))
            replace_untrained(model, half_gated, lambda path, old: path.startswith(stages))
        elif self.copa_norm == "ibn_a":
            model = IBN().build(lambda: model)
        model.insert("features", nn.Identity())  # a place to look at the classifier's input
        return model

    def keeps(self, model: Backbone) -> set[str]:
        return super().keeps(model) | set(head_keys(model))

    def receive(self, server, client) -> None:
        super().receive(server, client)
        bank = server.memory.get("heads", {})
        others = [bank[owner] for owner in sorted(bank) if owner != client.id]
        if others and self.copa_lambda:
            client.scratch["heads"] = joined(server.send(client, "heads", others))

    def optimizer(self, client) -> torch.optim.Optimizer:
        optimizer = super().optimizer(client)
        if self.copa_norm == "bin":
            optimizer.register_step_post_hook(lambda *_: clamp_gates(client.model))
        return optimizer

    def loss(self, client, batch: Batch) -> torch.Tensor:
        if "heads" not in client.scratch:
            return super().loss(client, batch)
        with captured(client.model.taps["features"]) as features:
            loss = super().loss(client, batch)
        weight, bias = client.scratch["heads"]
        logits = F.linear(features[0], weight, bias).unflatten(1, (-1, client.model.class_count))
        labels = batch.labels[:, None].expand(-1, logits.shape[1])
        return loss + self.copa_lambda * F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def aggregate(self, server, updates: Iterable) -> None:
        keys, new = head_keys(server.model), {}

        def watched() -> Iterator:
            for update in updates:
                new[update.client] = copy_of(update.state, keys)
                yield update

        super().aggregate(server, watched())
        # Only now: clients are visited meanwhile and must all see the bank of the round's start.
        server.memory["heads"] = {**server.memory.get("heads", {}), **new}

    def predictors(self, server, clients: Sequence) -> dict[str, Predictor]:
        bank = server.memory["heads"]
        ensemble = HeadEnsemble(server.model, [bank[owner] for owner in sorted(bank)])
        return {"copa": ensemble, **super().predictors(server, clients)}


class HeadEnsemble(nn.Module):
    """Logarithm of the heads' mean probabilities on one model's features."""

    def __init__(self, model: Backbone, heads: Sequence[State]):
        super().__init__()
        self.model, self.count = model, len(heads)
        self.weight, self.bias = joined(heads)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits = F.linear(self.model.features(images), self.weight, self.bias)
        shares = logits.unflatten(1, (self.count, -1)).log_softmax(2)
        return shares.logsumexp(1) - math.log(self.count)


def head_keys(model: Backbone) -> list[str]:
    return [f"{model.head_name}.weight", f"{model.head_name}.bias"]


def joined(heads: Sequence[State]) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of one linear layer that gives the logits of all heads, one after another."""
    weights, biases = zip(*(head.values() for head in heads), strict=True)
    return torch.cat(weights), torch.cat(biases)


def half_gated(old: nn.BatchNorm2d) -> BatchInstanceNorm2d:
    """The gated layer, half batch and half instance normalisation at first."""
    new = converted(BatchInstanceNorm2d, old)
    nn.init.constant_(new.gate, 0.5)
    return new
