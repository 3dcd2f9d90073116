"""A method is the hooks it changes; the defaults are FedAvg.

    one round:  exchange → each chosen client: receive → batches → augment → step(loss) → upload
                → aggregate → conclude

A method is a frozen dataclass of hyper-parameters and holds no state: what survives a round lives
in `server.memory` or `client.memory` (tensors, numbers and containers of them) and is checkpointed
for every method at once. Whatever crosses the client boundary goes through `client.send` or
`server.send`, which count it. Extra random draws come from torch's global generator, which the
loop seeds for every round, client and purpose.

Methods combine by Python's own rule: `compose("ga+silobn")` is a class with the bases GA, SiloBN;
hooks cooperate through `super()`, and the left one is the outermost.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F

from benchmark.categories import CATEGORIES
from benchmark.errors import UserError
from benchmark.hparams import fields, resolve
from benchmark.registry import Registry
from benchmark.state import WeightedSum, copy_of, write
from datasets.samples import Batch, batch_order

if TYPE_CHECKING:
    from benchmark.backbones.base import Backbone
    from benchmark.federation import Client, Server, Update

Predictor = Callable[[torch.Tensor], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Info:
    """What tables and pages say about a method."""

    label: str
    paper: str
    venue: str
    category: str
    shares: tuple[str, ...] = ()
    """Kinds of messages that leave a client besides weights."""
    needs_batchnorm: bool = False
    needs_tokens: bool = False
    """Works on the tokens of a transformer."""
    needs_fresh_sgd: bool = False
    """Reads gradients off the way a client went: SGD, without state from earlier rounds."""
    centralised: bool = False
    """Sees all source data in one place, so it runs on the pooled partition."""


class Method:
    """The hooks, with FedAvg as their default."""

    name: ClassVar[str]
    info: ClassVar[Info]

    def build(self, make: Callable[[], Backbone]) -> Backbone:
        """The network, the same on server and clients; called once."""
        return make()

    def prepare(self, server: Server, clients: Sequence[Client]) -> None:
        """Once, before round 0, with all clients."""

    def exchange(self, server: Server, clients: Sequence[Client]) -> None:
        """At the start of each round, with the chosen clients: what is shared besides weights."""

    def keeps(self, model: Backbone) -> set[str]:
        """Keys of the state that a client keeps its own value of instead of loading the server's.
        They are uploaded and averaged all the same: the server's model is the one tested."""
        return set()

    def receive(self, server: Server, client: Client) -> None:
        """The client takes over the global state, except what it keeps."""
        kept = client.memory.get("kept", {})
        incoming = {key: value for key, value in server.state.items() if key not in kept}
        write(client.state, server.send(client, "weights", incoming))
        write(client.state, kept)

    def learning_rate(self, client: Client) -> float:
        """The client's learning rate of this round; `client.lr` from then on."""
        return client.training.lr_at(client.round)

    def optimizer(self, client: Client) -> torch.optim.Optimizer:
        """The client's optimiser for this round."""
        training, parameters = client.training, client.model.parameters()
        if training.optimizer == "sgd":
            return torch.optim.SGD(
                parameters,
                lr=client.lr,
                momentum=training.momentum,
                weight_decay=training.weight_decay,
                foreach=True,
            )
        kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
        return kinds[training.optimizer](
            parameters, lr=client.lr, weight_decay=training.weight_decay, foreach=True
        )

    def batches(self, client: Client) -> Iterator[Batch]:
        """The client's training batches of this round, from generators that no method touches."""
        training = client.training
        order = batch_order(
            len(client.train),
            training.batch_size,
            client.numpy_generator("batches"),
            training.local_steps,
            training.local_epochs,
        )
        generator = client.torch_generator("transform")
        for positions in order:
            yield client.train.training_batch(positions, generator)

    def augment(self, client: Client, batch: Batch) -> Batch:
        """The batch the loss will see."""
        return batch

    def loss(self, client: Client, batch: Batch) -> torch.Tensor:
        """What one step minimises."""
        return F.cross_entropy(client.model(batch.images), batch.labels)

    def step(self, client: Client, batch: Batch) -> torch.Tensor:
        """One step of local training; gives back the loss, without waiting for its value."""
        client.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(client, batch)
        loss.backward()
        client.descend()
        return loss.detach()

    def local_predictor(self, client: Client) -> Predictor:
        """How a client's own model predicts when the protocol validates during local training."""
        return client.model

    def upload(self, client: Client) -> Update:
        """What the client gives to the server: its whole state, kept entries included."""
        return client.update(client.send("weights", copy_of(client.state)))

    def weigh(self, server: Server, clients: Sequence[Client]) -> list[float]:
        """The clients' weights in the average, summing to 1."""
        sizes = [client.size if server.training.weights == "samples" else 1 for client in clients]
        return [size / sum(sizes) for size in sizes]

    def aggregate(self, server: Server, updates: Iterable[Update]) -> None:
        """The new global state from a stream of updates, each made when it is asked for: clients
        train while this runs, one after the other, so gradients must not be switched off here."""
        total = WeightedSum()
        for update in updates:
            total.add(update.state, update.weight)
        write(server.state, total.result())

    def conclude(self, server: Server, clients: Sequence[Client]) -> None:
        """At the end of each round, when the new global model exists, with the round's clients."""

    def predictors(self, server: Server, clients: Sequence[Client]) -> dict[str, Predictor]:
        """Ways to predict with the global model, each a row; the first is the method's own."""
        return {"global": server.model}


HOOKS = tuple(
    name for name, value in vars(Method).items() if callable(value) and not name.startswith("_")
)

methods: Registry[type[Method]] = Registry("method", "methods")


def register(name: str, **info: Any) -> Callable[[type[Method]], type[Method]]:
    """Class decorator: a frozen dataclass of hyper-parameters, known as `name` from now on."""

    def add(cls: type[Method]) -> type[Method]:
        cls = dataclasses.dataclass(frozen=True)(cls)
        cls.name, cls.info = name, Info(**info)
        return methods.register(name)(cls)

    return add


@functools.cache
def compose(expression: str) -> type[Method]:
    """The class of `a+b+c`: one class with a, b and c as bases, the left one outermost."""
    names = [name.strip() for name in expression.split("+")]
    parts = [methods[name] for name in names]
    if len(parts) == 1:
        return parts[0]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{expression!r} names {name!r} twice")
    _refuse_shared_fields(expression, parts)
    _refuse_shared_helpers(expression, parts)
    _refuse_silenced_hooks(expression, parts)
    try:
        cls = dataclasses.dataclass(frozen=True)(type("+".join(names), tuple(parts), {}))
    except TypeError as error:
        raise UserError(f"{expression!r} cannot be combined in this order: {error}") from error
    cls.name = "+".join(names)
    cls.info = dataclasses.replace(
        parts[0].info,
        label=" + ".join(part.info.label for part in parts),
        shares=tuple(dict.fromkeys(kind for part in parts for kind in part.info.shares)),
        needs_batchnorm=any(part.info.needs_batchnorm for part in parts),
        needs_tokens=any(part.info.needs_tokens for part in parts),
        needs_fresh_sgd=any(part.info.needs_fresh_sgd for part in parts),
        centralised=any(part.info.centralised for part in parts),
    )
    return cls


def _refuse_shared_fields(expression: str, parts: Sequence[type[Method]]) -> None:
    owners: dict[str, type[Method]] = {}
    for part in parts:
        for field in fields(part):
            other = owners.setdefault(field, part)
            if other is not part and not issubclass(other, part):
                raise UserError(
                    f"{expression!r}: {other.name} and {part.name} both have a hyper-parameter "
                    f"{field!r}, so they cannot be combined"
                )


def _refuse_shared_helpers(expression: str, parts: Sequence[type[Method]]) -> None:
    """Two methods' own helpers of one name would be one in the composed class, and wrong in one."""
    for left, right in itertools.combinations(parts, 2):
        ours, theirs = _helpers(left), _helpers(right)
        for name in sorted(ours.keys() & theirs.keys()):
            one, other = ours[name], theirs[name]
            if not issubclass(one, other) and not issubclass(other, one):
                raise UserError(
                    f"{expression!r}: {left.name} and {right.name} both have a helper {name!r}, "
                    f"so they cannot be combined"
                )


def _helpers(cls: type[Method]) -> dict[str, type]:
    """Names that a method adds to the hooks and fields, and the classes they are defined in."""
    found: dict[str, type] = {}
    known = {*vars(Method), "name", "info", *fields(cls)}
    for base in cls.__mro__[: cls.__mro__.index(Method)]:
        for name in vars(base).keys() - known:
            if not name.startswith("__"):
                found.setdefault(name, base)
    return found


def _refuse_silenced_hooks(expression: str, parts: Sequence[type[Method]]) -> None:
    """A hook that does not call `super()` would silently switch off the same hook to its right."""
    for hook in HOOKS:
        changing = [part for part in parts if getattr(part, hook) is not getattr(Method, hook)]
        for left, right in itertools.pairwise(changing):
            if not issubclass(left, right) and not _cooperates(left, hook):
                raise UserError(
                    f"{expression!r}: the {hook} of {left.name} would silence that of {right.name}"
                    f"; put {right.name} first or leave one out"
                )


def _cooperates(cls: type[Method], hook: str) -> bool:
    """Whether every definition of a hook, up to the default, hands on with `super()`."""
    definitions = [vars(base)[hook] for base in cls.__mro__ if hook in vars(base)][:-1]
    return all(
        "__class__" in function.__code__.co_freevars and hook in function.__code__.co_names
        for function in definitions
    )


def make_method(expression: str, hparams: Mapping[str, Any]) -> Method:
    """A method ready to run."""
    cls = compose(expression)
    return cls(**resolve(cls, hparams, expression))


def parts_of(expression: str) -> list[str]:
    return [name.strip() for name in expression.split("+")]


__all__ = [
    "CATEGORIES",
    "Batch",
    "Method",
    "Predictor",
    "compose",
    "make_method",
    "methods",
    "register",
]
