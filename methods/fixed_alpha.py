"""Fixed alpha: one constant mixes each test sample's statistics with the federation's.

    μ = α μᵢ + (1 − α) μ_G      σ = α σᵢ + (1 − α) σ_G      σ = sqrt(var + eps)

Paper: You et al., Test-time Batch Statistics Calibration for Covariate Shift, arXiv 2021 (α-BN).
Leaves the client besides weights: nothing, training does not change.

Here α always weights the sample's side; α-BN's own α weights the source side, and it mixes with
the statistics of a test batch, not of one sample. Its implementations mix variances; here spreads
are mixed, as in FedFD-A's Eq. 6, and `alpha_spread=variance` is the other. The FedFD-A paper, which
has this as "Fixed alpha" (83.73 on PACS), does not say its α. The default of 0.1 is this file's;
α = 0 is the global model and α = 1 is `tbn`.
"""

from __future__ import annotations

from benchmark.hparams import Choice, hp
from benchmark.method import Predictor, register
from methods.ops.inference import NormAtInference, with_mix

TENTHS = Choice(*(k / 10 for k in range(1, 10)))


@register(
    "fixed_alpha",
    label="Fixed alpha",
    paper="Test-time Batch Statistics Calibration for Covariate Shift",
    venue="arXiv 2021",
    category="inference",
    needs_batchnorm=True,
)
class FixedAlpha(NormAtInference):
    """Prediction with a constant share of each sample's own statistics."""

    alpha_instance: float = hp(0.1, TENTHS, "weight of the sample's own statistics", low=0, high=1)
    alpha_spread: str = hp("std", Choice("std", "variance"), "what is mixed besides the mean")

    def predictors(self, server, clients) -> dict[str, Predictor]:
        mixed = with_mix(
            server.model,
            lambda local, reference: self.alpha_instance,
            on_variance=self.alpha_spread == "variance",
        )
        return {"fixed_alpha": mixed, **super().predictors(server, clients)}
