"""EISNet: extrinsic supervision by triplets across domains, intrinsic by jigsaw puzzles.

    L = CE(class) + 0.7 · CE(order of the tiles) + 0.5 · L_triplet
    L_triplet = mean of [‖q_a − k_p‖² − ‖q_a − k_n‖² + margin]₊ over anchors a, positives p of the
                same class, and K semi-hard negatives n, of other classes, for each pair

q are unit vectors of 128 numbers made from the features; k come from the whole images through a
second encoder that follows the first one with momentum 0.999; negatives come from a queue of the
last 1024 such k. Semi-hard: further away than the positive, but by less than the margin.

Paper: Wang et al., Learning from Extrinsic and Intrinsic Supervisions for Domain Generalization,
ECCV 2020. Sees the images of all sources in one place, so everything leaves the client. Defaults
are those of the public ResNet-50 run on PACS (the argument defaults: weight 0.1, margin 0.2, K = 5)
with 0.9 of the images left whole. As there, class and q are learnt from the shuffled images too.
Differences: the code draws K of the semi-hard negatives at random; here all of them count, with the
weight that makes this the mean of those draws. The slow encoder takes over the running statistics
of batch normalisation, which the code leaves at the pretrained ones. The puzzle's head has 31
outputs (the code's 1000); a batch without any triplet has no such term. The code defines but never
calls a growing weight of the triplets.
"""

from __future__ import annotations

import copy
import dataclasses

import torch
import torch.nn.functional as F
from torch import nn

from benchmark.hparams import LogUniform, Uniform, hp
from benchmark.method import Batch, register
from methods.erm_pool import ErmPool
from methods.ops.jigsaw import draw_orders, orders, shuffle_tiles
from methods.ops.local_modules import keep, lend

EMBEDDING = 128


@register(
    "eisnet",
    label="EISNet",
    paper="Learning from Extrinsic and Intrinsic Supervisions for Domain Generalization",
    venue="ECCV 2020",
    category="centralised",
    shares=("images",),
    centralised=True,
)
class EISNet(ErmPool):
    """Cross-entropy of the class and of the order of the tiles, and K-hard triplets."""

    eis_jigsaw: float = hp(0.7, Uniform(0.1, 1), "weight of the puzzle", low=0)
    eis_triplet: float = hp(0.5, LogUniform(0.01, 1), "weight of the triplets", low=0)
    eis_whole: float = hp(0.9, Uniform(0.5, 1), "share of images left whole", low=0, high=1)
    eis_margin: float = hp(2.0, Uniform(0.2, 2), "of the triplets", low=0)
    eis_negatives: int = hp(256, doc="K, semi-hard negatives per pair", low=1)
    eis_queue: int = hp(1024, doc="embeddings remembered as negatives", low=1)
    eis_momentum: float = hp(0.999, doc="of the slow encoder", low=0, high=1)
    eis_permutations: int = hp(30, doc="orders besides the right one", low=1, high=200)

    def build(self, make):
        model = super().build(make)
        model.jigsaw = nn.Linear(model.feature_size, self.eis_permutations + 1)
        model.metric = nn.Linear(model.feature_size, EMBEDDING)
        return model

    def receive(self, server, client) -> None:
        super().receive(server, client)
        if self.eis_triplet > 0:
            slow = lend(client, "eis_encoder", lambda: copy.deepcopy(client.model))
            slow.eval().requires_grad_(False)
            device = client.train.device
            empty = torch.empty(0, EMBEDDING, device=device), torch.empty(0, device=device).long()
            client.scratch["eis_queue"] = tuple(client.memory.get("eis_queue", empty))

    def upload(self, client):
        if self.eis_triplet > 0:
            keep(client, "eis_encoder")
            client.memory["eis_queue"] = [part.clone() for part in client.scratch["eis_queue"]]
        return super().upload(client)

    def augment(self, client, batch: Batch) -> Batch:
        batch = super().augment(client, batch)
        device = batch.images.device
        order = draw_orders(len(batch), self.eis_whole, self.eis_permutations, device)
        images = batch.images
        if self.eis_whole < 1:
            images = shuffle_tiles(images, orders(self.eis_permutations).to(device)[order])
        extras = {**batch.extras, "order": order, "whole": batch.images}
        return dataclasses.replace(batch, images=images, extras=extras)

    def loss(self, client, batch: Batch) -> torch.Tensor:
        model = client.model
        features = model.features(batch.images)
        loss = F.cross_entropy(model.classifier(features), batch.labels)
        if self.eis_jigsaw > 0:
            puzzle = F.cross_entropy(model.jigsaw(features), batch.extras["order"])
            loss = loss + self.eis_jigsaw * puzzle
        if self.eis_triplet > 0:
            keys, negatives, labels = self._remember(client, batch)
            queries = F.normalize(model.metric(features))
            rules = self.eis_margin, self.eis_negatives
            triplets = triplet_loss(queries, keys, batch.labels, negatives, labels, *rules)
            loss = loss + self.eis_triplet * triplets
        return loss

    def _remember(self, client, batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The slow encoder's embeddings of the batch, and the queue with them at its end."""
        slow = client.scratch["eis_encoder"]
        with torch.no_grad():
            keys = F.normalize(slow.metric(slow.features(batch.extras["whole"])))
        old, labels = client.scratch["eis_queue"]
        queue = torch.cat([old, keys])[-self.eis_queue :]
        labels = torch.cat([labels, batch.labels])[-self.eis_queue :]
        client.scratch["eis_queue"] = queue, labels
        return keys, queue, labels

    def step(self, client, batch: Batch) -> torch.Tensor:
        loss = super().step(client, batch)
        if self.eis_triplet > 0:
            follow(client.scratch["eis_encoder"], client.model, self.eis_momentum)
        return loss


@torch.no_grad()
def follow(slow: nn.Module, fast: nn.Module, momentum: float) -> None:
    """slow ← momentum · slow + (1 − momentum) · fast for parameters; buffers are copied."""
    torch._foreach_lerp_(list(slow.parameters()), list(fast.parameters()), 1 - momentum)
    for own, other in zip(slow.buffers(), fast.buffers(), strict=True):
        own.copy_(other)


def triplet_loss(
    anchors: torch.Tensor,
    positives: torch.Tensor,
    labels: torch.Tensor,
    negatives: torch.Tensor,
    negative_labels: torch.Tensor,
    margin: float,
    count: int,
) -> torch.Tensor:
    """The mean over what `count` draws per pair from its semi-hard negatives would give; 0 when
    there is no triplet. Pairs are two different samples of a class, the earlier one the anchor."""
    near, far = _squared_distances(anchors, positives), _squared_distances(anchors, negatives)
    values = near[:, :, None] - far[:, None, :] + margin
    pairs = (labels[:, None] == labels).triu(1)
    foreign = labels[:, None] != negative_labels
    hard = pairs[:, :, None] & foreign[:, None, :] & (values > 0) & (values < margin)
    found = hard.sum(2)
    drawn = found.clamp(max=count)
    weights = drawn / found.clamp(min=1) / drawn.sum().clamp(min=1)
    return (values * hard * weights[:, :, None]).sum()


def _squared_distances(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return one.square().sum(1)[:, None] + other.square().sum(1) - 2 * one @ other.T
