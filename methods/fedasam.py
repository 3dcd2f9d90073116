"""FedASAM: FedSAM whose neighbourhood scales with the weights, so rescaling them changes nothing.

    ε = ρ·T²g/‖Tg‖   T = |w| + η_A for every tensor called "weight", 1 for the rest (biases)

Paper: Caldarola et al., Improving Generalization in Federated Learning by Seeking Flat Minima, ECCV
2022, after Kwon et al., ASAM, ICML 2021. Leaves the client besides weights: nothing. Defaults are
the public code's for CIFAR-10, ρ = 0.7 and η_A = 0.2; no reproduced paper states others. As in the
code the scale γ of batch normalisation is a "weight" and β is not. All else is FedSAM's: see there.
"""

from __future__ import annotations

import torch
from torch.nn.utils import get_total_norm

from benchmark.hparams import Choice, hp
from benchmark.method import register
from methods.fedsam import FedSAM


@register(
    "fedasam",
    label="FedASAM",
    paper="Improving Generalization in Federated Learning by Seeking Flat Minima",
    venue="ECCV 2022",
    category="federated",
)
class FedASAM(FedSAM):
    """Sharpness-aware local steps, adaptive to the size of each weight."""

    rho: float = hp(0.7, Choice(0.1, 0.5, 0.7), "how far the weights are moved uphill", low=0)
    asam_eta: float = hp(0.2, Choice(0.0, 0.01, 0.2), "added to |w|, for weights near 0", low=0)

    @torch.no_grad()
    def uphill(self, moved: list[tuple[str, torch.nn.Parameter]]) -> list[torch.Tensor]:
        scales = [w.abs() + self.asam_eta if "weight" in name else None for name, w in moved]
        pairs = list(zip((weight.grad for _, weight in moved), scales, strict=True))
        scaled = [gradient if t is None else gradient * t for gradient, t in pairs]
        length = self.rho / (get_total_norm(scaled) + 1e-16)
        return [(g if t is None else g * t) * length for g, t in zip(scaled, scales, strict=True)]
