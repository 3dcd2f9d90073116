"""FedHEAL: the server drops what a client moves to and fro, and hears far-off clients louder.

    m_k = [share of k's earlier rounds in which the entry moved to the same side > τ]
    Δ_k ← (1 − β)·Δ_k + β·D_k/Σ_j D_j       D_k = Σ_tensors ‖m_k ∘ (y_k − x)‖
    a_k ← a_k + Δ_k                         x ← x + Σ_k a_k m_k (y_k − x) / Σ_k a_k m_k, per entry

An entry of the parameters that no client keeps stays as it is. On a client's first visit everything
is kept. a_k starts at FedAvg's weight, Δ_k at 0, and both are remembered without normalisation.

Paper: Chen, Huang and Ye, Fair Federated Learning under Domain Skew with Local Consistency and
Domain Diversity, CVPR 2024. Leaves the client besides weights: nothing. The server remembers one
count per parameter and client (one byte, two beyond 255 rounds).

From the code (yuhangchen0/FedHEAL; of the paper only the abstract was at hand): τ = 0.3, β = 0.4,
"same side" by x − y ≥ 0, sums of unsquared norms of parameters, no normalisation of what is
remembered, renormalised weights per entry. Differences: a_k starts at 1/|S| in the code, which is
`training.weights=uniform`; with the default it starts at the protocol's weight. The code masks
buffers too; here they, and parameters that clients keep (`fedheal+fedbn`), take the mean weighted
by a_k.

Partial participation: the code counts rounds of the server and sums D over all clients ever seen;
here a client's share is over its own visits and D is summed over the round's clients (the same with
full participation). a_k is the current round's FedAvg weight plus what k has gained so far; a
client that is not sampled keeps its gain, Δ and counts.

With β = 0 and τ < 0, which keeps everything, it is FedAvg bit for bit; with β = 0 the first round
is FedAvg within rounding. The updates are folded in one at a time: memory does not grow with them.
`aggregate` is its own, so another method that changes it must stand to the left.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from benchmark.hparams import Uniform, hp
from benchmark.method import Method, register
from benchmark.state import State, WeightedSum, write
from methods.ops.local_work import shared_parameters


@register(
    "fedheal",
    label="FedHEAL",
    paper="Fair Federated Learning under Domain Skew with Local Consistency and Domain Diversity",
    venue="CVPR 2024",
    category="federated DG",
)
class FedHEAL(Method):
    """Masked updates, weighted by how far each client goes."""

    heal_threshold: float = hp(
        0.3, Uniform(0.1, 0.5), "agreement to be exceeded; below 0 all is kept", low=-1, high=1
    )
    heal_beta: float = hp(
        0.4, Uniform(0.1, 0.9), "how fast weights follow distances", low=0, high=1
    )

    def aggregate(self, server, updates: Iterable) -> None:
        if self.heal_beta == 0 and self.heal_threshold < 0:
            return Method.aggregate(self, server, updates)
        names = dict.fromkeys(shared_parameters(self, server.model))
        x = [server.state[name] for name in names]
        mix, visits = _Mix(), []
        for update in updates:
            past = _past(server, update.client, x)
            moves = torch._foreach_sub([update.state[name] for name in names], x)
            masks = self._masks(past, moves)
            moves = torch._foreach_mul(moves, masks)
            distance = torch.stack(torch._foreach_norm(moves)).sum().item()
            known = update.weight + past["gain"] + (1 - self.heal_beta) * past["delta"]
            rest = {key: value for key, value in update.state.items() if key not in names}
            mix.add(dict(zip(names, moves, strict=True)), masks, rest, known, distance)
            visits.append((past, distance))
        total = sum(distance for _, distance in visits)
        write(server.state, mix.result(server.state, self.heal_beta / total if total else 0.0))
        for past, distance in visits:
            share = distance / total if total else 0.0
            past["delta"] = (1 - self.heal_beta) * past["delta"] + self.heal_beta * share
            past["gain"] += past["delta"]

    def _masks(self, past: dict[str, Any], moves: list[torch.Tensor]) -> list[torch.Tensor]:
        """1 where the entry's side has been usual for this client, else 0; then remember it."""
        masks = []
        for count, move in zip(past["falls"], moves, strict=True):
            falls = move <= 0
            if past["visits"]:
                share = count / past["visits"]
                usual = torch.where(falls, share, 1 - share) > self.heal_threshold
                masks.append(usual.to(move.dtype))
            else:
                masks.append(torch.ones_like(move))
            count += falls
        past["visits"] += 1
        return masks


def _past(server, client: int, x: list[torch.Tensor]) -> dict[str, Any]:
    """What the server remembers of a client; of a new one, that it knows nothing."""
    memory = server.memory.setdefault("fedheal", {})
    if client not in memory:
        kind = torch.uint8 if server.training.rounds <= 255 else torch.int16
        falls = [torch.zeros_like(weight, dtype=kind) for weight in x]
        memory[client] = {"gain": 0.0, "delta": 0.0, "visits": 0, "falls": falls}
    return memory[client]


class _Mix:
    """Σ a_k · entries while the distances are still coming in: a_k = known_k + (β/ΣD)·D_k, so two
    sums are kept and β/ΣD joins them at the end."""

    def __init__(self) -> None:
        self._known, self._distant = WeightedSum(), WeightedSum()
        self._weights = [0.0, 0.0]

    def add(
        self, moves: State, masks: list[torch.Tensor], rest: State, known: float, distance: float
    ) -> None:
        entries = {f"move {name}": move for name, move in moves.items()}
        entries |= {f"mask {name}": mask for name, mask in zip(moves, masks, strict=True)}
        entries |= {f"rest {key}": value for key, value in rest.items()}
        self._known.add(entries, known)
        self._distant.add(entries, distance)
        self._weights = [self._weights[0] + known, self._weights[1] + distance]

    def result(self, x: State, factor: float) -> State:
        """The new entries of the state `x`; `factor` is β/ΣD."""
        distant, total = self._distant.result(), self._weights[0] + factor * self._weights[1]
        sums = {
            key: value + factor * distant[key] if value.is_floating_point() else value
            for key, value in self._known.result().items()
        }
        new = {}
        for key, value in sums.items():
            kind, _, name = key.partition(" ")
            if kind == "move":
                weight = sums[f"mask {name}"]
                new[name] = x[name] + torch.where(weight > 0, value / weight, 0.0)
            elif kind == "rest":
                new[name] = value / total if value.is_floating_point() else value
        return new
