"""The settings of the FedFD-A paper (ECCV 2024), its tables with three and with thirty clients.

Stated: ResNet-18 (its 11.31 M parameters are those of CSAC's network with a 256-d bottleneck),
40 rounds of 200 iterations, batch 64, SGD 0.01 with momentum 0.5, fixed; DomainBed's splits;
validation every 20 iterations with upload of the best local state; averaging by sample count; four
seeds; FedProx μ = 0.1. Not stated and filled in: weight decay 0 (CSAC's code), DomainBed's
augmentation at 224 pixels, all target images tested, AlexNet on DomainNet-10 from scratch.
"""

from benchmark.protocol import Protocol, protocols
from benchmark.spec import Training

MAIN = Training(rounds=40, local_steps=200, batch_size=64, lr=0.01, momentum=0.5, validate_every=20)
CROSS_SILO = Training(
    rounds=120, local_steps=20, clients_per_round=10, batch_size=64, lr=0.01, momentum=0.5
)
COMMON = {
    "backbone": "resnet18_b256",
    "pretrained": "imagenet",
    "transform": "domainbed",
    "image_size": 224,
    "split": "domainbed",
    "seeds": (0, 1, 2, 3),
    "overrides": {"fedprox": {"mu": 0.1}},
}

protocols.register("fedfd")(
    Protocol(
        doc="FedFD-A, main tables: one client per source domain, 40 rounds of 200 iterations",
        datasets=("PACS", "VLCS", "OfficeHome", "DomainNet10"),
        training=MAIN,
        by_dataset={"DomainNet10": {"backbone": "alexnet_bn", "pretrained": "none"}},
        **COMMON,
    )
)
protocols.register("fedfd_pairs")(
    Protocol(
        doc="FedFD-A, supplement D.2: three clients with two domains each",
        datasets=("PACS",),
        training=MAIN,
        partition="domain_pairs",
        **COMMON,
    )
)
protocols.register("fedfd_cross_silo")(
    Protocol(
        doc="FedFD-A, supplement D.1: ten clients per domain, ten of thirty sampled; label skew by "
        "--partition dirichlet_label:alpha=0.1, none by single_domain_k",
        datasets=("PACS",),
        training=CROSS_SILO,
        partition="dirichlet_label:alpha=0.5",
        **COMMON,
    )
)
