"""FedADG: every client aligns its features, class by class, to one reference distribution that a
shared generator learns.

    (F, C)  λ₀ E(1 − D(h|y))² + λ₁ L_err      h = F(x), L_err = cross-entropy with smoothed labels
    D       E D(h|y)² + E(1 − D(h'|y))²       h' = G(z, y), z ~ U[0, 1)
    G       E D(h'|y)²                        G is averaged by the server, D never leaves its client

A client first trains (F, C) on L_err alone, for E0 of its E0 + E1 epochs; then each batch makes a
step of (F, C), one of D and one of G. D begins with a random projection that is never trained.

Paper: Zhang et al., Federated Learning with Domain Generalization, arXiv 2021. Leaves the client
besides weights: the generator, once a round each way. The discriminator, its projection and its
optimiser stay with the client and are untouched in rounds it skips; the generator is the mean over
the round's clients, with the weights of the models (the paper's are uniform).

Differences, with the default first (code: the fork Haoxiang-Wang/FedADG):
- Weights: λ₀ = 0.85 on the adversarial term (paper); the code has 0.85 on L_err:
  `adg_weights=code`.
- G moves toward the features, E D(h')², as the PACS code and the paper's prose have it; its Eq. 4
  pushes it away: `adg_g_loss=paper`. VLCS code and public ports detach h' here, so G never learns.
- D minimises the least-squares form; Eq. 2 has the same aim with another curve:
  `adg_d_loss=paper`.
- The projection is fixed (paper); the code trains it. One-hot labels have height 1 (code: 0.7,
  0.6). L_err gives the wrong classes 0.1 together (code: 0.01 and 0.2).
- Order (F, C), D, G of the paper's algorithm; the code begins with D. As in the code F is in
  evaluation mode when D and G learn, and epochs are full passes (the algorithm draws one batch).
- E0 and E1 are shares of the protocol's local work, 3 : 7; with ten local epochs they are the
  paper's. Rates of G and D are relative to the client's: the paper's table has 0.7 for both on VLCS
  and PACS, 0.14 and 0.02 on Office-Home.
- F and C are the network's features and its last layer; the code's C has one more linear layer.
- Sizes: G and the first layer of D are as wide as the features (paper); noise as well, at most
  2048. The projection has 1024 dimensions, or half of the features where these are 1024 or fewer.

Ablations: `adg_onehot=0`, `adg_projection=False`, `adg_align=False` (w/o G&D: cross-entropy with
smoothed labels, no messages), `adg_reference=gaussian|uniform|laplace` (nothing is shared then).
λ₀ = 0 without smoothing is FedAvg. In combinations L_err is the other method's loss, smoothed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch

from benchmark.backbones.base import Backbone
from benchmark.errors import UserError
from benchmark.hparams import LogUniform, Stated, Uniform, hp
from benchmark.method import Batch, Method, register
from benchmark.state import WeightedSum, copy_of
from methods.ops.alignment import (
    Discriminator,
    Generator,
    discriminator_loss,
    extractor_loss,
    fixed_reference,
    generator_loss,
    one_hot,
    smoothing_term,
)
from methods.ops.features import classified
from methods.ops.local_modules import keep, lend
from methods.ops.local_work import planned_steps
from methods.ops.side_training import descend, side_optimizer


@register(
    "fedadg",
    label="FedADG",
    paper="Federated Learning with Domain Generalization",
    venue="arXiv 2021",
    category="federated DG",
    shares=("generator",),
)
class FedADG(Method):
    """Adversarial alignment of each client's features to a generated reference distribution."""

    adg_lambda: float = hp(0.85, Uniform(0.1, 0.95), "λ₀, or λ₁ by the code", low=0, high=1)
    adg_weights: str = hp("paper", Stated("paper", "code"), "whose weights: λ is λ₀ or λ₁")
    adg_warm: float = hp(0.3, doc="E0/(E0+E1), share of local work before alignment", low=0, high=1)
    adg_g_loss: str = hp("toward", Stated("toward", "paper"), "where G moves")
    adg_d_loss: str = hp("lsgan", Stated("lsgan", "paper"), "form of D's loss")
    adg_g_rate: float = hp(0.7, LogUniform(0.1, 1), "G's learning rate, of the client's", low=0)
    adg_d_rate: float = hp(0.7, LogUniform(0.02, 1), "D's learning rate, of the client's", low=0)
    adg_smoothing: float = hp(0.1, Uniform(0, 0.2), "mass on the wrong classes", low=0, high=0.5)
    adg_onehot: float = hp(1.0, doc="height of one-hot labels; 0 = without", low=0)
    adg_projection: bool = hp(True, doc="random projection before D")
    adg_projection_size: int | None = hp(None, doc="its dimensions; none = by the features", low=1)
    adg_noise: int | None = hp(None, doc="dimensions of z; none = by the features", low=1)
    adg_hidden: int | None = hp(None, doc="width of G and D; none = of the features", low=1)
    adg_align: bool = hp(True, doc="with G and D")
    adg_reference: str = hp(
        "learned", Stated("learned", "gaussian", "uniform", "laplace"), "reference distribution"
    )

    @property
    def lambda_0(self) -> float:
        """The weight of the adversarial term; 0 means there is neither G nor D."""
        share = self.adg_lambda if self.adg_weights == "paper" else 1 - self.adg_lambda
        return share if self.adg_align else 0.0

    @property
    def learns_reference(self) -> bool:
        return self.lambda_0 > 0 and self.adg_reference == "learned"

    def build(self, make: Callable[[], Backbone]) -> Backbone:
        model = super().build(make)
        size = self.adg_projection_size
        if self.adg_projection and size is not None and size >= model.feature_size:
            raise UserError(
                f"adg_projection_size={size} must be less than the {model.feature_size} features; "
                f"choose a smaller one or none"
            )
        return model

    def prepare(self, server, clients: Sequence) -> None:
        super().prepare(server, clients)
        if self.learns_reference:
            server.memory["fedadg"] = copy_of(self.make_generator(server.model).state_dict())

    def code_size(self, model: Backbone) -> int:
        return model.class_count if self.adg_onehot > 0 else 0

    def make_generator(self, model: Backbone) -> Generator:
        features = model.feature_size
        noise, codes = self.adg_noise or min(2048, features), self.code_size(model)
        return Generator(noise, codes, self.adg_hidden or features, features)

    def make_discriminator(self, model: Backbone) -> Discriminator:
        features = model.feature_size
        projected = self.adg_projection_size or (1024 if features > 1024 else features // 2)
        hidden, codes = self.adg_hidden or features, self.code_size(model)
        return Discriminator(features, codes, hidden, projected if self.adg_projection else None)

    def receive(self, server, client) -> None:
        super().receive(server, client)
        client.scratch["adg_steps"] = 0
        if self.lambda_0 == 0:
            return
        lend(client, "adg_discriminator", lambda: self.make_discriminator(client.model))
        client.scratch["adg_discriminator"].requires_grad_(False)
        if self.learns_reference:
            generator = self.make_generator(client.model).to(client.train.device)
            generator.load_state_dict(server.send(client, "generator", server.memory["fedadg"]))
            client.scratch["adg_generator"] = generator

    def optimizer(self, client) -> torch.optim.Optimizer:
        if self.lambda_0 > 0:
            module, left = client.scratch["adg_discriminator"], client.memory.get("adg_optimizer")
            own = side_optimizer(self, client, module, self.adg_d_rate, left)
            client.scratch["adg_d_optimizer"] = own
        if self.learns_reference:
            module = client.scratch["adg_generator"]
            shared = side_optimizer(self, client, module, self.adg_g_rate)
            client.scratch["adg_g_optimizer"] = shared
        return super().optimizer(client)

    def aligning(self, client) -> bool:
        """Whether the client's next step is one of the second phase."""
        warm = round(self.adg_warm * planned_steps(client))
        return self.lambda_0 > 0 and client.scratch["adg_steps"] >= warm

    def loss(self, client, batch: Batch) -> torch.Tensor:
        aligning = self.aligning(client)
        if not aligning and self.adg_smoothing == 0:
            return super().loss(client, batch)
        loss, features, logits = classified(super().loss, client, batch)
        if self.adg_smoothing > 0:
            loss = loss + smoothing_term(logits, batch.labels, self.adg_smoothing)
        if not aligning:
            return loss
        codes = one_hot(batch.labels, client.model.class_count, self.adg_onehot)
        adversarial = extractor_loss(client.scratch["adg_discriminator"](features, codes))
        return self.lambda_0 * adversarial + (1 - self.lambda_0) * loss

    def step(self, client, batch: Batch) -> torch.Tensor:
        loss = super().step(client, batch)
        if self.aligning(client):
            self.train_adversaries(client, batch)
        client.scratch["adg_steps"] += 1
        return loss

    def train_adversaries(self, client, batch: Batch) -> None:
        """One step of D, then one of G, on the same images and the same noise."""
        model, discriminator = client.model, client.scratch["adg_discriminator"]
        model.eval()
        with torch.no_grad():
            extracted = model.features(batch.images)
        model.train()
        codes = one_hot(batch.labels, model.class_count, self.adg_onehot)
        if self.learns_reference:
            reference = client.scratch["adg_generator"](codes)
        else:
            reference = fixed_reference(self.adg_reference, *extracted.shape).to(extracted)
        discriminator.requires_grad_(True)
        answers = discriminator(extracted, codes), discriminator(reference.detach(), codes)
        loss = discriminator_loss(*answers, self.adg_d_loss)
        descend(client.scratch["adg_d_optimizer"], loss)
        discriminator.requires_grad_(False)
        if self.learns_reference:
            loss = generator_loss(discriminator(reference, codes), self.adg_g_loss)
            descend(client.scratch["adg_g_optimizer"], loss)

    def upload(self, client):
        update = super().upload(client)
        if self.lambda_0 > 0:
            keep(client, "adg_discriminator")
            client.memory["adg_optimizer"] = client.scratch.pop("adg_d_optimizer").state_dict()
            del client.scratch["adg_discriminator"]  # not to be held for every client at once
        if self.learns_reference:
            del client.scratch["adg_g_optimizer"]
            state = copy_of(client.scratch.pop("adg_generator").state_dict())
            update.extras["generator"] = client.send("generator", state)
        return update

    def aggregate(self, server, updates: Iterable) -> None:
        if not self.learns_reference:
            super().aggregate(server, updates)
            return
        generator = WeightedSum()

        def watched() -> Iterator:
            for update in updates:
                generator.add(update.extras.pop("generator"), update.weight)
                yield update

        super().aggregate(server, watched())
        server.memory["fedadg"] = generator.result()
