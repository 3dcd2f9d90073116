"""FedADG. Its centralised lines are the methods run on pooled sources."""

from leaderboard.reproduce.reading import Paper, Reading

REFERENCES = {
    "reference=N(0,I)": "gaussian",
    "reference=U[-1,1]": "uniform",
    "reference=Laplace(1/sqrt2)": "laplace",
    "reference=adaptive (learned)": "learned",
}

EPI_FCR = {"epi_fcr": {"epi_sum": True, "epi_freeze_batchnorm": True}}
"""As in its public code: summed losses, batch normalisation of pretrained networks frozen."""

PAPER = Paper(
    settings={
        "single_domain_3": ("fedadg", {}),
        "centralized": ("fedadg", {"partition": "pooled"}),
        "in_domain": ("fedadg", {}),
    },
    methods={
        "FedAvg": Reading("fedavg"),
        "FedADG": Reading("fedadg"),
        "FedDG": Reading("elcfs"),
        "DANN": Reading("dann"),
        "Epi-FCR": Reading("epi_fcr", EPI_FCR),
        "MTSSL": Reading("mtssl"),
        "EISNet": Reading("eisnet"),
        "L2A-OT": Reading("l2a_ot"),
        "JiGen": Reading("jigen"),
        "RSC": Reading("rsc"),
        "DSON": Reading("dson"),
        "Mixstyle": Reading("mixstyle"),
    },
    variants={
        ("7", "FedAvg", ""): Reading("fedavg", part="val"),
        ("7", "FedADG", ""): Reading("fedadg", part="val"),
        **{
            ("8", "FedADG", printed): Reading("fedadg", {"fedadg": {"adg_reference": ours}})
            for printed, ours in REFERENCES.items()
        },
    },
    unplanned={},
    backbones={"alexnet": "alexnet", "resnet18": "resnet18", "resnet50": "resnet50"},
)
