"""Which stages of a network a paper means."""

from __future__ import annotations

from benchmark.backbones.base import Backbone
from benchmark.errors import UserError


def early_stages(model: Backbone, count: int) -> tuple[str, ...]:
    """The first `count` stages in the papers' sense: layer1, layer2, … of a ResNet, whose stem does
    not count, and the first blocks of any other convolutional network."""
    stages = tuple(stage for stage in model.stages if stage != "stem")
    if "embedding" in stages or len(stages) < count:
        raise UserError(
            f"{type(model).__name__} has no {count} convolutional stages; choose a CNN or a ResNet"
        )
    return stages[:count]
