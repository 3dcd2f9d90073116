"""Learnt tokens that join an image's own in a vision transformer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from benchmark.backbones.base import Backbone
from benchmark.errors import UserError

STAGE = "embedding"


class Prompts(nn.Module):
    """Appends its tokens, the same for every image, to what leaves the embedding. They come after
    the position embedding and have no position: their order does not matter."""

    def __init__(self, count: int, width: int):
        super().__init__()
        self.tokens = nn.Parameter(torch.empty(count, width).normal_(std=0.02))
        self.others: torch.Tensor | None = None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        added = self.tokens if self.others is None else self.others
        return torch.cat([tokens, added.expand(len(tokens), -1, -1)], 1)

    @contextlib.contextmanager
    def replaced(self, others: torch.Tensor) -> Iterator[None]:
        """Append other tokens meanwhile."""
        self.others = others
        try:
            yield
        finally:
            self.others = None


def add_prompts(model: Backbone, count: int, owner: str) -> None:
    """Let a transformer see `count` learnt tokens behind each image's own; 0 changes nothing."""
    if STAGE not in model.stages:
        raise UserError(f"{owner} works on the tokens of a transformer; choose --backbone vit_b16")
    if count > 0:
        model.insert(STAGE, Prompts(count, model.class_token.shape[-1]))


def find_prompts(model: Backbone) -> tuple[str, Prompts] | None:
    """The key of the learnt tokens in the model's state and the module that has them, if any."""
    for path, module in model.taps.named_modules():
        if isinstance(module, Prompts):
            return f"taps.{path}.tokens", module
    return None
