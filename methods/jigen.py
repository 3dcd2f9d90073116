"""JiGen: next to the class, say in which order the tiles of a shuffled picture stand.

    L = CE(class) + α · CE(order)      order 0 = untouched, 1 … 30 = one of 30 permutations

An image stays whole with probability β, otherwise its order is uniform over all 31. A linear head
on the features tells the order; it is averaged like the rest of the network.

Paper: Carlucci et al., Domain Generalization by Solving Jigsaw Puzzles, CVPR 2019.
Leaves the client besides weights: nothing (the head counts as weights). Differences: the paper
classifies only whole images, which is the default; the public commands classify all
(`jigen_ordered_only=False`). α = 0.7, β = 0.9 are those of the public ResNet-18 command; others
there have 0.9 and 0.7, the argument defaults 0.1 and none. A batch without a whole image is
classified entirely. The public code turns each tile grey with probability 0.1; here the protocol's
transform does that to whole images, and `jigen_grey_tiles` adds the other. The set of permutations:
methods/ops/jigsaw.py.
"""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn

from benchmark.hparams import Uniform, hp
from benchmark.method import Batch, Method, register
from methods.ops.jigsaw import TILES, draw_orders, grey_tiles, orders, shuffle_tiles


@register(
    "jigen",
    label="JiGen",
    paper="Domain Generalization by Solving Jigsaw Puzzles",
    venue="CVPR 2019",
    category="regularisation",
)
class JiGen(Method):
    """Cross-entropy of the class and of the order of the tiles."""

    jigen_alpha: float = hp(0.7, Uniform(0.1, 1), "weight of the puzzle", low=0)
    jigen_beta: float = hp(0.9, Uniform(0.5, 1), "share of images left whole", low=0, high=1)
    jigen_ordered_only: bool = hp(True, doc="classify only whole images, as the paper says")
    jigen_permutations: int = hp(30, doc="orders besides the right one", low=1, high=200)
    jigen_grey_tiles: float = hp(0.0, doc="probability of a grey tile", low=0, high=1)

    def build(self, make):
        model = super().build(make)
        model.jigsaw = nn.Linear(model.feature_size, self.jigen_permutations + 1)
        return model

    def augment(self, client, batch: Batch) -> Batch:
        batch = super().augment(client, batch)
        images, device = batch.images, batch.images.device
        if self.jigen_grey_tiles > 0:
            chosen = torch.rand(len(batch), TILES).to(device) < self.jigen_grey_tiles
            images = grey_tiles(images, chosen, client.train.transform)
        order = draw_orders(len(batch), self.jigen_beta, self.jigen_permutations, device)
        if self.jigen_beta < 1:
            images = shuffle_tiles(images, orders(self.jigen_permutations).to(device)[order])
        return dataclasses.replace(batch, images=images, extras={**batch.extras, "order": order})

    def loss(self, client, batch: Batch) -> torch.Tensor:
        model, order = client.model, batch.extras["order"]
        features = model.features(batch.images)
        loss = self._class_loss(model.classifier(features), batch.labels, order)
        if self.jigen_alpha == 0:
            return loss
        return loss + self.jigen_alpha * F.cross_entropy(model.jigsaw(features), order)

    def _class_loss(self, logits, labels, order) -> torch.Tensor:
        if not self.jigen_ordered_only or self.jigen_beta == 1:
            return F.cross_entropy(logits, labels)
        whole = order == 0
        counted = (whole | ~whole.any()).float()
        return (F.cross_entropy(logits, labels, reduction="none") * counted).sum() / counted.sum()
