"""ERM on pooled sources ("DeepAll"): the centralised reference, no federation at all.

Paper: the empirical risk minimisation of Vapnik, as the reference of Gulrajani and Lopez-Paz, In
Search of Lost Domain Generalization, ICLR 2021. All source images sit in one place, so everything
leaves the client. It runs on the `pooled` partition: one client that holds the union. Where a
protocol counts local work in steps, it takes those steps once per source domain, so that it sees
as many images per round as one client per domain would; with `per_source=False` it is FedAvg with
a single client, step for step.
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
    per_source: bool = hp(True, doc="take the protocol's local steps once per source domain")

    def batches(self, client) -> Iterator[Batch]:
        training, domains = client.training, client.train.shard.domains
        present = np.unique(domains)
        groups = [np.flatnonzero(domains == d) for d in present] if self.balanced else [...]
        share = max(1, training.batch_size // len(groups))
        if training.local_steps is None:
            steps = training.local_epochs * max(1, client.size // (share * len(groups)))
        else:
            steps = training.local_steps * (len(present) if self.per_source else 1)
        everyone = np.arange(client.size)
        rng, generator = client.numpy_generator("batches"), client.torch_generator("transform")
        members = [everyone[group] for group in groups]
        orders = [batch_order(len(group), share, rng, steps, None) for group in members]
        for drawn in zip(*orders, strict=True):
            positions = [group[order] for group, order in zip(members, drawn, strict=True)]
            yield client.train.training_batch(np.concatenate(positions), generator)
