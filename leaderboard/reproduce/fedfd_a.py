"""FedFD-A (ECCV 2024), main paper and supplement."""

from leaderboard.reproduce.reading import Paper, Reading

ON_SILOBN = Reading("fedfd_a+silobn", predictor="adapter")
NO_CAL = {"fedfd_a": {"lambda1": 0.0, "lambda2": 0.0}}
"""The adapter alone: no diversified pass, plain cross-entropy."""
PROMPT_RATES = {"doprompt_rate": 200.0, "doprompt_head_rate": 10.0, "doprompt_decay": 1e-5}
PROMPTS = {
    "overrides": {"doprompt": PROMPT_RATES, "fedfd_prompt": PROMPT_RATES},
    "training": {"optimizer": "adamw", "lr": 5e-6, "weight_decay": 1e-2, "batch_size": 32},
}
"""The optimiser of DoPrompt's own run on PACS; the paper does not say what it used."""


def diversified(low: float, high: float, adapter: bool) -> Reading:
    """u drawn from U(low, high), or fixed where both are the same."""
    name = "fedfd_a" if adapter else "fedfd"
    return Reading(f"{name}+silobn", {name: {"u_low": low, "u_high": high}})


METHODS = {
    "FedAvg": Reading("fedavg"),
    "FedProx": Reading("fedprox"),
    "FedBN": Reading("fedbn"),
    "SiloBN": Reading("silobn"),
    "FedSAM": Reading("fedsam"),
    "SiloBN w/ GA": Reading("ga+silobn"),
    "CSAC": Reading("csac"),
    "COPA": Reading("copa"),
    "FedDG": Reading("elcfs"),
    "CCST": Reading("ccst"),
    "FedSR": Reading("fedsr"),
    "RandAug": Reading("randaug"),
    "Mixstyle": Reading("mixstyle"),
    "SFA": Reading("sfa_s"),
    "RandConv": Reading("randconv"),
    "L2D": Reading("l2d"),
    "JiGen": Reading("jigen"),
    "RSC": Reading("rsc"),
    "SelfReg": Reading("selfreg"),
    "FedFD": Reading("fedfd+silobn"),
    "FedFD-A": ON_SILOBN,
    "DoPrompt": Reading("doprompt", **PROMPTS),
    "DoPrompt w/ GA": Reading("ga+doprompt", **PROMPTS),
}

VARIANTS = {
    ("1", "FedFD-A", "base=FedAvg"): Reading("fedfd_a+fedavg"),
    ("1", "FedFD-A", "base=FedBN"): Reading("fedfd_a+fedbn"),
    ("1", "FedFD-A", "base=SiloBN"): ON_SILOBN,
    ("2", "FedFD", "u=0 (global only)"): diversified(0.0, 0.0, adapter=False),
    ("2", "FedFD", "u=1 (instance only)"): diversified(1.0, 1.0, adapter=False),
    ("2", "FedFD", "u=0.5 (global+instance fixed)"): diversified(0.5, 0.5, adapter=False),
    ("2", "FedFD", "u~U(0,1) (global+instance random)"): diversified(0.0, 1.0, adapter=False),
    ("3", "SiloBN", "(a) aug=none;loss=CE;inference=global_stats"): Reading("silobn"),
    (
        "3",
        "FedProx",
        "(a) base=SiloBN;aug=none;loss=FedProx mu=0.1;inference=global_stats",
    ): Reading("fedprox+silobn"),
    ("3", "Mixstyle", "(b) aug=Mixstyle;loss=CAL;inference=global_stats"): Reading(
        "fedfd+silobn", {"fedfd": {"fedfd_pass": "mixstyle"}}
    ),
    ("3", "FedFD", "(b) aug=FedFD;loss=CAL;inference=global_stats"): Reading("fedfd+silobn"),
    ("3", "SiloBN", "(c1) aug=none;loss=CE;inference=global_stats"): Reading("silobn"),
    (
        "3",
        "SiloBN",
        "(c1) aug=none;loss=CE;inference=instance_stats (TBN, batch 1)",
    ): Reading("tbn+silobn", predictor="tbn"),
    ("3", "SiloBN", "(c1) aug=none;loss=CE;inference=instance_feature_adapter"): Reading(
        "fedfd_a+silobn", NO_CAL, predictor="adapter"
    ),
    ("3", "FedFD", "(c2) inference=BIN"): Reading("fedfd+bin+silobn"),
    ("3", "FedFD", "(c2) inference=DSON"): Reading("fedfd+dson+silobn"),
    ("3", "FedFD", "(c2) inference=IABN"): Reading("iabn+fedfd+silobn", predictor="iabn"),
    ("3", "FedFD", "(c2) inference=MixNorm"): Reading("mixnorm+fedfd+silobn", predictor="mixnorm"),
    ("3", "FedFD", "(c2) inference=random_alpha"): Reading(
        "random_alpha+fedfd+silobn", predictor="random_alpha"
    ),
    ("3", "FedFD", "(c2) inference=fixed_alpha"): Reading(
        "fixed_alpha+fedfd+silobn", predictor="fixed_alpha"
    ),
    ("3", "FedFD-A", "(c2) inference=instance_feature_adapter"): ON_SILOBN,
    ("4", "FedFD", "inference=BIN"): Reading("fedfd+bin+silobn"),
    ("4", "FedFD", "inference=IABN"): Reading("iabn+fedfd+silobn", predictor="iabn"),
    ("4", "FedFD", "inference=MixNorm"): Reading("mixnorm+fedfd+silobn", predictor="mixnorm"),
    ("*", "FedFD-A", "base=DoPrompt;no prompt adapter"): Reading("fedfd_prompt", **PROMPTS),
    ("9", "FedFD-A", "u~U(0,1)"): diversified(0.0, 1.0, adapter=True),
    ("9", "FedFD-A", "u~U(0.0,0.5)"): diversified(0.0, 0.5, adapter=True),
    ("9", "FedFD-A", "u~U(0.5,1.0)"): diversified(0.5, 1.0, adapter=True),
    ("9", "FedFD-A", "u~U(-0.1,1.1)"): diversified(-0.1, 1.1, adapter=True),
    ("12", "FedAvg", "out-of-domain column"): Reading("fedavg"),
    ("12", "FedFD", "out-of-domain column"): Reading("fedfd+silobn"),
    ("12", "FedFD-A", "out-of-domain column"): ON_SILOBN,
    ("12", "FedAvg", ""): Reading("fedavg", part="val"),
    ("12", "FedFD", ""): Reading("fedfd+silobn", part="val"),
    ("12", "FedFD-A", ""): Reading("fedfd_a+silobn", predictor="adapter", part="val"),
    ("13", "SiloBN", "long local iterations (600 per round)"): Reading(
        "silobn", training={"local_steps": 600}
    ),
    ("13", "SiloBN", "long total rounds (120)"): Reading("silobn", training={"rounds": 120}),
}

PAPER = Paper(
    settings={
        "single_domain_3": ("fedfd", {}),
        "single_domain_5": ("fedfd", {}),
        "in_domain": ("fedfd", {}),
        "multi_domain_pairs_3": ("fedfd_pairs", {}),
        "cross_silo_30_iid": ("fedfd_cross_silo", {"partition": "single_domain_k:clients=10"}),
        "cross_silo_30_dir0.5": ("fedfd_cross_silo", {"partition": "dirichlet_label:alpha=0.5"}),
        "cross_silo_30_dir0.1": ("fedfd_cross_silo", {"partition": "dirichlet_label:alpha=0.1"}),
    },
    methods=METHODS,
    variants=VARIANTS,
    unplanned={},
    backbones={"vit_unspecified": "vit_b16"},
)
