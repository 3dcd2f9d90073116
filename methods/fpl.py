"""FPL: features are drawn to prototypes of their class that clients of all domains share.

    L = CE + a·ℓ + b·MSE(z, u_y)        ℓ = −log Σ_{p of class y} e^{s(z,p)/T} / Σ_p e^{s(z,p)/T}

z: a sample's features; p: cluster prototypes, the means of FINCH clusters of the clients' class
means, per class (`methods.ops.finch`); u_y: the unbiased prototype, the mean of class y's cluster
prototypes; s = cosine. Prototypes are constants. Samples of a class without one count 0.

Paper: Huang, Ye, Shi, Li and Du, Rethinking Federated Learning with Domain Shift: A Prototype View,
CVPR 2023. Leaves the client besides weights: the mean features of each class it holds; the cluster
prototypes come back the next round.

From the code (WenkeHuang/RethinkFL; of the paper only the abstract was at hand): T = 0.02,
a = b = 1, the mean over dimensions in the MSE, no term in round 0, and class means of the features
as they pass by in the last epoch of local training, so under a model that still moves; no extra
pass. With client checkpoint selection they are still those. The last epoch is here the last
⌊n/batch⌋ steps. With up to three clients a class always has one cluster, the mean over clients:
clusters differ from means only with four or more clients in a round.

Partial participation, as in the code: prototypes are of the last round's clients only, and a class
that none of them held has none; a client that is not sampled is not asked. Differences: a batch
none of whose classes has a prototype, and prototypes of one class only, fail in the code; here the
terms are 0. Weights are averaged by the protocol's rule. With a = b = 0 nothing is sent and it is
FedAvg bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
import torch.nn.functional as F

from benchmark.hparams import Choice, LogUniform, hp
from benchmark.method import Batch, Method, register
from methods.ops.features import classified
from methods.ops.finch import cluster_means, finch
from methods.ops.local_work import planned_steps

Prototypes = dict[str, torch.Tensor]
"""`means` (P, d) and the `classes` (P,) they are of."""


@register(
    "fpl",
    label="FPL",
    paper="Rethinking Federated Learning with Domain Shift: A Prototype View",
    venue="CVPR 2023",
    category="federated DG",
    shares=("prototype",),
)
class FPL(Method):
    """Cross-entropy plus a contrast with cluster prototypes and a pull to unbiased ones."""

    fpl_contrast: float = hp(1.0, LogUniform(0.1, 10), "weight of the contrast", low=0)
    fpl_pull: float = hp(1.0, LogUniform(0.1, 10), "weight of the squared distance", low=0)
    fpl_temperature: float = hp(0.02, Choice(0.02, 0.05, 0.1), "of the contrast", low=1e-3)

    @property
    def _uses_prototypes(self) -> bool:
        return self.fpl_contrast > 0 or self.fpl_pull > 0

    def receive(self, server, client) -> None:
        super().receive(server, client)
        if self._uses_prototypes and "fpl" in server.memory:
            client.scratch["fpl"] = server.send(client, "prototype", server.memory["fpl"])

    def step(self, client, batch: Batch) -> torch.Tensor:
        if self._uses_prototypes:
            client.scratch["fpl_steps"] = client.scratch.get("fpl_steps", 0) + 1
            # once per step, also when another method computes the loss twice in it
            client.scratch["fpl_collects"] = client.scratch["fpl_steps"] > _unseen_steps(client)
        return super().step(client, batch)

    def loss(self, client, batch: Batch) -> torch.Tensor:
        if not self._uses_prototypes:
            return super().loss(client, batch)
        loss, z, _ = classified(super().loss, client, batch)
        if client.scratch.pop("fpl_collects", False):
            _collect(client, z.detach(), batch.labels)
        if "fpl" not in client.scratch:
            return loss
        prototypes = client.scratch["fpl"]
        attraction = contrast(z, batch.labels, prototypes, self.fpl_temperature)
        distance = pull(z, batch.labels, prototypes, client.model.class_count)
        return loss + self.fpl_contrast * attraction + self.fpl_pull * distance

    def upload(self, client):
        update = super().upload(client)
        if "fpl_sums" in client.scratch:
            sums, counts = client.scratch.pop("fpl_sums"), client.scratch.pop("fpl_counts")
            classes = counts.nonzero().flatten()
            own = {"means": sums[classes] / counts[classes, None], "classes": classes}
            update.extras["prototype"] = client.send("prototype", own)
        return update

    def aggregate(self, server, updates: Iterable) -> None:
        sent: list[Prototypes] = []

        def watched() -> Iterator:
            for update in updates:
                if "prototype" in update.extras:
                    sent.append(update.extras.pop("prototype"))
                yield update

        super().aggregate(server, watched())
        if sent:
            server.memory["fpl"] = clustered(sent)


def clustered(sent: list[Prototypes]) -> Prototypes:
    """The cluster prototypes of the clients' class means, class by class."""
    points = torch.cat([own["means"] for own in sent])
    labels = torch.cat([own["classes"] for own in sent])
    means, classes = [], []
    for label in labels.unique():
        of_class = points[labels == label]
        means.append(cluster_means(of_class, finch(of_class)[-1]))
        classes.append(label.repeat(len(means[-1])))
    return {"means": torch.cat(means), "classes": torch.cat(classes)}


def contrast(
    z: torch.Tensor, labels: torch.Tensor, prototypes: Mapping, temperature: float
) -> torch.Tensor:
    """ℓ, summed over the samples with a prototype of their class and divided by all samples."""
    nearness = F.normalize(z) @ F.normalize(prototypes["means"]).T / temperature
    own = labels[:, None] == prototypes["classes"]
    of_own = nearness.masked_fill(~own, -1e9).logsumexp(1)  # finite, so rows without any stay so
    loss = nearness.logsumexp(1) - of_own
    return torch.where(own.any(1), loss, 0.0).mean()


def pull(
    z: torch.Tensor, labels: torch.Tensor, prototypes: Mapping, class_count: int
) -> torch.Tensor:
    """The mean squared difference to the own class's unbiased prototype, 0 where there is none."""
    means, classes = prototypes["means"], prototypes["classes"]
    counts = torch.bincount(classes, minlength=class_count)
    sums = means.new_zeros(class_count, means.shape[1]).index_add_(0, classes, means)
    unbiased = sums / counts.clamp(min=1)[:, None]
    distance = (z - unbiased[labels]).square().mean(1)
    return torch.where(counts[labels] > 0, distance, 0.0).mean()


def _unseen_steps(client) -> int:
    """How many steps go by before the last pass over the client's data begins."""
    per_epoch = max(1, client.size // client.training.batch_size)
    return max(0, planned_steps(client) - per_epoch)


def _collect(client, z: torch.Tensor, labels: torch.Tensor) -> None:
    classes = client.model.class_count
    if "fpl_sums" not in client.scratch:
        client.scratch["fpl_sums"] = z.new_zeros(classes, z.shape[1])
        client.scratch["fpl_counts"] = labels.new_zeros(classes)
    client.scratch["fpl_sums"].index_add_(0, labels, z)
    client.scratch["fpl_counts"] += torch.bincount(labels, minlength=classes)
