"""The setting of the gPerXAN paper (CVPR 2024).

Stated: ResNet-50 at 224 pixels, DenseNet-121 at 96 for Camelyon17, 100 rounds of one epoch, SGD
0.002, flip and colour jitter, 90/10 splits (80/20 Camelyon17), the whole target tested, three
runs; normalisation replaced everywhere (PACS), in the first two stages (Office-Home) or in the
first dense block and transition (Camelyon17). Not stated and taken from the public code: batch 32,
momentum 0.9 carried over rounds, weight decay 5e-4, cosine over rounds, strength of the jitter.
"""

from benchmark.protocol import Protocol, protocols
from benchmark.spec import Training

protocols.register("gperxan")(
    Protocol(
        doc="gPerXAN: one client per source domain, 100 rounds of one epoch, ResNet-50",
        datasets=("PACS", "OfficeHome", "Camelyon17"),
        backbone="resnet50",
        pretrained="imagenet",
        transform="gperxan",
        image_size=224,
        split="random:fraction=0.1",
        seeds=(0, 1, 2),
        training=Training(
            rounds=100,
            local_epochs=1,
            batch_size=32,
            lr=0.002,
            momentum=0.9,
            weight_decay=5e-4,
            schedule="cosine",
            keep_optimizer=True,
        ),
        by_dataset={
            "OfficeHome": {"overrides": {"gperxan": {"xan_stages": "stem/layer1/layer2"}}},
            "Camelyon17": {
                "overrides": {"gperxan": {"xan_stages": "denseblock1/transition1"}},
                "backbone": "densenet121",
                "image_size": 96,
                "split": "random:fraction=0.2",
            },
        },
    )
)
