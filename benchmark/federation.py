"""The federation and its one loop: a generator of rounds without input or output.

Evaluating, checkpointing and reporting happen outside, between two rounds. The same seed gives the
same bits whoever drives the loop and wherever it is taken up again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmark.backbones.base import Backbone
from benchmark.costs import Traffic
from benchmark.errors import Diverged
from benchmark.evaluation import score
from benchmark.method import Method
from benchmark.seeds import seed_for
from benchmark.spec import Training
from benchmark.state import State, copy_of, state_of, write
from datasets.samples import Samples


@dataclasses.dataclass
class Update:
    """What the server gets from one client after its local work."""

    client: int
    state: State
    size: int
    steps: int
    """Optimiser steps that produced the state."""
    weight: float = 0.0
    """In the average; set by the loop from the method's `weigh`."""
    extras: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What a method sends besides weights."""


class Server:
    """The global model and what a method remembers on the server."""

    def __init__(self, model: Backbone, training: Training, seed: int, client_count: int):
        self.model = model
        self.training = training
        self.seed = seed
        self.client_count = client_count
        self.round = 0
        self.memory: dict[str, Any] = {}
        self.traffic = Traffic()
        self.state: State = state_of(model)

    def send(self, client: Client, kind: str, payload: Any) -> Any:
        """Hand something to a client. The only way down: what passes is counted by kind."""
        self.traffic.record("down", kind, payload)
        client.inbox[kind] = payload
        return payload


class Client:
    """One client: its samples, its memory, and the working model it is lent for a visit."""

    def __init__(self, id: int, name: str, train: Samples, val: Samples, server: Server, model):
        self.id = id
        self.name = name
        self.train = train
        self.val = val
        self.training = server.training
        self.seed = server.seed
        self.model: Backbone = model
        self.state: State = state_of(model)
        self.memory: dict[str, Any] = {}
        self.inbox: dict[str, Any] = {}
        """Messages of this round, by kind."""
        self.scratch: dict[str, Any] = {}
        """What a method notes for this client's visit, emptied at the start of a round. What the
        visit itself notes may be gone afterwards: another process may have made it."""
        self.optimizer: torch.optim.Optimizer
        self.lr = self.training.lr
        self.round = 0
        self.steps = 0
        self._traffic = server.traffic

    @property
    def size(self) -> int:
        return len(self.train)

    @property
    def progress(self) -> float:
        """How much of all rounds has passed, from 0 to 1."""
        return self.round / self.training.rounds

    def send(self, kind: str, payload: Any) -> Any:
        """Hand something to the server. The only way up: what passes is counted by kind."""
        self._traffic.record("up", kind, payload)
        return payload

    def update(self, state: State, **extras: Any) -> Update:
        return Update(self.id, state, self.size, self.steps, extras=extras)

    def descend(self) -> None:
        """Clip if the protocol says so, then one optimiser step."""
        if self.training.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.training.clip)
        self.optimizer.step()

    def numpy_generator(self, purpose: str) -> np.random.Generator:
        """A stream of this client's own for this round and purpose."""
        return np.random.default_rng(seed_for(self.seed, purpose, self.round, self.id))

    def torch_generator(self, purpose: str) -> torch.Generator:
        generator = torch.Generator(self.train.device)
        return generator.manual_seed(seed_for(self.seed, purpose, self.round, self.id))


class Visit(NamedTuple):
    """What comes of a client's local work."""

    update: Update
    loss: float
    """The mean over the steps."""
    steps: int


@dataclasses.dataclass
class Round:
    """What is known when a round has ended."""

    number: int
    chosen: list[Client]
    loss: float
    steps: int


def one_by_one(method: Method, server: Server, chosen: Sequence[Client]) -> Iterator[Visit]:
    """The visits of a round in this process, each made when it is asked for."""
    return (visit(method, server, client) for client in chosen)


def rounds(
    method: Method,
    server: Server,
    clients: Sequence[Client],
    start: int = 0,
    visits: Callable[[Method, Server, Sequence[Client]], Iterator[Visit]] = one_by_one,
) -> Iterator[Round]:
    """Run the rounds from `start` on, yielding after each; this is federated learning. `visits`
    lets the chosen clients work, here or in other processes (`benchmark.crew`)."""
    if start == 0:
        torch.manual_seed(seed_for(server.seed, "prepare"))
        method.prepare(server, clients)
    for number in range(start, server.training.rounds):
        server.round = number
        chosen = sample(clients, server)
        for client in chosen:
            client.round = number
            client.inbox.clear()
            client.scratch.clear()
        torch.manual_seed(seed_for(server.seed, "exchange", number))
        method.exchange(server, chosen)
        weights, made = method.weigh(server, chosen), []
        method.aggregate(server, _updates(visits(method, server, chosen), weights, made, server))
        torch.manual_seed(seed_for(server.seed, "conclude", number))
        method.conclude(server, chosen)
        steps = sum(count for _, count in made)
        yield Round(number, chosen, sum(loss * count for loss, count in made) / steps, steps)


def sample(clients: Sequence[Client], server: Server) -> list[Client]:
    """The clients of this round, in order of their numbers; the same for every method."""
    count = server.training.clients_per_round
    if count is None or count >= len(clients):
        return list(clients)
    rng = np.random.default_rng(seed_for(server.seed, "sample", server.round))
    return [clients[k] for k in np.sort(rng.choice(len(clients), count, replace=False))]


def _updates(
    visits: Iterator[Visit], weights: list[float], made: list[tuple[float, int]], server: Server
) -> Iterator[Update]:
    """The updates as they are asked for; their losses and steps are noted in `made`."""
    for one, weight in zip(visits, weights, strict=True):
        made.append((one.loss, one.steps))
        one.update.weight = weight
        yield one.update
    torch.manual_seed(seed_for(server.seed, "aggregate", server.round))


def visit(method: Method, server: Server, client: Client) -> Visit:
    """One client's local work."""
    torch.manual_seed(seed_for(server.seed, "visit", server.round, client.id))
    method.receive(server, client)
    client.model.train()
    client.lr = method.learning_rate(client)
    client.optimizer = method.optimizer(client)
    if "optimizer" in client.memory:
        rates = [group["lr"] for group in client.optimizer.param_groups]
        client.optimizer.load_state_dict(client.memory["optimizer"])
        for group, rate in zip(client.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
    loss, steps = _train(method, client)
    if client.training.keep_optimizer:
        client.memory["optimizer"] = client.optimizer.state_dict()
    update = method.upload(client)
    kept = method.keeps(client.model)
    if kept:
        client.memory["kept"] = copy_of(client.state, sorted(kept))
    del client.optimizer  # momentum is of a model's size: not to be held for every client at once
    return Visit(update, loss, steps)


def _train(method: Method, client: Client) -> tuple[float, int]:
    """All local steps, keeping the best validated state when the protocol asks for that."""
    total, steps = torch.zeros((), device=client.train.device), 0
    best, best_state, best_steps = -1.0, None, 0
    every = client.training.validate_every
    device, reduced = client.train.device.type, client.training.precision == "bf16"
    for batch in method.batches(client):
        with torch.autocast(device, torch.bfloat16, enabled=reduced):
            total += method.step(client, method.augment(client, batch))
        steps += 1
        if every and steps % every == 0:
            accuracy = _validate(method, client)
            if accuracy >= best:  # of equals, the latest
                best, best_state, best_steps = accuracy, copy_of(client.state), steps
    mean = total.item() / steps
    if not math.isfinite(mean):
        raise Diverged(
            f"the training loss of client {client.name} is {mean} in round {client.round}"
        )
    client.steps = steps
    if best_state is not None:
        write(client.state, best_state)
        client.steps = best_steps
    return mean, steps


def _validate(method: Method, client: Client) -> float:
    client.model.eval()
    result = score(method.local_predictor(client), client.val)
    client.model.train()
    return result.accuracy
