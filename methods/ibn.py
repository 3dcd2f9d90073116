"""IBN-a: in early blocks, half of the channels are instance-normalised, the others as before.

    y = [IN(x₁ … x_c), BN(x_c+1 … x_C)]      c = ratio · C

Paper: Pan et al., Two at Once: Enhancing Learning and Generalization Capacities via IBN-Net, ECCV
2018. Leaves the client besides weights: nothing; a layer has as many parameters as before.

As in the public code (XingangPan/IBN-Net): on ResNets the first normalisation of every block of
layer1 to layer3, ratio 0.5, never the stem, the shortcuts or layer4; on DenseNets the first of
every third dense layer of blocks 1 to 3, ratio 0.4, where the code has the batch-normalised
channels first. The paper has no other networks; here they get it in their first three stages.
Parameters and statistics of a pretrained network are taken over channel by channel. The gPerXAN
paper ("I-BN", 84.32 on PACS with its regulariser) does not say whether it uses IBN-a or IBN-b,
which adds instance normalisation after residual sums; this is IBN-a. Instance-normalised channels
are always shared; the others follow the base, e.g. `ibn+fedbn`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import nn

from benchmark.backbones.base import Backbone
from benchmark.hparams import Choice, hp
from benchmark.method import Method, register
from methods.ops.centred import instance_norm
from methods.ops.normalisation import replace_untrained
from methods.ops.stages import early_stages

DENSE_LAYER = re.compile(r"denseblock[123]\.denselayer(\d+)\.norm1")


class AffineInstanceNorm2d(nn.Module):
    """Instance normalisation with γ and β of its own."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor, eps: float):
        super().__init__()
        self.eps = eps
        self.weight, self.bias = (nn.Parameter(p.detach().clone()) for p in (weight, bias))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return instance_norm(x, self.weight, self.bias, self.eps)


class _Whole(torch.autograd.Function):
    """The identity, whose gradient comes in one piece; kernels are far slower on a slice of one."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, layout: torch.memory_format) -> torch.Tensor:
        ctx.layout = layout
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient.contiguous(memory_format=ctx.layout), None


class IBN2d(nn.Module):
    """Some channels through instance, the others through batch normalisation."""

    def __init__(self, old: nn.BatchNorm2d, channels: int, instance_first: bool = True):
        """`channels` of the old layer, its first or its last, are instance-normalised."""
        super().__init__()
        rest = old.num_features - channels
        self.instance_first = instance_first
        self.sizes = (channels, rest) if instance_first else (rest, channels)
        own = slice(channels) if instance_first else slice(rest, None)
        other = slice(channels, None) if instance_first else slice(rest)
        self.instance = AffineInstanceNorm2d(old.weight[own], old.bias[own], old.eps)
        self.batch = nn.BatchNorm2d(rest, old.eps, old.momentum)
        state = old.state_dict().items()
        self.batch.load_state_dict({k: v[other] if v.ndim else v for k, v in state})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        last = x.is_contiguous(memory_format=torch.channels_last)
        layout = torch.channels_last if last else torch.contiguous_format
        sides = (self.instance, self.batch) if self.instance_first else (self.batch, self.instance)
        parts = zip(sides, x.split(self.sizes, 1), strict=True)
        done = [side(part.contiguous(memory_format=layout)) for side, part in parts]
        return torch.cat([_Whole.apply(part, layout) for part in done], 1)


def early_norms(model: Backbone) -> set[str]:
    """Paths of the layers that IBN-a replaces."""
    norms = [path for path, part in model.named_modules() if isinstance(part, nn.BatchNorm2d)]
    if is_dense(model):
        matches = map(DENSE_LAYER.fullmatch, norms)
        return {found[0] for found in matches if found and int(found[1]) % 3 == 1}
    stages = tuple(f"{stage}." for stage in early_stages(model, 3))
    early = {path for path in norms if path.startswith(stages)}
    blocks = {path for path in early if path.endswith(".bn1")}
    return blocks or early


def is_dense(model: Backbone) -> bool:
    return "denseblock1" in model.stages


@register(
    "ibn",
    label="I-BN",
    paper="Two at Once: Enhancing Learning and Generalization Capacities via IBN-Net",
    venue="ECCV 2018",
    category="normalisation",
    needs_batchnorm=True,
)
class IBN(Method):
    """Half of the channels of early blocks forget the style of the sample."""

    ibn_ratio: float | None = hp(
        None,
        Choice(0.25, 0.5, 0.75),
        "share of instance-normalised channels; none: 0.5, on DenseNets 0.4",
        low=0,
        high=0.95,
    )

    def build(self, make: Callable[[], Backbone]) -> Backbone:
        model = super().build(make)
        dense, places = is_dense(model), early_norms(model)
        ratio = self.ibn_ratio if self.ibn_ratio is not None else 0.4 if dense else 0.5

        def factory(old: nn.BatchNorm2d) -> nn.Module:
            # The public code rounds the first part down, whichever it is.
            total = old.num_features
            channels = total - int(total * (1 - ratio)) if dense else int(total * ratio)
            return IBN2d(old, channels, not dense) if channels else old

        replace_untrained(model, factory, lambda path, old: path in places)
        return model
