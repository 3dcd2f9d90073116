"""L2A-OT: a generator makes images of novel domains, as far from the sources as transport can say.

    G: min  λ_CE·CE(Ŷ(G(x, k̃)), y) + λ_cyc·‖G(G(x, k̃), k) − x‖₁
            − λ_dom·[W(x, G(x, k̃)) + W(novel domain, other novel domain)]
    network: min  α·CE(x, y) + (1 − α)·CE(G(x, k̃), y)

k̃ is one of K novel domains, Ŷ a classifier and W the entropic transport cost (cosine distances) on
the features of a domain classifier, both trained on the sources before and then frozen.

Paper: Zhou et al., Learning to Generate Novel Domains for Domain Generalization, ECCV 2020. Sees
the images of all sources in one place, so everything leaves the client. There is no official code;
weights, Adam and Sinkhorn's regulariser 1 are those of an unofficial one, and the paper's λ_cyc
could not be checked. Differences: the first fifth of the rounds trains the network as usual and the
domain classifier next to it; the network of that moment is Ŷ, and trains on (the unofficial code
starts afresh). G is far smaller than a StarGAN, one level down instead of two, and adds to its
input, so that a short run does not learn from noise. Each source goes to one novel domain per step,
drawn anew. W's plan, from 20 iterations, is a constant for the gradient. All terms are means over
domains and pairs. Generated images count for the statistics of batch normalisation.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools

import torch
import torch.nn.functional as F
from torch import nn

from benchmark.hparams import LogUniform, Uniform, hp
from benchmark.method import Batch, register
from benchmark.state import copy_of
from methods.erm_pool import ErmPool
from methods.ops.local_modules import keep, lend, train_along
from methods.ops.sources import source_count, source_numbers
from methods.ops.transport import cosine_cost, transport_cost


@register(
    "l2a_ot",
    label="L2A-OT",
    paper="Learning to Generate Novel Domains for Domain Generalization",
    venue="ECCV 2020",
    category="centralised",
    shares=("images",),
    centralised=True,
)
class L2AOT(ErmPool):
    """Cross-entropy of real images and of images that a generator moved to novel domains."""

    balanced: bool = hp(True, doc="the same number of images of each source in every batch")
    l2a_alpha: float = hp(0.5, Uniform(0.2, 0.8), "weight of the real images", low=0, high=1)
    l2a_domain: float = hp(1.0, LogUniform(0.1, 10), "λ_dom, of being far away", low=0)
    l2a_cycle: float = hp(2.0, LogUniform(0.2, 20), "λ_cyc, of finding back", low=0)
    l2a_class: float = hp(1.0, LogUniform(0.1, 10), "λ_CE, of keeping the class", low=0)
    l2a_lr: float = hp(1e-4, LogUniform(1e-5, 1e-3), "of the generator's Adam", low=0)
    l2a_warmup: float = hp(0.2, doc="share of rounds before images are generated", low=0, high=1)
    l2a_width: int = hp(16, doc="channels of the generator", low=1)
    l2a_blocks: int = hp(1, doc="residual blocks of the generator", low=0)
    l2a_iterations: int = hp(20, doc="of Sinkhorn's algorithm", low=1)

    def receive(self, server, client) -> None:
        super().receive(server, client)
        if self.l2a_alpha == 1:
            return
        model, count = client.model, source_count(client)
        warm = client.progress < self.l2a_warmup
        domain_classifier = lend(client, "l2a_domains", lambda: _with_head(model, count))
        domain_classifier.train(warm).requires_grad_(warm)
        if not warm:
            client.memory.setdefault("l2a_classes", copy_of(client.state))
            classifier = lend(client, "l2a_classes", lambda: copy.deepcopy(model))
            classifier.eval().requires_grad_(False)
            shape = count, self.l2a_width, self.l2a_blocks
            generator = lend(client, "l2a_generator", lambda: Generator(*shape))
            adam = torch.optim.Adam(generator.parameters(), self.l2a_lr, (0.5, 0.999))
            if "l2a_adam" in client.memory:
                adam.load_state_dict(client.memory["l2a_adam"])
            client.scratch["l2a_adam"] = adam

    def optimizer(self, client) -> torch.optim.Optimizer:
        optimizer = super().optimizer(client)
        if "l2a_domains" in client.scratch:
            train_along(optimizer, client.scratch["l2a_domains"])
        return optimizer

    def upload(self, client):
        for name in ("l2a_domains", "l2a_generator"):
            if name in client.scratch:
                keep(client, name)
        if "l2a_adam" in client.scratch:
            client.memory["l2a_adam"] = copy.deepcopy(client.scratch["l2a_adam"].state_dict())
        return super().upload(client)

    def step(self, client, batch: Batch) -> torch.Tensor:
        if "l2a_generator" in client.scratch:
            extras = {**batch.extras, "novel": self._generate(client, batch)}
            batch = dataclasses.replace(batch, extras=extras)
        return super().step(client, batch)

    def loss(self, client, batch: Batch) -> torch.Tensor:
        loss = super().loss(client, batch)
        if "novel" in batch.extras:
            novel = F.cross_entropy(client.model(batch.extras["novel"]), batch.labels)
            return self.l2a_alpha * loss + (1 - self.l2a_alpha) * novel
        if "l2a_domains" in client.scratch:
            domains = client.scratch["l2a_domains"](batch.images)
            loss = loss + F.cross_entropy(domains, source_numbers(client, batch.domains))
        return loss

    def _generate(self, client, batch: Batch) -> torch.Tensor:
        """One step of the generator; gives back the images it made, as constants."""
        generator, transform = client.scratch["l2a_generator"], client.train.transform
        sources, count = source_numbers(client, batch.domains), source_count(client)
        novel = count + (sources + torch.randint(count, ()).to(sources.device)) % count
        real = 2 * transform.to_pixels(batch.images) - 1
        made = generator(real, novel)
        images = transform.from_pixels((made + 1) / 2)
        cycle = F.l1_loss(generator(made, sources), real)
        classes = F.cross_entropy(client.scratch["l2a_classes"](images), batch.labels)
        away = self._distance(client, batch.images, images, sources)
        loss = self.l2a_class * classes + self.l2a_cycle * cycle - self.l2a_domain * away
        client.scratch["l2a_adam"].zero_grad(set_to_none=True)
        loss.backward()
        client.scratch["l2a_adam"].step()
        return images.detach()

    def _distance(self, client, images, made, sources) -> torch.Tensor:
        """Transport from each source to what was made of it, and between what was made."""
        network, count = client.scratch["l2a_domains"], source_count(client)
        with torch.no_grad():
            real = network.features(images)
        novel = network.features(made)
        masses = F.one_hot(sources, count).T.to(real.dtype)
        masses = masses / masses.sum(1, keepdim=True).clamp(min=1)
        pairs = list(itertools.combinations(range(count), 2))
        here = [*range(count), *(first for first, _ in pairs)]
        there = [*range(count), *(second for _, second in pairs)]
        to_novel, among = cosine_cost(real, novel), cosine_cost(novel, novel)
        costs = torch.stack([to_novel] * count + [among] * len(pairs))
        moved = transport_cost(costs, masses[here], masses[there], 1.0, self.l2a_iterations)
        return moved[:count].mean() + (moved[count:].mean() if pairs else 0)


class Generator(nn.Module):
    """Images in [-1, 1] to images of a numbered domain: K sources, then K novel ones."""

    def __init__(self, sources: int, width: int, blocks: int):
        super().__init__()
        self.domains = 2 * sources
        self.enter = nn.Conv2d(3 + self.domains, width, 4, stride=2, padding=1)
        self.blocks = nn.ModuleList(_block(width) for _ in range(blocks))
        self.leave = nn.ConvTranspose2d(width, 3, 4, stride=2, padding=1)

    def forward(self, images: torch.Tensor, domains: torch.Tensor) -> torch.Tensor:
        where = F.one_hot(domains, self.domains).to(images.dtype)[..., None, None]
        x = torch.cat([images, where.expand(-1, -1, *images.shape[-2:])], dim=1)
        x = F.relu(self.enter(x))  # not normalised: that would take the domain out again
        for block in self.blocks:
            x = x + block(x)
        change = torch.tanh(self.leave(x, output_size=images.shape[-2:]))
        return (images + change).clamp(-1, 1)


def _block(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.InstanceNorm2d(width, affine=True),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.InstanceNorm2d(width, affine=True),
    )


def _with_head(model, outputs: int):
    """A copy of the network with a fresh classifier for another number of classes."""
    network = copy.deepcopy(model)
    parent, _, name = network.head_name.rpartition(".")
    setattr(network.get_submodule(parent), name, nn.Linear(network.feature_size, outputs))
    return network
