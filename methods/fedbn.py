"""FedBN: each client keeps its own batch-normalisation layers.

Paper: Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR
2021. Leaves the client besides weights: nothing. Kept are affine parameters and running statistics
of every batch-normalisation layer, found by module type: the original's test for "bn" in the name
misses the shortcut layers of a ResNet.

The original tests known clients with their own layers. An unseen domain has none, so, as in the
FedFD-A and gPerXAN papers, the server averages the uploaded layers of the round's clients into the
global model that is tested; the clients do not load that average back. A client that is not
sampled keeps its layers until it is.
"""

from benchmark.method import Method, register
from benchmark.state import batchnorm_keys


@register(
    "fedbn",
    label="FedBN",
    paper="FedBN: Federated Learning on Non-IID Features via Local Batch Normalization",
    venue="ICLR 2021",
    category="federated",
    needs_batchnorm=True,
)
class FedBN(Method):
    """Batch normalisation, parameters and statistics, stays with the client."""

    def keeps(self, model) -> set[str]:
        return super().keeps(model) | batchnorm_keys(model).all
