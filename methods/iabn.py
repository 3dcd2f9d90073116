"""IABN: the federation's statistics, corrected by the sample's own where these differ too much.

    μ* = μ_G + ψ(μᵢ − μ_G; k · sqrt(v / L))           ψ(d; t) = sign(d) · max(|d| − t, 0)
    var* = var_G + ψ(varᵢ − var_G; k · v · sqrt(2 / (L − 1)))      v = var_G + eps

Up to k standard errors, which a map of L independent positions may be off by chance, nothing
happens; what is beyond moves the statistics.

Paper: Gong et al., NOTE: Robust Continual Test-time Adaptation Against Temporal Correlation,
NeurIPS 2022. Leaves the client besides weights: nothing, training does not change.

All on variances, the sample's unbiased; a variance below 0 becomes 0; maps of one position keep
the global statistics. k = 4 as in all runs of the public code (its argument's default is 3). NOTE
also trains with this layer, with batch for global statistics; here, as the training times of the
FedFD-A paper show for its comparison (84.11 on PACS), it is for inference only. That paper finds
that k must be chosen per domain. NOTE's memory and its adaptation steps take no part.
"""

from __future__ import annotations

import torch
from torch import nn

from benchmark.hparams import Choice, hp
from benchmark.method import Predictor, register
from methods.ops.centred import centred_moments, unbiased
from methods.ops.inference import NormAtInference, with_norm
from methods.ops.normalisation import converted, normalise_with


def soft_shrink(difference: torch.Tensor, threshold: torch.Tensor) -> torch.Tensor:
    """Towards 0 by the threshold, and not across."""
    return difference.sign() * (difference.abs() - threshold).clamp_min(0)


class InstanceAwareNorm2d(nn.BatchNorm2d):
    """Batch normalisation whose statistics follow a sample that is far from them."""

    k: float = 4.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        positions = x.shape[2] * x.shape[3]
        if positions == 1:
            return super().forward(x)
        centred, own_mean, variance = centred_moments(x)
        expected = self.running_var + self.eps
        mean_error = (expected / positions).sqrt()
        variance_error = expected * (2 / (positions - 1)) ** 0.5
        mean = self.running_mean + soft_shrink(own_mean - self.running_mean, self.k * mean_error)
        excess = unbiased(variance, x) - self.running_var
        shift = soft_shrink(excess, self.k * variance_error)
        std = ((self.running_var + shift).clamp_min(0) + self.eps).sqrt()
        return normalise_with(centred, own_mean, mean, std, self)


@register(
    "iabn",
    label="IABN",
    paper="NOTE: Robust Continual Test-time Adaptation Against Temporal Correlation",
    venue="NeurIPS 2022",
    category="inference",
    needs_batchnorm=True,
)
class IABN(NormAtInference):
    """Prediction with global statistics that follow unusual samples."""

    iabn_k: float = hp(4.0, Choice(1.0, 2.0, 3.0, 4.0, 6.0, 8.0), "tolerated errors", low=0)

    def predictors(self, server, clients) -> dict[str, Predictor]:
        def factory(old: nn.BatchNorm2d) -> InstanceAwareNorm2d:
            new = converted(InstanceAwareNorm2d, old)
            new.k = self.iabn_k
            return new

        aware = with_norm(server.model, factory)
        return {"iabn": aware, **super().predictors(server, clients)}
