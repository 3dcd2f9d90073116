"""FedOMG: the server goes in a direction that no client's update disagrees with much.

    g_k = p_k(y_k − x)      g₀ = 1/K · Σ g_k
    w* = argmin over the simplex of  (Σ w_k g_k)·g₀ + c‖g₀‖·‖Σ w_k g_k‖
    x ← x + η·(g₀ + c‖g₀‖/‖g_w*‖ · g_w*)/(1 + c²)          g_w = Σ w_k g_k

the dual of the direction with the largest worst product with a client's update within c‖g₀‖ of g₀
(CAGrad). Only the K×K matrix of products g_j·g_k enters, so it costs next to nothing.

Paper: Nguyen, Nguyen, Park, Pham and Hwang, Federated Domain Generalization with Data-free
On-server Matching Gradient, ICLR 2025. Leaves the client besides weights: nothing. The server holds
the round's updates at once.

From the code (skydvn/FedOMG, FedOMG-DG; of the paper only the abstract was at hand): c = 0.5,
η = 0.5, w = softmax of K numbers that start at 0 and take 20 steps of SGD (rate 25, momentum 0.5),
the best of the 21 points; products are divided by the squared mean length of the g_k, and 1e-4 is
added to every square before its root and to ‖g_w‖. So clients that all move by d move x by
η(1 + c)/((1 + c²)K)·d: 0.2·d with three clients, a fifth of FedAvg's step, because the update is
weighted by p_k and once more by 1/K. The code for other federated benchmarks in the same
repository multiplies by K (`omg_scale=sum`; then g₀ is FedAvg's step). Default is `mean`, the
domain generalization code.

Differences: p_k are the protocol's weights, in the code by sizes of the test parts. The code
leaves buffers as they were at the start; here they, and parameters that clients keep
(`fedomg+fedbn`), take the plain weighted mean. The steps on w use the derivative written out, in
double precision.

Partial participation: K and p_k are of the round's clients; nothing is remembered. With c = 0,
η = 1 and `sum` it is FedAvg bit for bit; with c = 0 and `mean` it is FedAvg's step times η/K within
rounding. `aggregate` is its own, so another method that changes it must stand to the left.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from benchmark.hparams import Choice, Uniform, hp
from benchmark.method import Method, register
from benchmark.state import WeightedSum, write
from methods.ops.local_work import shared_parameters

SMALL = 1e-4


@register(
    "fedomg",
    label="FedOMG",
    paper="Federated Domain Generalization with Data-free On-server Matching Gradient",
    venue="ICLR 2025",
    category="federated DG",
)
class FedOMG(Method):
    """The mean update, turned towards the clients it serves worst."""

    omg_radius: float = hp(0.5, Uniform(0.1, 0.9), "c, how far to turn from the mean", low=0)
    omg_lr: float = hp(0.5, Uniform(0.1, 1.0), "η, the server's step", low=0)
    omg_scale: str = hp("mean", Choice("mean", "sum"), "of the weighted updates in g₀")

    def aggregate(self, server, updates: Iterable) -> None:
        if self.omg_radius == 0 and self.omg_lr == 1 and self.omg_scale == "sum":
            return Method.aggregate(self, server, updates)
        names = dict.fromkeys(shared_parameters(self, server.model))
        x = [server.state[name] for name in names]
        rest, moves = WeightedSum(), []
        for update in updates:
            way = torch._foreach_sub([update.state[name] for name in names], x)
            moves.append(update.weight * torch.cat([part.flatten() for part in way]))
            others = {key: value for key, value in update.state.items() if key not in names}
            if others:  # a network may have parameters only
                rest.add(others, update.weight)
        write(server.state, rest.result())
        moves = torch.stack(moves)
        factors = direction(moves @ moves.T, self.omg_radius).to(moves)
        rate = self.omg_lr * (len(moves) if self.omg_scale == "sum" else 1)
        parts = (rate * factors @ moves).split([weight.numel() for weight in x])
        steps = [part.view(weight.shape) for part, weight in zip(parts, x, strict=True)]
        torch._foreach_add_(x, steps)


def direction(products: torch.Tensor, radius: float) -> torch.Tensor:
    """How much of each g_k is in the common direction, from their products g_j·g_k."""
    products = products.double().cpu()
    count = len(products)
    products = products / (products.diag() + SMALL).sqrt().mean().square()
    with_mean = products.mean(1)
    bound = radius * (with_mean.mean() + SMALL).sqrt()
    w = simplex_weights(products, with_mean, bound)
    length = (w @ products @ w + SMALL).sqrt()
    return (1 / count + w * bound / (length + SMALL)) / (1 + radius**2)


def simplex_weights(
    products: torch.Tensor,
    with_mean: torch.Tensor,
    bound: torch.Tensor,
    steps: int = 20,
    rate: float = 25.0,
    momentum: float = 0.5,
) -> torch.Tensor:
    """w that makes w·with_mean + bound·√(w·products·w) small: the best point on SGD's way."""
    scores, velocity = torch.zeros_like(with_mean), torch.zeros_like(with_mean)
    points, values = [], []
    for _ in range(steps + 1):
        w = scores.softmax(0)
        length = (w @ products @ w + SMALL).sqrt()
        points.append(w)
        values.append(w @ with_mean + bound * length)
        slope = with_mean + bound * (products @ w) / length
        velocity = momentum * velocity + w * (slope - w @ slope)
        scores = scores - rate * velocity
    return points[int(torch.stack(values).argmin())]
