"""ERM on pooled sources ("DeepAll"): the centralised reference, no federation at all.

Paper: the empirical risk minimisation of Vapnik, as the reference of Gulrajani and Lopez-Paz, In
Search of Lost Domain Generalization, ICLR 2021. All source images sit in one place, so everything
leaves the client. It runs on the `pooled` partition with the protocol's local work per round: one
client that holds the union, which is FedAvg with a single client, step for step.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmark.hparams import hp
from benchmark.method import Batch, Method, register
from datasets.samples import batch_order


@register(
    "erm_pool",
    label="ERM (pooled)",
    paper="In Search of Lost Domain Generalization",
    venue="ICLR 2021",
    category="centralised",
    shares=("images",),
    centralised=True,
)
class ErmPool(Method):
    """Plain training on the union of the sources."""

    balanced: bool = hp(False, doc="the same number of images of each source in every batch")

    def batches(self, client) -> Iterator[Batch]:
        if not self.balanced:
            yield from super().batches(client)
            return
        training, rng = client.training, client.numpy_generator("batches")
        domains = client.train.shard.domains
        groups = [np.flatnonzero(domains == domain) for domain in np.unique(domains)]
        per_domain = max(1, training.batch_size // len(groups))
        steps = training.local_steps
        if steps is None:
            steps = training.local_epochs * max(1, client.size // (per_domain * len(groups)))
        orders = [batch_order(len(group), per_domain, rng, steps, None) for group in groups]
        generator = client.torch_generator("transform")
        for drawn in zip(*orders, strict=True):
            positions = np.concatenate([g[d] for g, d in zip(groups, drawn, strict=True)])
            yield client.train.training_batch(positions, generator)
