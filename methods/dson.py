"""DSON: every client has normalisation layers of its own that mix batch and instance statistics;
an unseen domain is judged by all of them together.

    μ = Σ softmax(a)_m μ_m      var = Σ softmax(b)_m var_m      m ∈ {IN, BN}, a ≠ b, start at ½, ½
    p(y | x) = mean over the clients' branches of softmax(logits)

Paper: Seo et al., Learning to Optimize Domain Specific Normalization for Domain Generalization,
ECCV 2020; no official code was found, a public re-implementation was read. Leaves the client
besides weights: its branch, i.e. its own normalisation layers, which every place of inference must
see one by one; the FedFD-A paper (84.02 on PACS) counts this against the method.

A branch is γ, β, running statistics and the logits a, b of each layer: one pair each per layer (an
early version of the paper shares them over layers). The instance variance is unbiased, the batch's
is E[var_IN + μ_IN²] − μ_BN², and so are running variances. They start from the network's, not from
0 as in the re-implementation. Vectors have no instance statistics: BatchNorm1d is part of a branch
as it is. The rest of the network is averaged as usual; a client that is not sampled keeps its
branch and it keeps voting, one that never was has none. The row `global` is the one network with
averaged branches. `dson_branches=shared` has a single branch that is averaged like all weights,
one reading of the gPerXAN paper's "w/ DSON" (83.99 on PACS with its regulariser).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from benchmark.backbones.base import Backbone
from benchmark.hparams import Choice, hp
from benchmark.method import Method, Predictor, register
from benchmark.state import State, batchnorm_keys, copy_of
from methods.ops.centred import centred_moments, joint_moments, unbiased
from methods.ops.normalisation import TrainedMix, converted, normalise_with, replace_untrained


class OptimisedNorm2d(TrainedMix):
    """Normalises with learnt mixtures of instance and batch statistics, in that order."""

    def __init__(self, channels: int, *settings) -> None:
        super().__init__(channels, *settings)
        self.mean_logits = nn.Parameter(torch.ones(2))
        self.variance_logits = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred, own_mean, variance = centred_moments(x)
        own = own_mean, unbiased(variance, x)
        batch = self._batch_moments(*own)
        logits = self.mean_logits, self.variance_logits
        shares = (values.softmax(0) for values in logits)
        mean, variance = (
            share[0] * one + share[1] * other
            for share, one, other in zip(shares, own, batch, strict=True)
        )
        return normalise_with(centred, own_mean, mean, (variance + self.eps).sqrt(), self)

    def _batch_moments(
        self, means: torch.Tensor, variances: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of the batch in training, which the running ones follow, else the running ones."""
        if not self.training and self.running_mean is not None:
            return self.running_mean, self.running_var
        mean, variance = (part[0] for part in joint_moments(means, variances, dim=0))
        if self.training and self.track_running_stats:
            with torch.no_grad():
                self.running_mean.lerp_(mean.to(self.running_mean), self.momentum)
                self.running_var.lerp_(variance.to(self.running_var), self.momentum)
                self.num_batches_tracked.add_(1)
        return mean, variance


def branch_keys(model: nn.Module) -> set[str]:
    """Every entry of the state that belongs to normalisation."""
    layers = (item for item in model.named_modules() if isinstance(item[1], OptimisedNorm2d))
    mixed = {f"{path}.{key}" for path, layer in layers for key in layer.state_dict()}
    return mixed | batchnorm_keys(model).all


class Ensemble(nn.Module):
    """The logarithm of the mean probabilities of one network with several branches."""

    def __init__(self, model: Backbone, branches: Mapping[int, State]):
        super().__init__()
        self.model = copy.deepcopy(model).eval()
        self.branches = [copy_of(branches[number]) for number in sorted(branches)]

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        votes = [functional_call(self.model, branch, (images,)) for branch in self.branches]
        probabilities = torch.stack([F.log_softmax(vote, 1) for vote in votes])
        return probabilities.logsumexp(0) - math.log(len(votes))


@register(
    "dson",
    label="DSON",
    paper="Learning to Optimize Domain Specific Normalization for Domain Generalization",
    venue="ECCV 2020",
    category="normalisation",
    shares=("branch",),
    needs_batchnorm=True,
)
class DSON(Method):
    """Normalisation layers per client, with learnt mixtures; all of them vote."""

    dson_branches: str = hp("client", Choice("client", "shared"), "one branch per client or one")

    @property
    def _own(self) -> bool:
        return self.dson_branches == "client"

    def build(self, make: Callable[[], Backbone]) -> Backbone:
        model = super().build(make)
        replace_untrained(model, lambda old: converted(OptimisedNorm2d, old))
        return model

    def keeps(self, model) -> set[str]:
        return super().keeps(model) | (branch_keys(model) if self._own else set())

    def upload(self, client):
        # Does not hand on with super(): the branch travels as a message of its own, once.
        if not self._own:
            return Method.upload(self, client)
        state, own = copy_of(client.state), branch_keys(client.model)
        client.send("weights", {key: value for key, value in state.items() if key not in own})
        branch = client.send("branch", {key: state[key] for key in state if key in own})
        return client.update(state, branch=branch)

    def aggregate(self, server, updates: Iterable) -> None:
        super().aggregate(server, self._collect(server, updates) if self._own else updates)

    def _collect(self, server, updates: Iterable) -> Iterator:
        """The updates as they come, their branches put aside."""
        branches = server.memory.setdefault("branches", {})
        for update in updates:
            branches[update.client] = copy_of(update.extras["branch"])
            yield update

    def predictors(self, server, clients) -> dict[str, Predictor]:
        averaged, branches = super().predictors(server, clients), server.memory.get("branches")
        if not branches:
            return averaged
        return {"dson": Ensemble(server.model, branches), **averaged}
