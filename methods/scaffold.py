"""SCAFFOLD: control variates take each client's own drift out of its local steps.

    client   y ← y − η(g(y) − c_k + c)           c_k⁺ = c_k − c + (x − y)/(ητ)   (option II)
    server   x ← x + η_g·mean(y − x)             c ← c + 1/N · Σ_sampled (c_k⁺ − c_k)

Paper: Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML
2020. Leaves the client besides weights: the change of its control variate, as large as the
parameters; the server's goes down, so traffic doubles. c and c_k start at 0 and cover parameters
only: buffers, and parameters that clients keep (`scaffold+fedbn`), take the plain mean. N counts
all clients; one that is not sampled keeps its c_k, which stays in c. Weight decay and clipping
belong to g: the correction is added after clipping. η is each parameter's own (`scaffold+bin`);
what another optimiser steps (the adapters of `scaffold+fedfd_a`) has no control variate.

Differences: the paper's mean of y is uniform; here it follows `training.weights` (`uniform` is the
paper's), while c stays the paper's uniform mean. The paper has no momentum; with momentum a
gradient counts several times in x − y, so τ is the sum of those counts (FedNova's ‖a‖₁) instead of
the steps. It needs SGD that starts fresh each round. Public ports divide by epochs
(FedDG_Benchmark), leave out 1/η (FedDG-GA) or correct buffers as well (NIID-Bench); none of this is
done here. Option I, a full gradient at x, is not offered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch

from benchmark.hparams import Uniform, hp
from benchmark.method import Method, register
from benchmark.state import WeightedSum, copy_of, write
from methods.ops.local_work import gradient_weight, shared_parameters


@register(
    "scaffold",
    label="SCAFFOLD",
    paper="SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
    venue="ICML 2020",
    category="federated",
    shares=("control",),
    needs_fresh_sgd=True,
)
class Scaffold(Method):
    """Local gradients corrected by the difference of global and own control variate."""

    scaffold_server_lr: float = hp(1.0, Uniform(0.5, 1.5), "η_g, the server's step", low=0)

    def prepare(self, server, clients: Sequence) -> None:
        super().prepare(server, clients)
        names = shared_parameters(self, server.model)
        server.memory["scaffold"] = {name: torch.zeros_like(server.state[name]) for name in names}

    def receive(self, server, client) -> None:
        super().receive(server, client)
        control = server.send(client, "control", server.memory["scaffold"])
        zeros = {name: torch.zeros_like(c) for name, c in control.items()}
        own = client.memory.setdefault("scaffold", zeros)
        correction = torch._foreach_sub(list(control.values()), [own[name] for name in control])
        client.scratch["scaffold_correction"] = dict(zip(control, correction, strict=True))
        client.scratch["scaffold_start"] = copy_of(client.state, control)

    def optimizer(self, client) -> torch.optim.Optimizer:
        optimizer = super().optimizer(client)
        parameters = dict(client.model.named_parameters())
        pairs = [(parameters[name], c) for name, c in client.scratch["scaffold_correction"].items()]

        def correct(*_) -> None:
            present = [(weight.grad, c) for weight, c in pairs if weight.grad is not None]
            if present:
                torch._foreach_add_(*map(list, zip(*present, strict=True)))

        optimizer.register_step_pre_hook(correct)
        return optimizer

    def upload(self, client):
        update = super().upload(client)
        correction = client.scratch.pop("scaffold_correction")
        start = client.scratch.pop("scaffold_start")
        counts = gradient_weight(client.steps, client.training.momentum)
        rates = _learning_rates(client)
        own, change = client.memory["scaffold"], {}
        for name, shift in correction.items():
            work = rates.get(name, 0.0) * counts
            # at a rate of 0 the client has learnt nothing about its gradient
            new = (start[name] - client.state[name]) / work - shift if work else own[name]
            change[name] = new - own[name]
            own[name] = new
        update.extras["control"] = client.send("control", change)
        return update

    def aggregate(self, server, updates: Iterable) -> None:
        control, changes = server.memory["scaffold"], WeightedSum()
        before = copy_of(server.state, control)

        def watched() -> Iterator:
            for update in updates:
                changes.add(update.extras.pop("control"), 1 / server.client_count)
                yield update

        super().aggregate(server, watched())
        x, mean = list(before.values()), [server.state[name] for name in before]
        moved = torch._foreach_lerp(x, mean, self.scaffold_server_lr)  # exactly the mean at 1
        write(server.state, dict(zip(before, moved, strict=True)))
        change = changes.result()
        server.memory["scaffold"] = {name: c + change[name] for name, c in control.items()}


def _learning_rates(client) -> dict[str, float]:
    """Of every parameter that the client's optimiser steps; some methods give a few their own."""
    groups = client.optimizer.param_groups
    rates = {id(weight): group["lr"] for group in groups for weight in group["params"]}
    named = client.model.named_parameters()
    return {name: rates[id(weight)] for name, weight in named if id(weight) in rates}
