"""FedDG-GA: clients whose domain loses most by averaging weigh more in the next average.

    G_k = ε_k(x⁺) − ε_k(y_k)        a_k ← a_k + d_t·(G_k − Ḡ)/max_j |G_j − Ḡ|,  then Σ a = 1

ε_k is the risk on client k's own data: of its own model y_k after local work and of the new global
model x⁺. The weights a start uniform, in place of sample counts, and serve from the next round on.
It wraps any base: `ga+silobn`, `ga+fedprox`.

Paper: Zhang et al., Federated Domain Generalization with Generalization Adjustment, CVPR 2023.
Leaves the client besides weights: two numbers, its risks before and after averaging.

`ga_variant=paper` (default): the equation above with d_t = d·(1 − t/T). `ga_variant=code` is
MediaBrain-SJTU/FedDG-GA: no mean is taken off, accuracy instead of loss, d_t = d·(1 − (t − 1)/T),
so the first step is longer than d. Both clip a to [0, 1] and divide d by the number of clients, as
the code does for its three; with `ga_per_client=False` d is used as it is. Whether the paper's
maximum is of absolute values is told differently; here it is, so that no step exceeds d_t. The risk
is measured on the validation part, as in the code (`ga_part=train` is the paper's empirical risk).

Decided here: equal gaps, or risks that are not finite, leave a as it is. With partial participation
a covers all clients; a round averages with a_k/Σ a of its own, adjusts theirs by the mean and
maximum over them, and normalises over everybody. Over a base with local normalisation x⁺ is judged
with the averaged layers (`ga_bn=global`), which then travel down for it. The rest of x⁺ comes with
the next broadcast; only with partial participation it is sent, and counted, once more. After the
last round nothing is measured: no average would use it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmark.evaluation import score
from benchmark.hparams import Choice, hp
from benchmark.method import Method, register
from benchmark.state import write


@register(
    "ga",
    label="FedDG-GA",
    paper="Federated Domain Generalization with Generalization Adjustment",
    venue="CVPR 2023",
    category="federated DG",
    shares=("risks",),
)
class GA(Method):
    """Weights of the average that follow the generalisation gaps."""

    ga_variant: str = hp("paper", Choice("paper", "code"), "gaps around their mean, or as they are")
    ga_step: float = hp(0.2, Choice(0.05, 0.1, 0.2), "d, the largest change in round 0", low=0)
    ga_per_client: bool = hp(True, doc="divide d by the number of clients")
    ga_metric: str = hp(
        "own", Choice("own", "loss", "accuracy"), "the risk; own: the variant's (loss, accuracy)"
    )
    ga_part: str = hp("val", Choice("val", "train"), "the client's data that risks are taken on")
    ga_bn: str = hp("global", Choice("global", "local"), "kept layers when the global is judged")

    def weigh(self, server, clients: Sequence) -> list[float]:
        weights = server.memory.get("ga")
        chosen = [weights[client.id] for client in clients] if weights else []
        total = sum(chosen)
        if total == 0:  # before the first adjustment, or all of them have been clipped away
            return [1 / len(clients)] * len(clients)
        return [weight / total for weight in chosen]

    def upload(self, client):
        update = super().upload(client)
        if self._adjusts(client):
            client.memory["ga"] = self._risk(client)
        return update

    def conclude(self, server, clients: Sequence) -> None:
        super().conclude(server, clients)
        if not self._adjusts(server):
            return
        gaps = {}
        for client in clients:
            self._load_global(server, client)
            own, ours = client.send("risks", [client.memory.pop("ga"), self._risk(client)])
            gaps[client.id] = ours - own
        count = server.client_count
        weights = server.memory.get("ga", [1 / count] * count)
        step = self.step_at(server.round, server.training.rounds, count)
        server.memory["ga"] = adjusted(weights, gaps, step, centred=self.ga_variant == "paper")

    def step_at(self, round: int, rounds: int, clients: int) -> float:
        """d_t, the largest change of a weight after a round."""
        passed = round if self.ga_variant == "paper" else round - 1
        return self.ga_step * (1 - passed / rounds) / (clients if self.ga_per_client else 1)

    def _adjusts(self, side) -> bool:
        """Whether weights change after this round; `side` is a client or the server."""
        return self.ga_step > 0 and side.round + 1 < side.training.rounds

    def _risk(self, client) -> float:
        """Of the model in the client's hands; larger is worse."""
        samples = client.val if self.ga_part == "val" and len(client.val) else client.train
        client.model.eval()
        accuracy, loss, _ = score(self.local_predictor(client), samples)
        own = "loss" if self.ga_variant == "paper" else "accuracy"
        metric = own if self.ga_metric == "own" else self.ga_metric
        return loss if metric == "loss" else 1 - accuracy

    def _load_global(self, server, client) -> None:
        kept = client.memory.get("kept", {})
        wanted = server.state.keys() if self.ga_bn == "global" else server.state.keys() - kept
        sampled = server.training.clients_per_round
        everyone = sampled is None or sampled >= server.client_count
        early = wanted & kept.keys() if everyone else wanted
        if early:
            server.send(client, "weights", {key: server.state[key] for key in sorted(early)})
        write(client.state, server.state)
        if self.ga_bn == "local":
            write(client.state, kept)


def adjusted(
    weights: Sequence[float], gaps: dict[int, float], step: float, centred: bool
) -> list[float]:
    """The weights of all clients after those with a gap moved by at most `step`; Σ = 1."""
    mean = sum(gaps.values()) / len(gaps) if centred else 0.0
    moves = {client: gap - mean for client, gap in gaps.items()}
    largest = max(map(abs, moves.values()))
    rounding = 1e-12 * max(map(abs, gaps.values()))  # equal gaps hardly ever give exact zeros
    if not all(map(math.isfinite, moves.values())) or largest <= rounding:
        return list(weights)
    new = [
        min(1.0, max(0.0, weight + step * (moves[k] / largest))) if k in moves else weight
        for k, weight in enumerate(weights)
    ]
    total = sum(new)
    return [weight / total for weight in new] if total > 0 else list(weights)
