"""SWA on the server: the tested model is the average of global models late in training.

    w_swa ← (n·w_swa + x)/(n + 1)   after every cycle of c rounds, from round ⌊0.75·T⌋ on
    η = (1 − t)·lr + t·swa_lr       t = (round of the cycle + 1)/c

Paper: Caldarola et al., Improving Generalization in Federated Learning by Seeking Flat Minima, ECCV
2022, after Izmailov et al., Averaging Weights Leads to Wider Optima and Better Generalization, UAI
2018. Leaves the client besides weights: nothing. It wraps any base: `swa+fedsam`, `swa+fedbn`;
alone it is FedAvg + SWA. Predictor `swa` is the average (the global model until there is one), the
base's own predictors follow. Training itself goes on from x, never from the average. Every model
counts the same, whichever clients made it.

Short runs: the cycle is min(c, max(1, rounds left // 2)), so that two models are averaged whenever
two rounds are left, and the last round at the latest begins the averaging. Cycles of one round keep
the protocol's rate, as in the public code. `lr` is the protocol's rate of that round.
Differences: the code counts the rate's cycle from round 0 but averages from the start on, so with
its defaults it averages just after the highest rate instead of the lowest; here both count from
the start and the average is taken at the end of the cycle, as the papers describe it. The code
averages parameters only (its network has no buffers); float buffers are averaged here like them.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from benchmark.hparams import Choice, LogUniform, Uniform, hp
from benchmark.method import Method, Predictor, register
from benchmark.spec import Training
from benchmark.state import State, copy_of, state_of, write


@register(
    "swa",
    label="SWA",
    paper="Improving Generalization in Federated Learning by Seeking Flat Minima",
    venue="ECCV 2022",
    category="federated",
)
class SWA(Method):
    """The average of late global models predicts."""

    swa_start: float = hp(0.75, Uniform(0.5, 0.9), "share of rounds before it", low=0, high=1)
    swa_cycle: int = hp(10, Choice(1, 5, 10), "rounds between two models averaged", low=1)
    swa_lr: float = hp(1e-4, LogUniform(1e-5, 1e-3), "rate at the end of a cycle", low=0)

    def learning_rate(self, client) -> float:
        high = super().learning_rate(client)
        start, cycle = self._swa_schedule(client.training)
        if client.round < start or cycle == 1:
            return high
        t = ((client.round - start) % cycle + 1) / cycle
        return high + t * (self.swa_lr - high)

    def _swa_schedule(self, training: Training) -> tuple[int, int]:
        """The first round of the averaging phase and the rounds of one cycle."""
        start = min(int(self.swa_start * training.rounds), training.rounds - 1)
        return start, min(self.swa_cycle, max(1, (training.rounds - start) // 2))

    def conclude(self, server, clients: Sequence) -> None:
        super().conclude(server, clients)
        start, cycle = self._swa_schedule(server.training)
        if server.round < start or (server.round - start + 1) % cycle:
            return
        count = server.memory.get("swa_count", 0)
        server.memory["swa"] = _joined(server.memory.get("swa"), server.state, count)
        server.memory["swa_count"] = count + 1

    def predictors(self, server, clients: Sequence) -> dict[str, Predictor]:
        own = super().predictors(server, clients)
        averaged = own
        if "swa" in server.memory:
            other = copy.copy(server)
            other.model = copy.deepcopy(server.model)
            other.state = state_of(other.model)
            write(other.state, server.memory["swa"])
            averaged = super().predictors(other, clients)
        return {"swa": next(iter(averaged.values())), **own}


@torch.no_grad()
def _joined(mean: State | None, state: State, count: int) -> State:
    """The mean of `count` states with one more; integer counters are the newest state's."""
    new = copy_of(state)
    if mean is None:
        return new
    floats = [key for key, value in new.items() if value.is_floating_point()]
    old = [mean[key] for key in floats]
    moved = torch._foreach_lerp(old, [new[key] for key in floats], 1 / (count + 1))
    return {**new, **dict(zip(floats, moved, strict=True))}
