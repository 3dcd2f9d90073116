"""FedAvg: clients train locally, the server averages their weights by sample count.

Paper: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
AISTATS 2017. Leaves the client besides weights: its sample count. All of it is the default of
`Method`; float buffers (batch-normalisation statistics) are averaged like parameters, with the
weights normalised over the clients of the round. Differences: many public federated DG codes
average uniformly (`training.weights=uniform`); the default is the paper's, by sample count. The
paper's clients start every round without memory of the last one, and so do these; codes that carry
the optimiser's momentum over have `training.keep_optimizer`.
"""

from benchmark.method import Method, register


@register(
    "fedavg",
    label="FedAvg",
    paper="Communication-Efficient Learning of Deep Networks from Decentralized Data",
    venue="AISTATS 2017",
    category="federated",
)
class FedAvg(Method):
    """The average of the clients' models."""
