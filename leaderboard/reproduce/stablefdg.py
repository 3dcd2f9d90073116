"""StableFDG (NeurIPS 2023), main paper and appendix."""

from leaderboard.reproduce.reading import Paper, Reading


def ablation(**fields) -> Reading:
    return Reading("stablefdg", {"stablefdg": fields})


BOTH = Reading("stablefdg")
ONLY_STYLE = ablation(stablefdg_attention="off")
ONLY_ATTENTION = ablation(stablefdg_p=0.0)
EXPLORATION_ONLY = {"stablefdg_styles": 0, "stablefdg_mix": False, "stablefdg_attention": "off"}
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
    backbones={"resnet50": "resnet50"},
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
    variants={
        ("*", "StableFDG", "both"): BOTH,
        ("*", "StableFDG", "only style"): ONLY_STYLE,
        ("*", "StableFDG", "only attention"): ONLY_ATTENTION,
        ("9", "StableFDG", "random style sharing"): BOTH,
        ("9", "StableFDG", "largest-distance style sharing"): ablation(stablefdg_share="largest"),
        ("10", "StableFDG", "no style sharing"): ablation(stablefdg_styles=0),
        ("10", "StableFDG", "receive 1 style"): BOTH,
        ("10", "StableFDG", "receive 3 styles"): ablation(stablefdg_styles=3),
        ("11", "StableFDG", "style shifting: random B/2"): ablation(stablefdg_select="random"),
        ("11", "StableFDG", "style shifting: k-means++ B/2"): BOTH,
        ("12", "StableFDG", "style exploration only; random oversampling"): ablation(
            stablefdg_oversample="random", **EXPLORATION_ONLY
        ),
        ("12", "StableFDG", "style exploration only; class-balanced oversampling"): ablation(
            **EXPLORATION_ONLY
        ),
        **{
            ("13", "StableFDG", f"p={p}"): ablation(stablefdg_p=p)
            for p in (0.1, 0.3, 0.5, 0.7, 0.9)
        },
        ("14", "StableFDG", "style exploration at blocks 1-3"): BOTH,
        ("14", "StableFDG", "style exploration at blocks 1-4"): ablation(stablefdg_stages=4),
        ("15", "StableFDG", "self-attention alone"): ablation(stablefdg_attention="self"),
        ("15", "StableFDG", "cross-attention alone"): ablation(stablefdg_attention="cross"),
        ("15", "StableFDG", "self + cross attention"): BOTH,
        ("16", "Baseline", "same model size; conv score map, no attention learning"): ablation(
            stablefdg_p=0.0, stablefdg_attention="conv"
        ),
        ("16", "StableFDG", "attention-based learning only"): ONLY_ATTENTION,
        ("17", "StableFDG", "without attention"): ONLY_STYLE,
        ("17", "StableFDG", "with attention"): BOTH,
    },
    unplanned={
        (
            "*",
            "DigitsDG",
            "FedBN",
        ): "the paper's digit network has no batch normalisation for FedBN to keep",
    },
)
