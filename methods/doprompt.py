"""DoPrompt, federated: each client learns a prompt for its domain; their average is tested.

    f_k = class token of ViT([image tokens; p_k]),   p_k of L tokens stays with client k,
    p_G = Σ_k (n_k/n) p_k at test

Paper: Zheng et al., Prompt Vision Transformer for Domain Generalization, arXiv 2022 (code
zhengzangw/DoPrompt), in the federated form of Table 6 of the FedFD-A paper (Yang et al., ECCV
2024). Leaves the client besides weights: nothing new; the prompt is uploaded with them (L·768
numbers) and averaged, like a SiloBN layer, and not loaded back.

DoPrompt also has a prompt adapter, which mixes all domains' prompts for each image; FedFD-A leaves
it out, and so does this file. Tokens stand behind the image's own, after the position embedding and
without one; start N(0, 0.02²), here the same for all clients (there one draw per domain), so
that their slots can be averaged. A client not sampled keeps its prompt until it is.

Optimiser: the protocol's. DoPrompt's own is AdamW with 5e-6 for the network (weight decay 1e-2),
1e-3 for prompts and, on PACS, 5e-5 for the classifier (5e-6 on VLCS; weight decay 1e-5 for both):
training.optimizer=adamw, lr=5e-6, weight_decay=1e-2 and doprompt_rate=200, doprompt_head_rate=10,
doprompt_decay=1e-5. FedFD-A does not state what it used, nor which ViT. With no tokens, no dropout
and rates of 1 this is FedAvg. GA's table row is `ga+doprompt`.
"""

from __future__ import annotations

import torch
from torch import nn

from benchmark.backbones.base import Backbone
from benchmark.hparams import Choice, LogUniform, hp
from benchmark.method import Method, register
from methods.ops.prompts import add_prompts, find_prompts


@register(
    "doprompt",
    label="DoPrompt",
    paper="Prompt Vision Transformer for Domain Generalization",
    venue="arXiv 2022",
    category="federated DG",
    needs_tokens=True,
)
class DoPrompt(Method):
    """A transformer with a prompt that stays with the client."""

    doprompt_length: int = hp(4, Choice(2, 4, 8), "tokens L of a prompt", low=0)
    doprompt_dropout: float = hp(0.1, Choice(0.0, 0.1), "of the class token", low=0, high=0.9)
    doprompt_rate: float = hp(1.0, LogUniform(1, 300), "learning rate of prompts / protocol's")
    doprompt_head_rate: float = hp(1.0, LogUniform(1, 100), "of the classifier / protocol's")
    doprompt_decay: float | None = hp(
        None, doc="weight decay of prompts and classifier; none: the protocol's", low=0
    )

    def build(self, make) -> Backbone:
        model = super().build(make)
        add_prompts(model, self.doprompt_length, self.name)
        if self.doprompt_dropout > 0:
            model.insert("features", nn.Dropout(self.doprompt_dropout))
        return model

    def keeps(self, model: Backbone) -> set[str]:
        found = find_prompts(model)
        return super().keeps(model) | ({found[0]} if found else set())

    def optimizer(self, client) -> torch.optim.Optimizer:
        optimizer = super().optimizer(client)
        found = find_prompts(client.model)
        prompts = [found[1].tokens] if found else []
        self._part(optimizer, prompts, self.doprompt_rate)
        self._part(optimizer, list(client.model.classifier.parameters()), self.doprompt_head_rate)
        return optimizer

    def _part(self, optimizer, parameters: list[nn.Parameter], rate: float) -> None:
        """Give some parameters a group of their own, if they are to be treated differently."""
        if not parameters or (rate == 1 and self.doprompt_decay is None):
            return
        chosen = set(parameters)
        group = next(g for g in optimizer.param_groups if chosen <= set(g["params"]))
        group["params"] = [p for p in group["params"] if p not in chosen]
        changed = {"params": parameters, "lr": rate * group["lr"]}
        if self.doprompt_decay is not None:
            changed["weight_decay"] = self.doprompt_decay
        optimizer.add_param_group({**group, **changed})
