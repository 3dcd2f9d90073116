"""CSAC: models learnt alone are fused layer by layer, then calibrated to their private originals.

    fusion   W = Σ_k c_k W_k,   c_k = ‖W_k − m‖₂ / Σ_j ‖W_j − m‖₂,   m the mean; for each tensor
    client   L = CE + λ·[Σ_ij α_ij·MMD(h_i, h_j^private) + MMD(logits, logits^private)]

Before round 0 every client trains the initial model on its own data; the result is its private
teacher for the whole run, and the first global model fuses them. α weighs pairs of the last three
stages by attention (methods/ops/cross_layer.py), as constants. The farther a client's tensor is
from the mean, the more it counts.

Paper: Yuan et al., Collaborative Semantic Aggregation and Calibration for Federated Domain
Generalization, TKDE 2023. Leaves the client besides weights: nothing (one more upload of weights,
the teacher, before round 0).

Of the paper only the abstract was at hand; the rest is junkunyuan/CSAC. Its default run has an
empty list of layers, so the cross-layer term is 0 there: that is `calib=released`, logits only; the
default `calib=full` has both. The code's MMD estimator is not 0 for equal batches; this one is. The
code fuses buffers like parameters and lets a client with coefficient 0 overwrite the others; here
buffers take the plain mean, and equal tensors stay as they are. It never fuses the last round's
models; here every round ends with a fusion. The projections start fresh every round and are trained
along, which may shrink the term without aligning anything: `projection_lr` slows them to a tenth
(1: the code's, 0: frozen). Stages are brought to the last one's size: 7 × 7 on ResNets, as there.

`pretrain_rounds` counts in the protocol's local work: the code's 1800 iterations are 9 times the
200 of a round. All clients start from the same model (there, from different classifiers), and share
in the first fusion also when only some are sampled later; a client that is not sampled keeps its
teacher. `csac_fusion=mean` averages as FedAvg does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import nn

from benchmark.backbones.base import Backbone
from benchmark.errors import UserError
from benchmark.hparams import Choice, hp
from benchmark.method import Batch, Method, register
from benchmark.state import State, copy_of, parameter_names, weighted_mean, write
from datasets.samples import batch_order
from methods.ops.calibration import STAGES, Calibration
from methods.ops.local_work import planned_steps


@register(
    "csac",
    label="CSAC",
    paper="Collaborative Semantic Aggregation and Calibration for Federated Domain Generalization",
    venue="TKDE 2023",
    category="federated DG",
)
class CSAC(Method):
    """Fusion by divergence, calibration to private teachers."""

    csac_lambda: float = hp(0.6, Choice(0.3, 0.6, 1.0), "λ, weight of the calibration", low=0)
    calib: str = hp("full", Choice("full", "released"), "layers and logits, or logits only")
    csac_fusion: str = hp("l2", Choice("l2", "mean"), "of tensors: by distance, or FedAvg's")
    pretrain_rounds: float = hp(9.0, doc="local work before round 0, in rounds", low=0)
    projection_lr: float = hp(0.1, doc="learning rate of projections over the others'", low=0)

    def build(self, make: Callable[[], Backbone]) -> Backbone:
        model = super().build(make)
        if self.csac_fusion == "l2" and type(self).weigh is not Method.weigh:
            raise UserError(
                f"{self.name}: the fusion of csac sets the clients' weights itself; "
                f"set csac.csac_fusion=mean or leave the other method out"
            )
        if self.calib == "full" and self.csac_lambda:
            if "embedding" in model.stages or len(model.stages) < STAGES:
                raise UserError(
                    f"csac compares the maps of {STAGES} stages, which {type(model).__name__} "
                    f"lacks; set csac.calib=released or choose a CNN or a ResNet"
                )
            for stage in model.stages[-STAGES:]:
                model.insert(stage, nn.Identity())  # a place to look at what leaves the stage
        return model

    def prepare(self, server, clients: Sequence) -> None:
        super().prepare(server, clients)
        if self.pretrain_rounds == 0:
            for client in clients:
                client.memory["teacher"] = copy_of(server.state)
            return
        teachers = [self._acquire(server, client) for client in clients]
        write(server.state, self._fused(server, teachers, self.weigh(server, clients)))

    def _acquire(self, server, client) -> State:
        """The client's own model, trained with the base's loss alone; its teacher from now on."""
        self.receive(server, client)
        client.model.train()
        client.lr = self.learning_rate(client)
        client.optimizer = super().optimizer(client)
        for batch in acquisition_batches(client, self.pretrain_rounds):
            client.optimizer.zero_grad(set_to_none=True)
            super().loss(client, self.augment(client, batch)).backward()
            client.descend()
        del client.optimizer
        client.scratch.clear()
        client.memory["teacher"] = copy_of(client.state)
        kept = self.keeps(client.model)
        if kept:
            client.memory["kept"] = copy_of(client.state, sorted(kept))
        return client.send("weights", client.memory["teacher"])

    def receive(self, server, client) -> None:
        super().receive(server, client)
        if self.csac_lambda and "teacher" in client.memory:
            rate = self.projection_lr * self.learning_rate(client)
            client.scratch["csac"] = Calibration(client, self.calib == "full", rate)

    def loss(self, client, batch: Batch) -> torch.Tensor:
        calibration = client.scratch.get("csac")
        if calibration is None:
            return super().loss(client, batch)
        with calibration.observed(client.model) as seen:
            loss = super().loss(client, batch)
        return loss + self.csac_lambda * calibration.distance(batch.images, seen())

    def step(self, client, batch: Batch) -> torch.Tensor:
        loss = super().step(client, batch)
        if "csac" in client.scratch:
            client.scratch["csac"].descend()
        return loss

    def upload(self, client):
        client.scratch.pop("csac", None)  # a model: not to be held for every client at once
        return super().upload(client)

    def aggregate(self, server, updates: Iterable) -> None:
        pairs = [(update.state, update.weight) for update in updates]
        write(server.state, self._fused(server, *zip(*pairs, strict=True)))

    def _fused(self, server, states: Sequence[State], weights: Sequence[float]) -> State:
        if self.csac_fusion == "mean":
            return weighted_mean(states, weights)
        return fused(states, parameter_names(server.model))


@torch.no_grad()
def fused(states: Sequence[State], parameters: set[str]) -> State:
    """Each parameter tensor is a mean in which a client counts by its distance from the plain mean;
    buffers are plain means, integer counters the first client's."""
    count = len(states)
    result = weighted_mean(states, [1 / count] * count)
    for key in parameters:
        # In double precision, where two clients are exactly as far from their mean.
        stacked = torch.stack([state[key] for state in states]).double()
        distances = (stacked - stacked.sum(0) / count).flatten(1).norm(dim=1)
        total = distances.sum()
        shares = torch.where(total > 0, distances / total, 1 / count)
        result[key] = torch.tensordot(shares, stacked, 1).to(result[key].dtype)
    return result


def acquisition_batches(client, rounds: float) -> Iterator[Batch]:
    """Training batches of so many rounds' local work, from streams that no round uses."""
    steps, size = round(rounds * planned_steps(client)), client.training.batch_size
    rng = client.numpy_generator("acquisition")
    generator = client.torch_generator("acquisition transform")
    for positions in batch_order(client.size, size, rng, steps, None):
        yield client.train.training_batch(positions, generator)
