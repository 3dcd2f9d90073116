"""TBN: every test sample is normalised with its own statistics instead of the federation's.

    y = γ (x − μᵢ) / sqrt(varᵢ + eps) + β       μᵢ, varᵢ over the sample's own map, biased

Paper: Nado et al., Evaluating Prediction-Time Batch Normalization for Robustness under Covariate
Shift, arXiv 2020; here with a batch of one, as in the FedFD-A paper. Leaves the client besides
weights: nothing, training does not change.

With one sample this is instance normalisation of a network trained with batch normalisation, and
it is expected to fail: the FedFD-A paper prints 12.97 on PACS where global statistics give 80.79.
Batch normalisation of vectors has no statistics of one sample and keeps the global ones.
"""

from __future__ import annotations

from benchmark.method import Predictor, register
from methods.ops.inference import NormAtInference, with_mix


@register(
    "tbn",
    label="TBN",
    paper="Evaluating Prediction-Time Batch Normalization for Robustness under Covariate Shift",
    venue="arXiv 2020",
    category="inference",
    needs_batchnorm=True,
)
class TBN(NormAtInference):
    """Prediction with each sample's own statistics."""

    def predictors(self, server, clients) -> dict[str, Predictor]:
        own = with_mix(server.model, lambda local, reference: 1.0)
        return {"tbn": own, **super().predictors(server, clients)}
