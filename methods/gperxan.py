"""gPerXAN: sums of instance and batch normalisation whose batch side stays with the client, and
features that the global classifier can use.

    XAN(x) = w_in IN(x) + w_bn BN(x)      each with its own γ, β; (w_in, w_bn) = softmax of logits
    L = CE(h(g(x)), y) + λ CE(h_G(g(x)), y)      see `guide`, which this extends

Outputs are mixed, not statistics as in DSON, so the sides come apart: instance sides and the rest
are federated, batch sides (γ, β and statistics) are personal. The global model that is tested is
the average of everything that the round's clients have, batch sides included; a client that is not
sampled keeps its own until it is.

Paper: Le et al., Efficiently Assemble Normalization Layers and Regularization for Federated Domain
Generalization, CVPR 2024; code lhkhiem28/gPerXAN (PACS only; the checkpoint it starts from is not
published). Leaves the client besides weights: nothing. Without guidance (guide_lambda=0) it is the
paper's PerXAN; `guide+fedavg` is its gFedAvg.

Layers (`xan_stages`): all, the paper's "first four blocks" of ResNet-50 for PACS (53 layers, the
stem's among them as in the code); `stem/layer1/layer2`, its "first two blocks" for Office-Home;
`denseblock1/transition1` of DenseNet-121 for Camelyon17. Where paper and code differ:
- w are "randomly initialised" in the paper; in the code, and here, two logits that start at 1.
- The code's filter of names makes the logit of w_bn personal and that of w_in not
  (`xan_personal_logit=False` federates both, one reading of the paper).
- The paper's Algorithm 1 keeps every batch normalisation, also in the layers that are not replaced;
  the code's filter would federate those (`xan_keep_plain=False`).
- Batch sides start from the network's layers, instance sides from γ = 1, β = 0, as neither says
  otherwise (`xan_copy_affine=True`: from the batch sides').
- The code averages the counters of batch normalisation into fractions; here they are copied. Its
  best round is that of the clients' models before averaging; here the protocol decides.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from benchmark.backbones.base import Backbone
from benchmark.errors import UserError, unknown
from benchmark.hparams import hp
from benchmark.method import register
from benchmark.state import batchnorm_keys
from methods.guide import Guide
from methods.ops.centred import instance_norm
from methods.ops.normalisation import TrainedMix, converted, replace_untrained


class BatchSide2d(TrainedMix):
    """Batch normalisation as one side of a learnt sum."""


class XAN2d(nn.Module):
    """The sum of instance and batch normalisation with learnt weights that sum to one."""

    def __init__(self, old: nn.BatchNorm2d, copy_affine: bool = False):
        super().__init__()
        self.batch = converted(BatchSide2d, old)
        weight, bias = old.weight.detach(), old.bias.detach()
        fresh = torch.ones_like(weight), torch.zeros_like(bias)
        own = (weight.clone(), bias.clone()) if copy_affine else fresh
        self.instance_weight, self.instance_bias = map(nn.Parameter, own)
        self.instance_logit = nn.Parameter(torch.ones(1, device=weight.device))
        self.batch_logit = nn.Parameter(torch.ones(1, device=weight.device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        instance = instance_norm(x, self.instance_weight, self.instance_bias, self.batch.eps)
        share = torch.sigmoid(self.batch_logit - self.instance_logit)  # softmax of the two
        return torch.lerp(instance, self.batch(x).to(instance), share)


def stage_of(model: Backbone, path: str) -> str:
    """The stage that a layer belongs to; a ResNet's stem is no module of its own."""
    first = path.partition(".")[0]
    return first if first in model.stages else "stem"


@register(
    "gperxan",
    label="gPerXAN",
    paper="Efficiently Assemble Normalization Layers and Regularization for Federated Domain "
    "Generalization",
    venue="CVPR 2024",
    category="federated DG",
    needs_batchnorm=True,
)
class GPerXAN(Guide):
    """Instance sides for all, batch sides for each client, one classifier as a guide."""

    xan_stages: str = hp("all", doc="where batch normalisation is replaced: all, or stage/stage/…")
    xan_personal_logit: bool = hp(True, doc="the batch side's logit stays with the client (code)")
    xan_keep_plain: bool = hp(True, doc="other batch normalisation stays with it too (paper)")
    xan_copy_affine: bool = hp(False, doc="instance sides start from γ, β of the batch sides")

    def build(self, make: Callable[[], Backbone]) -> Backbone:
        model = super().build(make)
        chosen = model.stages if self.xan_stages == "all" else tuple(self.xan_stages.split("/"))
        for stage in chosen:
            if stage not in model.stages:
                raise unknown(f"stage of {type(model).__name__}", stage, model.stages)
        paths = replace_untrained(
            model,
            lambda old: XAN2d(old, self.xan_copy_affine),
            lambda path, old: stage_of(model, path) in chosen,
        )
        if not paths:
            raise UserError(f"gperxan.xan_stages={self.xan_stages} has no batch normalisation")
        return model

    def keeps(self, model) -> set[str]:
        layers = {path: m for path, m in model.named_modules() if isinstance(m, XAN2d)}
        kept = super().keeps(model)
        if self.xan_personal_logit:
            kept |= {f"{path}.batch_logit" for path in layers}
        if self.xan_keep_plain:
            return kept | batchnorm_keys(model).all
        return kept.union(
            f"{path}.batch.{key}"
            for path, layer in layers.items()
            for key in layer.batch.state_dict()
        )
