"""The settings of the StableFDG paper (NeurIPS 2023), with one and with several domains a client.

Stated: 30 clients of which 10 are sampled, 50 rounds of five epochs, batch 32, SGD with momentum
0.9 and weight decay 5e-4, 0.001 with cosine (Digits-DG 0.02, ×0.1 every 20), ResNet-18; DomainNet
ResNet-50, 60 rounds, batch 64; three runs. Not stated and taken from the public code (a fork of
Dassl): Dassl's split lists and augmentation, unweighted averaging, the last round's model, the
published test part of VLCS, gradient clipping at 2.5 and the four-layer CNN on Digits-DG. The
schedule runs over rounds, as the paper says; in the code it restarts with every client and so has
no effect.
"""

from benchmark.protocol import Protocol, protocols
from benchmark.spec import Training

COMMON = {
    "backbone": "resnet18",
    "pretrained": "imagenet",
    "transform": "dassl",
    "image_size": 224,
    "split": "official",
    "selection": "last",
    "seeds": (0, 1, 2),
    "training": Training(
        rounds=50,
        local_epochs=5,
        clients_per_round=10,
        batch_size=32,
        lr=0.001,
        momentum=0.9,
        weight_decay=5e-4,
        schedule="cosine",
        weights="uniform",
    ),
}
BY_DATASET = {
    "VLCS": {"test_part": "listed"},
    "DigitsDG": {
        "backbone": "cnn_digitsdg",
        "pretrained": "none",
        "transform": "digits",
        "image_size": 32,
        "training": {"lr": 0.02, "schedule": "step", "step_rounds": 20, "clip": 2.5},
    },
    "DomainNet": {
        "backbone": "resnet50",
        "partition": "single_domain_k:clients=6",
        "training": {"rounds": 60, "batch_size": 64},
    },
}

protocols.register("stablefdg")(
    Protocol(
        doc="StableFDG, single-domain: 30 clients with one domain each, ten sampled per round",
        datasets=("PACS", "VLCS", "DigitsDG", "OfficeHome", "DomainNet"),
        partition="single_domain_k:clients=10",
        by_dataset=BY_DATASET,
        **COMMON,
    )
)
protocols.register("stablefdg_multi")(
    Protocol(
        doc="StableFDG, multi-domain: each domain spread over 30 clients by Dirichlet(0.5)",
        datasets=("PACS", "VLCS", "OfficeHome"),
        partition="dirichlet_domain:alpha=0.5",
        by_dataset={
            "VLCS": BY_DATASET["VLCS"],
            "DomainNet": {**BY_DATASET["DomainNet"], "partition": "dirichlet_domain:alpha=0.5"},
        },
        **COMMON,
    )
)
