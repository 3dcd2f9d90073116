"""The features and logits behind another method's loss, without a second pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch

from datasets.samples import Batch
from methods.ops.batchnorm import frozen_statistics

if TYPE_CHECKING:
    from benchmark.federation import Client

Loss = Callable[["Client", Batch], torch.Tensor]


class Classified(NamedTuple):
    """A loss, and what the classifier got and gave for the batch in it."""

    loss: torch.Tensor
    features: torch.Tensor
    logits: torch.Tensor


def classified(loss: Loss, client: Client, batch: Batch) -> Classified:
    """`loss(client, batch)` with the features that first went into the classifier in it and the
    logits that came out, all with their gradients. Where the loss classifies anything else than
    this batch, one more pass, which leaves running statistics alone, gives them."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    classifier = client.model.classifier
    hook = classifier.register_forward_hook(lambda _, x, output: seen.append((x[0], output)))
    try:
        value = loss(client, batch)
    finally:
        hook.remove()
    for features, logits in seen:
        # Some losses first look at detached features: those would teach the network nothing.
        if len(features) == len(batch) and features.grad_fn is not None:
            return Classified(value, features, logits)
    with frozen_statistics(client.model):
        features = client.model.features(batch.images)
    return Classified(value, features, classifier(features))
