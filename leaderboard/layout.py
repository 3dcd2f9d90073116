"""How the four papers lay their tables out: titles, paradigms, and who shares more than weights.

Facts of the printed pages that `published/` does not hold, each from the paper it is about.
"""

from __future__ import annotations

import functools

from leaderboard.published import costs

PAPERS = {
    "fedfd_a": "FedFD-A (ECCV 2024)",
    "gperxan": "gPerXAN (CVPR 2024)",
    "stablefdg": "StableFDG (NeurIPS 2023)",
    "fedadg": "FedADG (arXiv 2021)",
}

TITLES = {
    "fedfd_a/1": "FedFD-A on three baselines",
    "fedfd_a/2": "ways of mixing global and instance statistics",
    "fedfd_a/3": "ablation of the components",
    "fedfd_a/4": "computational cost and accuracy",
    "fedfd_a/5": "comparison on PACS, VLCS and OfficeHome",
    "fedfd_a/6a": "transformers with prompts",
    "fedfd_a/6b": "transformers with prompts",
    "fedfd_a/7": "comparison on VLCS and OfficeHome",
    "fedfd_a/8": "comparison on DomainNet",
    "fedfd_a/9": "range of the mixing coefficient",
    "fedfd_a/10a": "cross-silo, labels alike",
    "fedfd_a/10b": "cross-silo, labels skewed with α = 0.5",
    "fedfd_a/10c": "cross-silo, labels skewed with α = 0.1",
    "fedfd_a/11": "clients with several domains",
    "fedfd_a/12": "in-domain and out-of-domain accuracy",
    "fedfd_a/13": "SiloBN with the training time of FedFD-A",
    "gperxan/1": "advantages of methods",
    "gperxan/2": "comparison on PACS and OfficeHome",
    "gperxan/3": "comparison on Camelyon17",
    "gperxan/4": "normalisation schemes",
    "stablefdg/1a": "clients with a single domain",
    "stablefdg/1b": "clients with a single domain",
    "stablefdg/2a": "clients with several domains",
    "stablefdg/2b": "clients with several domains",
    "stablefdg/3": "effect of each component",
    "stablefdg/4a": "centralised training",
    "stablefdg/4b": "ResNet-50",
    "stablefdg/5": "DomainNet, clients with a single domain",
    "stablefdg/6": "computation and communication",
    "stablefdg/7a": "three clients with a single domain each",
    "stablefdg/7b": "three clients with a single domain each",
    "stablefdg/8": "effect of each component",
    "stablefdg/9": "which styles are shared",
    "stablefdg/10": "number of shared styles",
    "stablefdg/11": "k-means++ in style shifting",
    "stablefdg/12": "class-balanced oversampling",
    "stablefdg/13": "probability of the style modules",
    "stablefdg/14": "depth of style exploration",
    "stablefdg/15": "similarity metrics of the attention",
    "stablefdg/16": "attention against a model of the same size",
    "stablefdg/17": "attention in centralised training",
    "fedadg/1": "comparison of solutions",
    "fedadg/4": "comparison on VLCS",
    "fedadg/5": "comparison on PACS",
    "fedadg/6": "comparison on OfficeHome",
    "fedadg/7": "in-domain accuracy",
    "fedadg/8": "reference distributions",
}

FEDFD_A = {
    "Decentralized w/o DG": ("FedAvg", "FedProx", "FedBN", "SiloBN"),
    "Decentralized w/ DG": (
        *("RandAug", "Mixstyle", "SFA", "RandConv", "L2D", "JiGen", "RSC", "SelfReg"),
    ),
    "Decentralized w/ federated DG": (
        *("COPA", "FedDG", "CCST", "CSAC", "FedSR", "FedSAM", "SiloBN w/ GA", "FedFD", "FedFD-A"),
    ),
}
STABLEFDG = {
    "FL": ("FedAvg", "FedBN"),
    "DG at each client": ("MixStyle", "DSU"),
    "federated DG": ("CCST", "FedDG", "FedSR", "StableFDG"),
}
"""The groups of its section 4.1; its tables print them in this order without naming them."""
ABLATION = {
    "(a)": "(a) Baselines",
    "(b)": "(b) Effectiveness of FedFD",
    "(c1)": "(c1) Effectiveness of the instance feature adapter",
    "(c2)": "(c2) Comparison with other inference methods",
}
BY_NAME = {
    **dict.fromkeys(("fedfd_a/5", "fedfd_a/7"), FEDFD_A),
    **dict.fromkeys(
        ("stablefdg/1a", "stablefdg/1b", "stablefdg/2a", "stablefdg/2b", "stablefdg/5"), STABLEFDG
    ),
}


def paradigm(table: str, setting: str, method: str, variant: str) -> str:
    """The group a line stands in; empty where a table has none."""
    if table in BY_NAME:
        groups = BY_NAME[table]
        return next((group for group, names in groups.items() if method in names), "")
    if table == "fedfd_a/3":
        return ABLATION[variant.split()[0]]
    if table in ("fedadg/4", "fedadg/5", "fedadg/6", "fedadg/7"):
        return "Centralized w/o privacy concern" if setting == "centralized" else "Distributed"
    if table == "fedadg/8":
        return "adaptively generated" if "adaptive" in variant else "fixed reference"
    return ""


def ranks_by_paradigm(table: str) -> bool:
    """FedADG's comparisons mark the best of each paradigm; others mark the best of the table."""
    return table in ("fedadg/4", "fedadg/5", "fedadg/6")


OUT_OF_DOMAIN = "out-of-domain column"
"""The variant that is a column of FedFD-A's Table 12, not a line."""


def label(table: str, method: str, variant: str) -> str:
    """The name of a line."""
    if table == "fedfd_a/3":
        variant = variant.partition(" ")[2]
    variant = "" if variant == OUT_OF_DOMAIN else variant.replace(";", "; ").replace("  ", " ")
    return f"{method} ({variant})" if variant else method


SHARING = {
    "fedfd_a": {"COPA", "FedDG", "CCST"},
    "stablefdg": {"CCST", "FedDG", "StableFDG"},
}
"""FedFD-A: printed grey in its Table 5, named in section 4.3. StableFDG prints no mark; by its own
account amplitude spectra (FedDG) and style statistics (CCST, StableFDG) leave the clients."""
MARKS = {
    "gperxan": ("privacy_risk", "yes"),
    "fedadg": ("strong_privacy_protection", "no"),
}
"""The column of a paper's own Table 1 that says it."""


@functools.cache
def sharing(paper: str) -> frozenset[str]:
    """Printed names of methods that share more than weights, in the eyes of a paper."""
    if paper in SHARING:
        return frozenset(SHARING[paper])
    metric, value = MARKS[paper]
    frame = costs()
    rows = frame[(frame["paper"] == paper) & (frame["metric"] == metric)]
    return frozenset(rows.loc[rows["value"] == value, "method"])


def shares(paper: str, setting: str, method: str) -> bool:
    """Whether a line is grey. FedADG's centralised lines pool the data itself."""
    return method in sharing(paper) or (paper == "fedadg" and setting == "centralized")
