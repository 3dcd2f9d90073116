"""SiloBN: each client keeps its own batch-normalisation statistics; γ and β are shared.

Paper: Andreux et al., Siloed Federated Learning for Multi-Centric Histopathology Datasets, DART
(MICCAI workshop) 2020; no official code. Leaves the client besides weights: nothing new, but the
running statistics that the original keeps private are uploaded here, as in the FedFD-A paper, so
that a global model with averaged statistics can be tested on an unseen domain. The original's
privacy argument does not hold for that model. A client that is not sampled keeps its statistics;
the average is of the round's clients.

Training normalises with batch statistics, so without client checkpoint selection the parameters
follow FedAvg's bit for bit; only the running statistics differ, and little after many local steps.
The FedFD-A paper prints a difference of 3.4 points on PACS that this definition does not explain.
"""

from benchmark.method import Method, register
from benchmark.state import batchnorm_keys


@register(
    "silobn",
    label="SiloBN",
    paper="Siloed Federated Learning for Multi-Centric Histopathology Datasets",
    venue="MICCAI DART 2020",
    category="federated",
    needs_batchnorm=True,
)
class SiloBN(Method):
    """Running statistics stay with the client, everything else is shared."""

    def keeps(self, model) -> set[str]:
        keys = batchnorm_keys(model)
        return super().keeps(model) | keys.statistics | keys.counters
