"""gPerXAN (CVPR 2024)."""

from leaderboard.reproduce.reading import Paper, Reading

PAPER = Paper(
    settings={"single_domain_3": ("gperxan", {}), "single_domain_4": ("gperxan", {})},
    methods={
        "FedAvg": Reading("fedavg"),
        "FedAvg w/ MixStyle": Reading("mixstyle"),
        "FedAvg w/ RSC": Reading("rsc"),
        "ELCFS": Reading("elcfs"),
        "CCST": Reading("ccst"),
        "COPA": Reading("copa"),
        "FedDG-GA": Reading("ga"),
        "gPerXAN": Reading("gperxan"),
    },
    variants={
        ("4", "gFedAvg", "norm=BN"): Reading("guide"),
        ("4", "gFedAvg", "norm=I-BN"): Reading("guide+ibn"),
        ("4", "gFedAvg", "norm=DSON"): Reading("guide+dson"),
    },
    unplanned={},
)
