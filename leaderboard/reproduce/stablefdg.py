"""StableFDG (NeurIPS 2023), main paper and appendix."""

from leaderboard.reproduce.reading import Paper, Reading


def ablation(**fields) -> Reading:
    return Reading("stablefdg", {"stablefdg": fields})


BOTH = Reading("stablefdg")
PAPER = Paper(
    settings={
        "single_domain_30": ("stablefdg", {}),
        "multi_domain_dirichlet_30": ("stablefdg_multi", {}),
        "single_domain_3": (
            "stablefdg",
            {"partition": "single_domain", "training": {"clients_per_round": None}},
        ),
        "centralized": (
            "stablefdg",
            {"partition": "pooled", "training": {"clients_per_round": None}},
        ),
    },
    methods={
        "FedAvg": Reading("fedavg"),
        "FedBN": Reading("fedbn"),
        "MixStyle": Reading("mixstyle"),
        "DSU": Reading("dsu"),
        "CCST": Reading("ccst"),
        "FedDG": Reading("elcfs"),
        "FedSR": Reading("fedsr"),
        "StableFDG": BOTH,
    },
    variants={},
    unplanned={
        (
            "*",
            "DigitsDG",
            "FedBN",
        ): "the paper's digit network has no batch normalisation for FedBN to keep",
        ("16", "*", "Baseline"): "a network of the same size without attention is not built",
    },
)
