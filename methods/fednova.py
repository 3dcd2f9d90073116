"""FedNova: clients that took more local steps do not pull harder on the average.

    d_k = (x − y_k)/‖a_k‖₁      τ_eff = Σ p_k‖a_k‖₁      x⁺ = x − τ_eff·Σ p_k d_k

‖a_k‖₁ says how often the gradients of a round count in x − y_k: the τ_k steps of plain SGD, more
with momentum (`methods.ops.local_work`). Buffers, and parameters that clients keep
(`fednova+fedbn`), take the plain mean. Where all clients take the same steps it is FedAvg, bit for
bit; it matters for local work in epochs and with client checkpoint selection, where τ_k are the
steps of the uploaded state. p_k and τ_eff are those of the round's clients.

Paper: Wang et al., Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization, NeurIPS 2020. Leaves the client besides weights: one number, ‖a_k‖₁. It needs SGD that
starts fresh each round. `fednova+fedprox`: the proximal term shortens ‖a_k‖₁ to
(1 − (1 − ημ)^τ)/(ημ) while τ_eff stays that of the same steps without it, as in the code
(Σ p_k τ_k). Differences: with momentum and proximal term together the code normalises by a
heuristic recursion and takes τ_eff = Σ p_k τ_k; here ‖a_k‖₁ is that of the actual steps and τ_eff
keeps momentum. Server momentum `gmf` acts on whole updates, which is the same as the code's as long
as the learning rate is constant.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

import torch

from benchmark.errors import UserError
from benchmark.hparams import hp
from benchmark.method import Method, parts_of, register
from benchmark.state import copy_of, write
from methods.ops.local_work import gradient_weight, shared_parameters


@register(
    "fednova",
    label="FedNova",
    paper="Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization",
    venue="NeurIPS 2020",
    category="federated",
    shares=("steps",),
    needs_fresh_sgd=True,
)
class FedNova(Method):
    """The average of updates, each divided by its local work."""

    gmf: float = hp(0.0, doc="momentum of the server's updates", low=0, high=1)

    def prepare(self, server, clients: Sequence) -> None:
        super().prepare(server, clients)
        if self._proximal_pull(server.training.lr) >= 1:
            raise UserError(f"{self.name} needs training.lr × mu below 1; lower fedprox.mu")

    def _proximal_pull(self, rate: float) -> float:
        """ημ when combined with FedProx, else 0."""
        return rate * self.mu if "fedprox" in parts_of(self.name) else 0.0

    def upload(self, client):
        update = super().upload(client)
        momentum, pull = client.training.momentum, self._proximal_pull(client.lr)
        update.extras["work"] = client.send("steps", gradient_weight(update.steps, momentum, pull))
        return update

    def aggregate(self, server, updates: Iterable) -> None:
        names = shared_parameters(self, server.model)
        x = list(copy_of(server.state, names).values())
        seen: list[tuple[float, float, float]] = []

        def normalised() -> Iterator:
            """Updates as if every client had done as much as the first."""
            for update in updates:
                work = update.extras["work"]
                plain = gradient_weight(update.steps, server.training.momentum)
                seen.append((update.weight, work, plain))
                theirs = [update.state[name] for name in names]
                moved = torch._foreach_lerp(x, theirs, seen[0][1] / work)
                state = {**update.state, **dict(zip(names, moved, strict=True))}
                yield dataclasses.replace(update, state=state)

        super().aggregate(server, normalised())
        weights, works, plains = zip(*seen, strict=True)
        effective = sum(w * plain for w, plain in zip(weights, plains, strict=True))
        factor = effective / sum(w * works[0] for w in weights)
        mean = [server.state[name] for name in names]
        moved = torch._foreach_lerp(x, mean, factor)  # exactly the mean at 1
        write(server.state, dict(zip(names, self._server_momentum(server, x, moved), strict=True)))

    def _server_momentum(self, server, x: list, moved: list) -> list[torch.Tensor]:
        if self.gmf == 0:
            return moved
        velocity = torch._foreach_sub(moved, x)
        if "fednova" in server.memory:
            torch._foreach_add_(velocity, server.memory["fednova"], alpha=self.gmf)
        server.memory["fednova"] = velocity
        return torch._foreach_add(x, velocity)
