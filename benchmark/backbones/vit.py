"""torchvision's Vision Transformer: ViT-B/16 (`vit_b16`) and a tiny one (`vit_tiny32`).

Dosovitskiy et al., "An Image is Worth 16x16 Words", ICLR 2021. Keys and numbers are torchvision's.
A module put after a stage sees the tokens, (B, 197, 768) of ViT-B/16, the class token first. Stage
`embedding` ends after the position embedding and before the encoder's dropout, which is where
DoPrompt adds its prompts; more tokens may leave it than came. Images must have the size that the
position embedding is made for; it is not interpolated.
"""

from __future__ import annotations

import torch
from torch import nn

from benchmark.backbones.base import Backbone, register, torchvision_network


class VisionTransformer(Backbone):
    """torchvision's parts; the features are the class token after the last LayerNorm."""

    head_name = "heads.head"

    def __init__(self, network: nn.Module):
        super().__init__()
        self.class_token = network.class_token
        for name, part in network.named_children():
            self.add_module(name, part)
        self.smallest_image = self.largest_image = network.image_size
        layers = [name for name, _ in self.encoder.layers.named_children()]
        self.stages = ("embedding", *layers)

    def maps(self, images: torch.Tensor) -> torch.Tensor:
        self.check_size(*images.shape[-2:])
        patches = self.conv_proj(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), patches], dim=1)
        tokens = self.tap("embedding", tokens + self.encoder.pos_embedding)
        tokens = self.encoder.dropout(tokens)
        for stage, layer in self.encoder.layers.named_children():
            tokens = self.tap(stage, layer(tokens))
        return tokens

    def squeeze(self, maps: torch.Tensor) -> torch.Tensor:
        return self.encoder.ln(maps)[:, 0]


@register("vit_b16", batchnorm=False, tokens=True, weights="ViT_B_16_Weights.IMAGENET1K_V1")
def vit_b16(classes: int) -> Backbone:
    """torchvision's ViT-B/16 for 224×224 images: 85,798,656 parameters without the head."""
    return VisionTransformer(torchvision_network("vit_b_16", classes))


@register("vit_tiny32", batchnorm=False, tokens=True)
def vit_tiny32(classes: int) -> Backbone:
    """A tiny one for demonstrations and tests: 32×32 images, 16 patches, two layers of width 32."""
    from torchvision.models import VisionTransformer as Network

    return VisionTransformer(
        Network(
            image_size=32,
            patch_size=8,
            num_layers=2,
            num_heads=2,
            hidden_dim=32,
            mlp_dim=64,
            num_classes=classes,
        )
    )
