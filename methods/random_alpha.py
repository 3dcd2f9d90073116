"""Random alpha: a fresh random number mixes each test sample's statistics with the federation's.

    μ = α μᵢ + (1 − α) μ_G      σ = α σᵢ + (1 − α) σ_G      α ~ U(0, 1) per sample and layer

Paper: a naive reference of Yang et al., "Feature Diversification and Adaptation for Federated
Domain Generalization" (FedFD-A), ECCV 2024, 79.87 on PACS; nothing of its own was published.
Leaves the client besides weights: nothing, training does not change.

The paper does not say how often α is drawn; here it is once for every sample and layer. The draws
come from the generator that evaluation seeds for every round and predictor, so a run always gives
the same result, but a sample's prediction depends on its place in the order of the test samples.
"""

from __future__ import annotations

import torch

from benchmark.method import Predictor, register
from methods.ops.inference import NormAtInference, with_mix
from methods.ops.normalisation import Statistics


def draw_weights(local: Statistics, reference: Statistics) -> torch.Tensor:
    """One number for each sample, drawn on the CPU, so that all devices see the same."""
    return torch.rand(len(local.mean), 1).to(local.mean.device)


@register(
    "random_alpha",
    label="Random alpha",
    paper="Feature Diversification and Adaptation for Federated Domain Generalization",
    venue="ECCV 2024",
    category="inference",
    needs_batchnorm=True,
)
class RandomAlpha(NormAtInference):
    """Prediction with a random share of each sample's own statistics."""

    def predictors(self, server, clients) -> dict[str, Predictor]:
        mixed = with_mix(server.model, draw_weights)
        return {"random_alpha": mixed, **super().predictors(server, clients)}
