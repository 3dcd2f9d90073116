"""Predicting with other normalisation layers than those a network was trained with."""

from __future__ import annotations

import copy
from collections.abc import Callable

from torch import nn

from benchmark.backbones.base import Backbone
from benchmark.method import Method
from methods.ops.normalisation import (
    Mix,
    MixedNorm2d,
    converted,
    refuse_trained,
    replace_untrained,
)


class NormAtInference(Method):
    """Base of methods that add a predictor with other normalisation and train like the rest."""

    def prepare(self, server, clients) -> None:
        super().prepare(server, clients)
        refuse_trained(server.model)  # before the first round rather than after it


def with_norm(model: Backbone, factory: Callable[[nn.BatchNorm2d], nn.Module]) -> Backbone:
    """A copy of the model, for prediction, with `factory(layer)` in place of every BatchNorm2d;
    the model itself stays as it is."""
    twin = copy.deepcopy(model).eval()
    replace_untrained(twin, factory)
    return twin


def with_mix(model: Backbone, mix: Mix, on_variance: bool = False, copies: int = 1) -> Backbone:
    """A copy of the model, for prediction, that normalises with mixed statistics."""

    def factory(old: nn.BatchNorm2d) -> MixedNorm2d:
        new = converted(MixedNorm2d, old)
        new.mix, new.on_variance, new.copies = mix, on_variance, copies
        return new

    return with_norm(model, factory)
