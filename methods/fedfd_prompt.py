"""FedFD on prompts: features must stay the same when the client's prompt nears everybody's.

    p_Δ = u ⊙ p_k + (1 − u) ⊙ p_G,    u ~ U(0, 1) for each of the L·768 numbers, in every step
    L = (1 − λ1) CE(C(f_k), y) + λ1 CE(C(f_Δ), y) + λ2 mean_i ‖f_i,k − f_i,Δ‖²

p_k is the client's own prompt (methods/doprompt.py), p_G the average of all, fixed for the round;
f is the class token's feature before dropout. The gradient reaches p_k in both passes. p_G is
tested.

Paper: Yang et al., Feature Diversification and Adaptation for Federated Domain Generalization, ECCV
2024, Table 6; no public code. Leaves the client besides weights: nothing new; on the way down the
averaged prompt comes besides the weights that the client takes over.

The paper has the idea in one paragraph: that u has an entry for every number and is drawn in every
step is its rule for statistics, carried over. Its table calls the row FedFD-A, the text says that
no adapter is used. The squared distance is a sum over the features, as printed; with
`prompt_reduction=mean` it is smaller by their number, 768. Equal bounds fix u: 1 is the client's
own prompt, 0 the average. With λ1 = λ2 = 0 this is DoPrompt. Optimiser: see methods/doprompt.py.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from benchmark.backbones.base import Backbone
from benchmark.errors import UserError
from benchmark.hparams import Stated, Uniform, hp
from benchmark.method import Batch, register
from methods.doprompt import DoPrompt
from methods.ops.agreement import feature_distance, total_loss
from methods.ops.capture import captured
from methods.ops.prompts import find_prompts


@register(
    "fedfd_prompt",
    label="FedFD on DoPrompt",
    paper="Feature Diversification and Adaptation for Federated Domain Generalization",
    venue="ECCV 2024",
    category="federated DG",
    needs_tokens=True,
)
class FedFDPrompt(DoPrompt):
    """Two passes, with the own prompt and with one on the way to the average."""

    prompt_lambda1: float = hp(0.1, Uniform(0.1, 0.5), "λ1, of classifying f_Δ", low=0, high=1)
    prompt_lambda2: float = hp(4.0, Uniform(2, 5), "λ2, of the distance of the features", low=0)
    prompt_low: float = hp(0.0, doc="least share u of the own prompt")
    prompt_high: float = hp(1.0, doc="largest share u of the own prompt; equal: fixed")
    prompt_reduction: str = hp("sum", Stated("sum", "mean"), "over the features, of the distance")

    @property
    def _second(self) -> bool:
        """Whether there is a second pass."""
        return self.doprompt_length > 0 and (self.prompt_lambda1 > 0 or self.prompt_lambda2 > 0)

    def build(self, make) -> Backbone:
        if self.prompt_low > self.prompt_high:
            raise UserError(
                f"prompt_low={self.prompt_low} must not exceed prompt_high={self.prompt_high}"
            )

        def watched() -> Backbone:
            model = make()
            model.features_before_dropout = nn.Identity()
            model.insert("features", model.features_before_dropout)
            return model

        return super().build(watched)

    def receive(self, server, client) -> None:
        super().receive(server, client)
        if not self._second:
            return
        key, _ = find_prompts(client.model)
        if key in client.memory.get("kept", {}):  # else it has come with the weights
            server.send(client, "weights", {key: server.state[key]})
        client.scratch["global_prompt"] = server.state[key].detach().clone()

    def loss(self, client, batch: Batch) -> torch.Tensor:
        if not self._second:
            return super().loss(client, batch)
        model = client.model
        _, prompts = find_prompts(model)
        with captured(model.features_before_dropout) as features:
            plain = super().loss(client, batch)
            with prompts.replaced(self.mixed(prompts.tokens, client.scratch["global_prompt"])):
                classification = F.cross_entropy(model(batch.images), batch.labels)
        distance = feature_distance(features[0], features[-1], self.prompt_reduction)
        lambdas = self.prompt_lambda1, self.prompt_lambda2
        return total_loss(plain, classification, distance, *lambdas)

    def mixed(self, own: torch.Tensor, average: torch.Tensor) -> torch.Tensor:
        """p_Δ; u is drawn on the CPU, so that all devices see the same."""
        width = self.prompt_high - self.prompt_low
        share = self.prompt_low
        if width > 0:
            share = share + width * torch.rand(own.shape).to(own.device)
        return share * own + (1 - share) * average
