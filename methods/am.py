"""AM: amplitude mix, style augmentation in the frequency domain between images of one batch.

    A'_i = λ_i A_i + (1 − λ_i) A_π(i),   phase unchanged,      λ_i ~ U(0, 1) per image

Paper: the amplitude-mix baseline in the code of Zhang et al., Federated Domain Generalization with
Generalization Adjustment, CVPR 2023 (`data/Fourier_Aug.py`), after the amplitude interpolation of
Liu et al., FedDG, CVPR 2021. Leaves the client besides weights: nothing, partners come from the
client's own batch; exchanging amplitudes between clients is `elcfs`. With probability p per batch,
over the whole spectrum, on the normalised images, whose place the mixed ones take; the values are
not clipped. All of this is the code's; papers that name the baseline give no details.
"""

from __future__ import annotations

import dataclasses

import torch

from benchmark.hparams import Uniform, hp
from benchmark.method import Batch, Method, register
from methods.ops.chance import happens
from methods.ops.fourier import amplitudes, mix_amplitude


@register(
    "am",
    label="AM",
    paper="Federated Domain Generalization with Generalization Adjustment",
    venue="CVPR 2023",
    category="augmentation",
)
class AmplitudeMix(Method):
    """Amplitude spectra mixed between the images of a batch."""

    am_p: float = hp(0.5, Uniform(0.1, 1), "probability for each batch", low=0, high=1)

    def augment(self, client, batch: Batch) -> Batch:
        batch = super().augment(client, batch)
        if not happens(self.am_p):
            return batch
        order = torch.randperm(len(batch)).to(batch.images.device)
        ratio = torch.rand(len(batch)).to(batch.images)
        others = amplitudes(batch.images)[order]
        return dataclasses.replace(batch, images=mix_amplitude(batch.images, others, ratio))
