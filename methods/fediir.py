"""FedIIR: the classifier's gradient on every batch should be the gradient all clients agree on.

    L = CE + γ·‖∇_φ CE − ḡ‖²        ḡ ← e·ḡ + (1 − e)·mean over the round's clients of ∇_φ CE(x)

φ: the classifier's weight and bias; x: the global model at the start of the round; ḡ starts at 0
and is a constant for the clients. The penalty is differentiated through ∇_φ CE into classifier and
features (second order, but only through the last layer, so it costs little).

Paper: Guo et al., Out-of-Distribution Generalization of Federated Learning via Implicit Invariant
Relationships, ICML 2023. Leaves the client besides weights: the mean gradient of the classifier
over its data and the number of batches, once a round before training; ḡ comes back.

From the code (YamingGuo98/FedIIR; of the paper only the abstract was at hand): e = 0.95 without
correction for the start at 0; the mean is over batches, so clients count by their batches; one
extra pass over the data per round; γ = 1e-3 (PACS and other datasets), 5e-3 (VLCS), 5e-4
(Office-Home), 1e-2 (RotatedMNIST).

Differences: the code's φ is a classifier of two layers except on RotatedMNIST, here it is the
network's own last layer. The code freezes batch normalisation; here it is in training mode in both
passes and the extra one leaves the running statistics alone. The extra pass takes at most as many
batches as the client trains on, and no `augment` of another method. Weights are averaged by the
protocol's rule, uniformly in the code. In compositions CE, not the other method's loss, gives ∇_φ.

Partial participation, as in the code: only the round's clients give gradients, ḡ remembers the
others' by its average. With γ = 0 nothing is computed or sent and it is FedAvg bit for bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from benchmark.hparams import Choice, LogUniform, hp
from benchmark.method import Batch, Method, register
from benchmark.state import weighted_mean, write
from methods.ops.batchnorm import frozen_statistics
from methods.ops.features import classified
from methods.ops.side_training import side_batches


@register(
    "fediir",
    label="FedIIR",
    paper=(
        "Out-of-Distribution Generalization of Federated Learning via Implicit Invariant "
        "Relationships"
    ),
    venue="ICML 2023",
    category="federated DG",
    shares=("gradient",),
)
class FedIIR(Method):
    """Cross-entropy plus the squared distance of the classifier's gradient to the common one."""

    iir_gamma: float = hp(1e-3, LogUniform(1e-4, 1e-2), "weight of the penalty", low=0)
    iir_ema: float = hp(0.95, Choice(0.9, 0.95, 0.99), "memory of ḡ", low=0, high=1)

    def exchange(self, server, clients: Sequence) -> None:
        super().exchange(server, clients)
        if self.iir_gamma == 0:
            return
        sent = [client.send("gradient", _mean_gradient(server, client)) for client in clients]
        batches = sum(own["batches"] for own in sent)
        mean = weighted_mean(
            [own["mean"] for own in sent], [own["batches"] / batches for own in sent]
        )
        before = server.memory.get("fediir")
        server.memory["fediir"] = {
            name: (1 - self.iir_ema) * new + (self.iir_ema * before[name] if before else 0)
            for name, new in mean.items()
        }
        for client in clients:
            common = server.send(client, "gradient", server.memory["fediir"])
            client.scratch["fediir"] = common

    def loss(self, client, batch: Batch) -> torch.Tensor:
        if "fediir" not in client.scratch:
            return super().loss(client, batch)
        classifier = client.model.classifier
        loss, _, logits = classified(super().loss, client, batch)
        risk = F.cross_entropy(logits, batch.labels)
        weights = dict(classifier.named_parameters())
        own = torch.autograd.grad(risk, list(weights.values()), create_graph=True)
        common = client.scratch["fediir"]
        pairs = zip(weights, own, strict=True)
        return loss + self.iir_gamma * sum((g - common[name]).square().sum() for name, g in pairs)


def _mean_gradient(server, client) -> dict[str, Any]:
    """The classifier's mean gradient over the client's batches, at the model it starts from."""
    kept = client.memory.get("kept", {})
    # what `receive` will load, and count, in a moment: the same weights need not be sent twice
    write(client.state, {key: v for key, v in server.state.items() if key not in kept})
    write(client.state, kept)
    client.model.train()
    weights = dict(client.model.classifier.named_parameters())
    total, count = [torch.zeros_like(weight) for weight in weights.values()], 0
    with frozen_statistics(client.model):
        for batch in _one_pass(client):
            with torch.no_grad():
                z = client.model.features(batch.images)
            risk = F.cross_entropy(client.model.classifier(z), batch.labels)
            torch._foreach_add_(total, torch.autograd.grad(risk, list(weights.values())))
            count += 1
    return {
        "mean": dict(zip(weights, torch._foreach_div(total, count), strict=True)),
        "batches": count,
    }


def _one_pass(client) -> Iterator[Batch]:
    """Training batches of one epoch, at most as many as the client trains on in a round."""
    return itertools.islice(side_batches(client, "fediir", None, 1), client.training.local_steps)
