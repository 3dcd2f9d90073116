"""FedProx: a proximal term keeps each client near the global model it received.

    L(w) = CE + μ/2 · Σ ‖w − x‖²      x = the received parameters, constant; buffers take no part

Paper: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020. Leaves the client
besides weights: nothing. Default μ = 0.1 (FedFD-A's; FedDG-GA's code has it too; the original's is
0 with a grid up to 1). Differences: public ports take unsquared norms (FedDG_Benchmark, FedBN's
code, which also skips the first step); this is the paper's squared form. The paper's partial work
of stragglers is not used by any of the reproduced papers.
"""

from __future__ import annotations

import torch

from benchmark.hparams import LogUniform, hp
from benchmark.method import Batch, Method, register


@register(
    "fedprox",
    label="FedProx",
    paper="Federated Optimization in Heterogeneous Networks",
    venue="MLSys 2020",
    category="federated",
)
class FedProx(Method):
    """Cross-entropy plus the squared distance to the received model."""

    mu: float = hp(0.1, LogUniform(1e-3, 1), "strength of the pull to the global model", low=0)

    def receive(self, server, client) -> None:
        super().receive(server, client)
        client.scratch["anchor"] = [p.detach().clone() for p in client.model.parameters()]

    def loss(self, client, batch: Batch) -> torch.Tensor:
        loss = super().loss(client, batch)
        if self.mu == 0:
            return loss
        pairs = zip(client.model.parameters(), client.scratch["anchor"], strict=True)
        return loss + self.mu / 2 * sum((w - x).square().sum() for w, x in pairs)
