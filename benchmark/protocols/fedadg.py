"""The setting of the FedADG paper.

Stated: one client per source domain, E0 = 3 epochs of classification and E1 = 7 of alignment per
round, batch 16, learning rates 0.01 (VLCS), 0.001 (PACS), 0.05 (Office-Home) with generator and
discriminator at 0.7 of it (Office-Home: 0.007 and 0.001), random 70/30 splits,
JiGen's augmentation, equal weights, the model with the best source accuracy, five runs. Not stated
and taken from the public code: 30 rounds (20 on VLCS), momentum 0.9, weight decay 1e-5. Other
methods train for the same ten epochs per round. The tables have AlexNet, ResNet-18 and ResNet-50:
choose with --backbone.
"""

from benchmark.protocol import Protocol, protocols
from benchmark.spec import Training

protocols.register("fedadg")(
    Protocol(
        doc="FedADG: one client per source domain, ten local epochs per round, ResNet-18",
        datasets=("VLCS", "PACS", "OfficeHome"),
        backbone="resnet18",
        pretrained="imagenet",
        transform="jigen",
        image_size=224,
        split="random:fraction=0.3",
        seeds=(0, 1, 2, 3, 4),
        training=Training(
            rounds=30,
            local_epochs=10,
            batch_size=16,
            lr=0.001,
            momentum=0.9,
            weight_decay=1e-5,
            weights="uniform",
        ),
        by_dataset={
            "VLCS": {"training": {"lr": 0.01, "rounds": 20}},
            "OfficeHome": {
                "training": {"lr": 0.05},
                "overrides": {"fedadg": {"adg_g_rate": 0.14, "adg_d_rate": 0.02}},
            },
        },
    )
)
