"""The features behind another method's loss, without a second pass through the network."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from datasets.samples import Batch
from methods.ops.batchnorm import frozen_statistics

if TYPE_CHECKING:
    from benchmark.federation import Client

Loss = Callable[["Client", Batch], torch.Tensor]


def loss_and_features(
    loss: Loss, client: Client, batch: Batch
) -> tuple[torch.Tensor, torch.Tensor]:
    """`loss(client, batch)` and the batch's features: what first went into the classifier in it,
    with its gradient. Where the loss classifies anything else than this batch, one more pass,
    which leaves running statistics alone, gives the features."""
    seen: list[torch.Tensor] = []
    hook = client.model.classifier.register_forward_pre_hook(lambda _, x: seen.append(x[0]))
    try:
        value = loss(client, batch)
    finally:
        hook.remove()
    for features in seen:
        # Some losses first look at detached features: those would teach the network nothing.
        if len(features) == len(batch) and features.grad_fn is not None:
            return value, features
    with frozen_statistics(client.model):
        return value, client.model.features(batch.images)
