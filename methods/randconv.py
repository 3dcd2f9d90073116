"""RandConv: images seen through random convolutions, and predictions that must not mind.

    L = CE(view 0) + λ · ⅓ Σⱼ KL(pⱼ ‖ p̄),    p̄ = mean of the predictions on three random views

Paper: Xu et al., Robust and Generalizable Visual Representation Learning via Random Convolutions,
ICLR 2021; code wildphoton/RandConv. Leaves the client besides weights: nothing. A view is the image
convolved with a random 3 → 3 kernel, weights N(0, 1 / (3k²)), k of {1, 3, 5, 7}, one kernel for the
batch: RC_img keeps the image instead with probability p, RC_mix adds α · convolved + (1 − α) ·
image with α ~ U(0, 1). Views are made from normalised images; the gradient flows through all three.

Differences. The code convolves view 0 again to make views 1 and 2, unless a flag is set; here every
view is a fresh convolution of the image, as in the paper. Each view passes the network on its own
and updates batch-normalisation statistics, as in the code. Its digits script has λ = 5 for RC_img
and 10 for RC_mix; default here is RC_img, p = 0.5, λ = 10, which is said to be the setting for PACS
(its scripts were never released). The code may also select models on convolved validation images;
ours always validates on plain ones. With p = 1 and λ = 0 this is FedAvg.
"""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F

from benchmark.errors import UserError
from benchmark.hparams import Choice, LogUniform, Uniform, hp
from benchmark.method import Batch, Method, register
from methods.ops.capture import captured
from methods.ops.chance import happens


def random_convolution(images: torch.Tensor, largest: int) -> torch.Tensor:
    """The images through one random kernel of an odd size up to `largest`."""
    size = 2 * int(torch.randint((largest + 1) // 2, ())) + 1
    kernel = torch.randn(3, 3, size, size, device=images.device) / (3 * size**2) ** 0.5
    return F.conv2d(images, kernel, padding=size // 2)


def consistency(logits: list[torch.Tensor]) -> torch.Tensor:
    """Mean divergence of the predictions from their average, a number from 0 to log(views)."""
    log_predictions = torch.stack([F.log_softmax(view, 1) for view in logits])
    predictions = log_predictions.exp()
    average = predictions.mean(0).clamp(1e-7, 1).log()
    return (predictions * (log_predictions - average)).sum(2).mean()


@register(
    "randconv",
    label="RandConv",
    paper="Robust and Generalizable Visual Representation Learning via Random Convolutions",
    venue="ICLR 2021",
    category="augmentation",
)
class RandConv(Method):
    """Random convolutions of the images with a consistency loss over three of them."""

    randconv_kind: str = hp("img", Choice("img", "mix"), "image or convolution; or their mixture")
    randconv_p: float = hp(0.5, Uniform(0, 0.9), "probability of the image itself", low=0, high=1)
    randconv_weight: float = hp(10.0, LogUniform(0.1, 20), "of the consistency loss λ", low=0)
    randconv_largest: int = hp(7, Choice(1, 3, 5, 7), "largest kernel; sizes are 1, 3, …", low=1)
    randconv_clamp: bool = hp(False, doc="cut views off at the range of real images")

    def augment(self, client, batch: Batch) -> Batch:
        batch = super().augment(client, batch)
        count = 3 if self.randconv_weight > 0 else 1
        first, *others = (self._view(client, batch.images) for _ in range(count))
        extras = {**batch.extras, "randconv": others}
        return dataclasses.replace(batch, images=first, extras=extras)

    def _view(self, client, images: torch.Tensor) -> torch.Tensor:
        if self.randconv_kind == "img" and happens(self.randconv_p):
            return images
        view = random_convolution(images, self.randconv_largest)
        if self.randconv_kind == "mix":
            view = torch.lerp(images, view, torch.rand(()).item())
        if self.randconv_clamp:
            ends = torch.tensor((0.0, 1.0), device=images.device).view(2, 1, 1, 1)
            low, high = client.train.transform.from_pixels(ends)
            view = view.clamp(low, high)
        return view

    def loss(self, client, batch: Batch) -> torch.Tensor:
        others = batch.extras.get("randconv")
        if not others:
            return super().loss(client, batch)
        with captured(client.model.classifier) as logits:
            loss = super().loss(client, batch)
        if len(logits[0]) != len(others[0]):
            raise UserError("randconv cannot be combined with a method that enlarges the batch")
        views = [logits[0], *(client.model(view) for view in others)]
        return loss + self.randconv_weight * consistency(views)
