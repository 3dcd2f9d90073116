"""CCST: clients exchange styles before training and add copies of their images in others' styles.

    t = σ_s (f − μ(f)) / σ(f) + μ_s        x̂ = decoder(α t + (1 − α) f),   f = encoder(x)

A style is the mean and standard deviation of each channel of feature maps: one for all images of a
client together (`overall`: pooled over all their pixels) or one for each image (`single`). For
every image the client draws K clients without repeats, itself included: itself means the image as
it is, another one a copy in its style. Training on the list of K·n entries is FedAvg.

Paper: Chen et al., Federated Domain Generalization for Image Recognition via Cross-Client Style
Transfer, WACV 2023; code JeremyCJM/CCST. Leaves the client besides weights: its style (`overall`)
or its images' styles (`single`), 2·C numbers each, once, before round 0, also from clients that are
not sampled until much later. With `ccst_encoder=resnet` also a decoder.

`ccst_encoder` says what was used, and is part of every result:
- `vgg` is the paper's: VGG-19 to relu4_1 (C = 512) and its decoder, from pytorch-AdaIN's two files
  in the folder FEDDOMAINBED_ADAIN. They change the numbers: `ccst_digest` pins them.
- `feat`, the default, needs no files: styles of the initial network's first stages, and in place of
  decoded images AdaIN after those stages while the network trains. The network is sent to all
  clients for this once more than FedAvg does.
- `resnet`: ImageNet's ResNet-18 up to layer1, and a decoder that all clients train on their own
  images by reconstruction, averaged `ccst_decoder_rounds` times, each after the local work of a
  round. It takes torchvision's weights from the network or from torch's cache.
- `rgb`: means and deviations of the three colours; a smoke test rather than a competitor.

With a protocol of local epochs an epoch is K times longer, as in the code; where local work is
counted in steps, their number stays and the list they draw from is larger. n stays the original
count in the weights of clients. Styles and lists are drawn once. Differences: the code makes copies
at 512 pixels beforehand, here they are made at the stored size when a batch is drawn, before the
protocol's augmentation: the same list of images in every epoch. In `single` the code's script takes
one style image for a whole batch; here each entry has its own.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Sequence

import torch

from benchmark.backbones.base import Backbone
from benchmark.errors import UserError
from benchmark.hparams import Choice, Stated, hp
from benchmark.method import Batch, Method, register
from benchmark.state import write
from methods.ops.adain import (
    Coder,
    PooledStyle,
    adain_folder,
    load_vgg_coder,
    resnet_coder,
    rgb_coder,
    style_rows,
)
from methods.ops.banks import Bank, exchange_banks, joined
from methods.ops.capture import captured
from methods.ops.reconstruction import train_decoder
from methods.ops.restyle import (
    EXTRA,
    RestyledSamples,
    StyleSwap,
    draw_entries,
    restyled,
    swapped,
    swaps_of,
)
from methods.ops.stages import early_stages


@register(
    "ccst",
    label="CCST",
    paper="Federated Domain Generalization for Image Recognition via Cross-Client Style Transfer",
    venue="WACV 2023",
    category="federated DG",
    shares=("style",),
)
class CCST(Method):
    """Local training on own images and on copies in other clients' styles."""

    ccst_encoder: str = hp("feat", Stated("feat", "vgg", "resnet", "rgb"), "what styles are of")
    ccst_mode: str = hp("overall", Choice("overall", "single"), "a style per client or per image")
    ccst_k: int = hp(3, Choice(1, 2, 3), "K, entries for each image", low=1)
    ccst_alpha: float = hp(1.0, doc="α, strength of the style", low=0, high=1)
    ccst_stages: int = hp(2, doc="of feat: stages whose maps take a style", low=1)
    ccst_digest: str = hp("any", doc="of vgg: digest of the two files; any = not checked")
    ccst_decoder_rounds: int = hp(5, doc="of resnet: averagings of the decoder", low=1)
    ccst_decoder_lr: float = hp(1e-3, doc="of resnet: Adam's rate for the decoder", low=0)

    def build(self, make: Callable[[], Backbone]) -> Backbone:
        model = super().build(make)
        if self.ccst_encoder == "feat":
            for stage in early_stages(model, self.ccst_stages):
                model.insert(stage, StyleSwap())
        elif self.ccst_encoder == "vgg":
            # Rather now than before round 0.
            load_vgg_coder(adain_folder(), self.ccst_digest, torch.device("cpu"))
        return model

    def prepare(self, server, clients: Sequence) -> None:
        super().prepare(server, clients)
        if self.ccst_k > len(clients):
            raise UserError(
                f"ccst_k={self.ccst_k} draws as many different clients, but there are "
                f"{len(clients)}; set ccst_k={len(clients)} or choose another partition"
            )
        if self.ccst_encoder == "resnet":
            decoder = train_decoder(server, clients, self.ccst_decoder_rounds, self.ccst_decoder_lr)
            for client in clients:
                client.memory["ccst_decoder"] = server.send(client, "decoder", decoder)
        banks = [self._own_styles(server, client) for client in clients]
        received = exchange_banks(server, clients, "style", banks)
        for place, client in enumerate(clients):
            styles = received[client.id]
            entries = draw_entries(styles, client.size, place, self.ccst_k)
            client.memory["ccst"] = {"styles": styles, "entries": entries}

    @torch.no_grad()
    def _own_styles(self, server, client) -> Bank:
        """The client's styles: one tensor (rows, 2, channels) for each place in the network."""
        if self.ccst_encoder == "feat":
            write(client.state, server.send(client, "weights", server.state))
        if self.ccst_mode == "single":
            return joined(
                [style_rows(maps) for maps in found] for found in self._style_maps(client)
            )
        totals: list[PooledStyle] = []
        for found in self._style_maps(client):
            totals = totals or [PooledStyle() for _ in found]
            for total, maps in zip(totals, found, strict=True):
                total.add(maps)
        return [total.result() for total in totals]

    def _style_maps(self, client) -> Iterator[list[torch.Tensor]]:
        """Maps of the client's images as the encoder sees them, a batch at a time."""
        model = client.model.eval()
        coder = None if self.ccst_encoder == "feat" else self._style_coder(client)
        for batch in client.train.evaluation_batches(32):
            if coder is not None:
                yield [coder.encode(client.train.transform.to_pixels(batch.images))]
                continue
            with contextlib.ExitStack() as stack:
                found = [stack.enter_context(captured(place)) for place in swaps_of(model)]
                model.maps(batch.images)
            yield [outputs[0] for outputs in found]

    def _style_coder(self, client) -> Coder:
        """What turns this client's images into maps and back."""
        if self.ccst_encoder == "vgg":
            return load_vgg_coder(adain_folder(), self.ccst_digest, client.train.device)
        if self.ccst_encoder == "rgb":
            return rgb_coder()
        coder = resnet_coder(client.train.device)
        coder.decoder.load_state_dict(client.memory["ccst_decoder"])
        return coder

    def receive(self, server, client) -> None:
        super().receive(server, client)
        client.scratch["ccst"] = joined(client.memory["ccst"]["styles"])

    def batches(self, client) -> Iterator[Batch]:
        change, styles = None, client.scratch["ccst"]
        if styles and self.ccst_encoder != "feat":
            change = functools.partial(
                restyled, rows=styles[0], coder=self._style_coder(client), alpha=self.ccst_alpha
            )
        entries = client.memory["ccst"]["entries"].cpu().numpy()
        enlarged = copy.copy(client)  # what is asked for batches; everything else stays as it is
        enlarged.train = RestyledSamples(client.train, entries, change)
        yield from super().batches(enlarged)

    def loss(self, client, batch: Batch) -> torch.Tensor:
        styles = client.scratch["ccst"]
        if self.ccst_encoder != "feat" or self.ccst_alpha == 0 or not styles:
            return super().loss(client, batch)
        with swapped(client.model, batch.extras[EXTRA], styles, self.ccst_alpha):
            return super().loss(client, batch)
