"""StableFDG: clients lend each other styles, explore styles beyond them, and attend to what the
samples of a class have in common.

    share     Φ_n = [mean μ, mean σ, widths of μ, of σ] of client n's maps after the first stage
    shift     half of a batch becomes σ' (s − μ(s))/σ(s) + μ',  (μ', σ') drawn around a received Φ
    explore   M oversampled features get the style μ + α(μ − μ̄), σ + α(σ − σ̄)
    mix       all styles λ·own + (1 − λ)·another's, λ ~ Beta(0.1, 0.1)
    attend    a = softmax_p ½ mean(θq z_j + θq z_i) · θk z_i(p),  features [pooled z; Σ_p a(p) z(p)]

Paper: Park et al., StableFDG: Style and Attention Based Learning for Federated Domain
Generalization, NeurIPS 2023; code savertm/StableFDG_github. Leaves the client besides weights: Φ,
4 C numbers a round (256 on ResNet-18), which the server hands on to one other client as they are.
Styles go round among the clients of a round, anew in each; of those absent nothing is kept (the
code collects everybody's and uses the participants'), and a client alone shares and shifts nothing.

Shifting (after the first stage) and exploring (after each of the first three) happen each with
probability p for a whole batch. The first exploring place that acts oversamples and explores, later
ones only mix; the loss is over the enlarged batch. z_j is the next sample of z_i's class; at test,
j = i. `stablefdg_p=0` leaves attention only, `stablefdg_attention=off` style only, both: FedAvg.

Where paper and code differ. Default as in the paper: who is shifted (k-means++ seeding keeps half
the batch; the code re-colours everything, `stablefdg_select=code`, there with 16 fixed for our
half), Φ of plain images from round 0 on (`stablefdg_variant=code`: of augmented ones, from round 1
on), and a second sample for classes that have one in the batch (the code has it for Office-Home
only; `stablefdg_supplement=False`). Default as in the code, as the paper is silent or odd: noise of
Φ' own width instead of a product of two variances (`stablefdg_noise=paper`), μ̄ of the batch before
oversampling, queries and keys of length 1 (`stablefdg_normalise`), Beta(0.1, 0.1), a σ that
exploring makes negative (`stablefdg_clamp`), the gradient: through the normalisation when exploring
and mixing, not when shifting. Supplements count against M; they pass the network with the batch,
in the code beside it. The code collects styles in whatever mode the model is in, here evaluation.

Attention adds 30,780 + 3,584 parameters on ResNet-18 with 7 classes; the paper's 0.44 % are 49,756,
with layers of the code that nothing uses (`stablefdg_variant=code` has them, untrained). What
attention is put beside is what the network itself pools, an average on ResNets; the digits CNNs
flatten their last maps, where the code's, which does not run, averages them (`variant=code`). A
network with layers after the pooling is refused. `conv` is our reading of Table 16's baseline:
scores are the mean of the rectified query and key maps. Unweighted averaging is the protocol's
matter (training.weights).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import nn

from benchmark.backbones.base import Backbone
from benchmark.errors import UserError
from benchmark.hparams import Choice, LogUniform, Stated, Uniform, hp
from benchmark.method import Batch, Method, register
from benchmark.state import write
from methods.ops.chance import happens
from methods.ops.exploration import Plan, Slot, StyleExploration, StyleShifting
from methods.ops.highlighter import Highlighter, average, maps_of
from methods.ops.oversampling import enlarged, supplemented
from methods.ops.partway import entering
from methods.ops.shared_styles import client_style, derangements, farthest
from methods.ops.side_training import side_batches
from methods.ops.stages import early_stages
from methods.ops.style import style_of

ATTENTION = Stated("both", "off", "self", "cross", "conv")


@register(
    "stablefdg",
    label="StableFDG",
    paper="StableFDG: Style and Attention Based Learning for Federated Domain Generalization",
    venue="NeurIPS 2023",
    category="federated DG",
    shares=("style",),
)
class StableFDG(Method):
    """Shared, shifted and explored styles; features highlighted by attention within a class."""

    stablefdg_p: float = hp(0.5, Uniform(0.3, 0.7), "probability of each step", low=0, high=1)
    stablefdg_stages: int = hp(3, doc="explore after so many of the first stages", low=1)
    stablefdg_styles: int = hp(1, doc="styles a client receives; 0: no shift", low=0, high=3)
    stablefdg_share: str = hp("random", Stated("random", "largest"), "whose: any, or the farthest")
    stablefdg_select: str = hp("kmeanspp", Stated("kmeanspp", "random", "code"), "who keeps style")
    stablefdg_noise: str = hp("code", Stated("code", "paper"), "how received styles vary")
    stablefdg_size: float = hp(1.0, Choice(0.25, 0.5, 1.0), "M over the batch size", low=0)
    stablefdg_oversample: str = hp("class_balanced", Stated("class_balanced", "random"), "of what")
    stablefdg_alpha: float = hp(3.0, Uniform(1, 5), "exploration level α", low=0)
    stablefdg_clamp: bool = hp(False, doc="no negative σ when exploring")
    stablefdg_mix: bool = hp(True, doc="mix the styles of the batch")
    stablefdg_beta: float = hp(0.1, LogUniform(0.05, 1), "of the Beta distribution", low=1e-3)
    stablefdg_attention: str = hp("both", ATTENTION, "whose queries are asked in training")
    stablefdg_width: int = hp(30, doc="channels of queries and keys", low=1)
    stablefdg_normalise: bool = hp(True, doc="queries and keys of length 1")
    stablefdg_supplement: bool = hp(True, doc="one more sample for a class that has one in a batch")
    stablefdg_variant: str = hp("paper", Stated("paper", "code"), "of Φ and of unused layers")

    def build(self, make) -> Backbone:
        model, slot = super().build(make), Slot()
        stages = early_stages(model, self.stablefdg_stages)
        model.style_plan, model.style_entry = slot, stages[0]
        model.insert(stages[0], StyleShifting(slot, self.stablefdg_select))
        mixing = self.stablefdg_beta if self.stablefdg_mix else None
        for place, stage in enumerate(stages):
            level, clamp = self.stablefdg_alpha, self.stablefdg_clamp
            model.insert(stage, StyleExploration(slot, place, level, mixing, clamp))
        if self.stablefdg_attention != "off":
            self._highlight(model, slot)
        return model

    def _highlight(self, model: Backbone, slot: Slot) -> None:
        if type(model).embed is not Backbone.embed:
            raise UserError(
                f"stablefdg: {type(model).__name__} has layers between pooling and classifier; "
                f"choose resnet18, resnet50 or a digits CNN, or set stablefdg_attention=off"
            )
        maps, width = maps_of(model), self.stablefdg_width
        channels, as_code = maps.shape[1], self.stablefdg_variant == "code"
        squeeze = average if as_code else model.squeeze
        attention, normalise = self.stablefdg_attention, self.stablefdg_normalise
        pooling = Highlighter(slot, squeeze, channels, width, attention, normalise)
        if as_code:
            pooling.unused = nn.ModuleList([nn.Conv2d(channels, width, 1), nn.Conv2d(1, 1, 1)])
        model.pooling = pooling
        model.widen_classifier(squeeze(maps).shape[1] + channels)

    def exchange(self, server, clients: Sequence) -> None:
        super().exchange(server, clients)
        late = self.stablefdg_variant == "code" and server.round == 0
        if self.stablefdg_p * self.stablefdg_styles == 0 or len(clients) < 2 or late:
            return
        for client in clients:
            client.scratch["stablefdg"] = client.send("style", self._style(server, client))
        styles = [client.scratch["stablefdg"] for client in clients]
        if self.stablefdg_share == "largest":
            senders = farthest(styles, self.stablefdg_styles)
        else:
            senders = derangements(len(clients), self.stablefdg_styles)
        for client, others in zip(clients, senders, strict=True):
            server.send(client, "style", [styles[other] for other in others])

    @torch.no_grad()
    def _style(self, server, client) -> torch.Tensor:
        """Φ of a client, with the model that it is about to receive (and will be counted then)."""
        write(client.state, server.state)
        write(client.state, client.memory.get("kept", {}))
        model = client.model.eval()
        place = next(p for p in model.taps[model.style_entry] if isinstance(p, StyleShifting))
        styles = [style_of(entering(model, place, images)) for images in self._images(client)]
        means, stds = (torch.cat(parts).flatten(1) for parts in zip(*styles, strict=True))
        return client_style(means, stds, as_variance=self.stablefdg_noise == "paper")

    def _images(self, client):
        if self.stablefdg_variant == "paper":
            yield from (batch.images for batch in client.train.evaluation_batches())
        else:
            yield from (batch.images for batch in side_batches(client, "style", None, 1))

    @property
    def _oversamples(self) -> bool:
        return self.stablefdg_p * self.stablefdg_size > 0

    @property
    def _asks_others(self) -> bool:
        return self.stablefdg_attention in ("cross", "both")

    def augment(self, client, batch: Batch) -> Batch:
        size = len(batch)
        if self.stablefdg_supplement and (self._oversamples or self._asks_others):
            batch = supplemented(client, batch)
        batch = super().augment(client, batch)
        return dataclasses.replace(batch, extras={**batch.extras, "stablefdg": size})

    def loss(self, client, batch: Batch) -> torch.Tensor:
        plan = self._plan(client, batch)
        images = batch.images
        if plan.rows is None and not self._asks_others:
            images = images[: plan.size]  # supplements have no use in this pass
        rows = slice(plan.kept) if plan.rows is None else plan.rows
        labels, domains = plan.labels[: plan.kept], batch.domains[rows]
        with client.model.style_plan.following(plan):
            return super().loss(
                client, dataclasses.replace(batch, images=images, labels=labels, domains=domains)
            )

    def _plan(self, client, batch: Batch) -> Plan:
        size, labels = batch.extras.get("stablefdg", len(batch)), batch.labels
        received = client.inbox.get("style")
        shifts = bool(received) and happens(self.stablefdg_p)
        explores = self.stablefdg_mix or self._oversamples
        tosses = self.stablefdg_stages if explores else 0
        plan = Plan(
            size,
            labels,
            kept=size,
            fires=tuple(happens(self.stablefdg_p) for _ in range(tosses)),
            received=self._received(client, received) if shifts else None,
        )
        count = round(self.stablefdg_size * size)
        if not any(plan.fires) or count == 0:
            return plan
        balanced = self.stablefdg_oversample == "class_balanced"
        rows, copies = enlarged(labels, size, count, client.model.class_count, balanced)
        changed = {"rows": rows, "copies": copies, "labels": labels[rows], "kept": len(rows)}
        return dataclasses.replace(plan, **changed)

    def _received(self, client, styles: Sequence[torch.Tensor]) -> torch.Tensor:
        """One of the received styles, with the widths of the noise around it."""
        style = styles[int(torch.randint(len(styles), ()))]
        if self.stablefdg_noise == "code":
            return style
        own = client.scratch["stablefdg"]  # the paper's ε ~ N(0, Σ_n), times Σ_n' of the sender
        return torch.cat([style[:2], style[2:] * own[2:].sqrt()])
