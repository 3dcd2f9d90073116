"""FedAvg: clients train locally, the server averages their weights by sample count.

Paper: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data,
AISTATS 2017. Leaves the client besides weights: its sample count. All of it is the default of
`Method`; float buffers (batch-normalisation statistics) are averaged like parameters, with the
weights normalised over the clients of the round.
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
