"""The kinds of methods, in the order in which tables show them. Needs no torch."""

CATEGORIES = (
    "federated",
    "federated DG",
    "augmentation",
    "regularisation",
    "normalisation",
    "inference",
    "centralised",
)
