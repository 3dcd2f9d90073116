"""ELCFS (FedDG): clients share low-frequency amplitudes and learn in episodes to bear each other's.

    A' = r A + (1 − r) A_other inside the window, own phase                     r ~ U(0, 1)
    w' = w − β clip(∇L(w; x))         minimise L(w; x) + L(w'; x'),  ∂w'/∂w taken as the identity

Each step takes a virtual one on the batch x and asks that the weights w' it leads to be good on x',
the same images with amplitudes of other clients in the lowest frequencies of their spectra.

Paper: Liu et al., FedDG: Federated Domain Generalization on Medical Image Segmentation via Episodic
Learning in Continuous Frequency Space, CVPR 2021; code liuquande/FedDG-ELCFS. Leaves the client
besides weights: before round 0, the amplitudes of 1/8 of its images, only inside the window and
only the half of it that is not redundant: (2b + 1)(b + 1) · 3 numbers an image, b = ⌊L · side⌋. All
clients take part in that exchange, also those that are not sampled for many rounds.

Made for segmentation; here cross-entropy replaces dice and the boundary term has no counterpart.
- Window and ratio: the code's loader replaces the zero frequency alone (L = 0, r = 0), its demo
  interpolates with L = 0.003, the paper describes a small window and r ~ U(0, 1). Default L = 0.01
  with r ~ U(0, 1) for each image; at 32 pixels that too is the zero frequency alone: the means.
- As in the code, an image draws another client and then one of its amplitudes, and the inner
  gradient is a constant (`elcfs_first_order=False` differentiates through it).
- A public port (CCST's) loads w' into a copy, so its outer loss trains nothing; here the outer
  gradient reaches w. The default ratio of another (FedDG_Benchmark's) is 1: nothing is mixed.
- Amplitudes are exchanged and mixed at the scale of pixels, before normalisation, and the result is
  clipped to it. β is the learning rate, at most 1e-3 (the code's β = 1e-3 is its learning rate).
- The outer pass normalises by the batch and leaves running statistics alone
  (`elcfs_outer_statistics=True` updates them too). Without the outer loss it is FedAvg.
- The two losses are summed, as in the code, so a step is about twice as long as FedAvg's at one
  learning rate; where that rate is the largest that works, halve it or take `elcfs_mean=True`.
"""

from __future__ import annotations

import contextlib
import dataclasses

import torch

from benchmark.errors import UserError
from benchmark.hparams import Choice, Uniform, hp
from benchmark.method import Batch, Method, register
from methods.ops.banks import Bank, draw_rows, exchange_banks, joined, part_of
from methods.ops.batchnorm import frozen_statistics
from methods.ops.displaced import at
from methods.ops.fourier import amplitudes, mix_amplitude


@register(
    "elcfs",
    label="ELCFS",
    paper="FedDG: Federated Domain Generalization on Medical Image Segmentation via Episodic "
    "Learning in Continuous Frequency Space",
    venue="CVPR 2021",
    category="federated DG",
    shares=("amplitude",),
)
class ELCFS(Method):
    """Episodes between own images and images with other clients' amplitudes."""

    elcfs_window: float = hp(0.01, Choice(0, 0.003, 0.01, 0.05), "L, share of the side", low=0)
    elcfs_ratio_low: float = hp(0.0, doc="least share of the own amplitude, r", low=0, high=1)
    elcfs_ratio_high: float = hp(1.0, doc="largest share of the own amplitude", low=0, high=1)
    elcfs_share: float = hp(0.125, doc="share of its images whose amplitudes a client sends", low=0)
    elcfs_own: bool = hp(False, doc="draw from the client's own amplitudes too")
    elcfs_meta_lr: float = hp(1e-3, doc="β, bound by the learning rate", low=0)
    elcfs_clip: float = hp(100.0, doc="largest component of the inner gradient", low=0)
    elcfs_outer: float = hp(1.0, Uniform(0.1, 2), "weight of the outer loss; 0 = FedAvg", low=0)
    elcfs_mean: bool = hp(False, doc="weighted mean of the two losses in place of their sum")
    elcfs_first_order: bool = hp(True, doc="take the inner gradient as a constant")
    elcfs_outer_statistics: bool = hp(False, doc="outer pass updates batch-norm statistics")

    def prepare(self, server, clients) -> None:
        super().prepare(server, clients)
        if self.elcfs_outer == 0:
            return
        if self.elcfs_ratio_low > self.elcfs_ratio_high:
            raise UserError(
                f"elcfs_ratio_low={self.elcfs_ratio_low} must not exceed "
                f"elcfs_ratio_high={self.elcfs_ratio_high}"
            )
        if len(clients) < 2 and not self.elcfs_own:
            raise UserError(
                "elcfs needs other clients' amplitudes; choose a partition with two clients or "
                "more, or set elcfs_own=true"
            )
        banks = [self._own_amplitudes(client) for client in clients]
        received = exchange_banks(server, clients, "amplitude", banks)
        for client, bank in zip(clients, banks, strict=True):
            own = [bank] if self.elcfs_own else []
            client.memory["elcfs"] = received[client.id] + own

    def _own_amplitudes(self, client) -> Bank:
        """Amplitudes, inside the window, of a random part of the client's images."""
        count = max(1, int(client.size * self.elcfs_share))
        part = part_of(client.train, torch.randperm(client.size)[:count].numpy())
        to_pixels = client.train.transform.to_pixels
        return joined(
            [amplitudes(to_pixels(batch.images), self.elcfs_window)]
            for batch in part.evaluation_batches()
        )

    def receive(self, server, client) -> None:
        super().receive(server, client)
        if self.elcfs_outer > 0:
            client.scratch["elcfs"] = joined(client.memory["elcfs"])[0]

    def augment(self, client, batch: Batch) -> Batch:
        batch = super().augment(client, batch)
        if self.elcfs_outer == 0:
            return batch
        transform, banks = client.train.transform, client.memory["elcfs"]
        rows = draw_rows(banks, torch.randint(len(banks), (len(batch),)))
        span = self.elcfs_ratio_high - self.elcfs_ratio_low
        ratio = self.elcfs_ratio_low + span * torch.rand(len(batch))
        pixels = transform.to_pixels(batch.images)
        others = client.scratch["elcfs"][rows.to(pixels.device)]
        mixed = mix_amplitude(pixels, others, ratio.to(pixels), self.elcfs_window)
        images = transform.from_pixels(mixed.clamp_(0, 1))
        images = images.contiguous(memory_format=torch.channels_last)
        return dataclasses.replace(batch, extras={**batch.extras, "elcfs": images})

    def loss(self, client, batch: Batch) -> torch.Tensor:
        loss = super().loss
        inner = loss(client, batch)
        if self.elcfs_outer == 0:
            return inner
        if len(batch.extras["elcfs"]) != len(batch):
            raise UserError("another method adds images to the batch: write elcfs first")
        other = dataclasses.replace(batch, images=batch.extras["elcfs"])
        model = client.model
        moves = self.elcfs_outer_statistics
        with contextlib.nullcontext() if moves else frozen_statistics(model):
            outer = at(model, self._virtual_step(client, inner), lambda: loss(client, other))
        total = inner + self.elcfs_outer * outer
        return total / (1 + self.elcfs_outer) if self.elcfs_mean else total

    def _virtual_step(self, client, inner: torch.Tensor) -> dict[str, torch.Tensor]:
        """The weights after the virtual step."""
        weights = {n: w for n, w in client.model.named_parameters() if w.requires_grad}
        gradients = torch.autograd.grad(
            inner,
            list(weights.values()),
            retain_graph=True,
            create_graph=not self.elcfs_first_order,
            allow_unused=True,
        )
        rate = min(client.lr, self.elcfs_meta_lr)
        return {
            name: weight - rate * gradient.clamp(-self.elcfs_clip, self.elcfs_clip)
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
            if gradient is not None
        }
