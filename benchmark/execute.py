"""One run: spec → data → model → rounds → records → result.

A run that was killed at any moment is continued by calling it again: the last checkpoint is taken
up and the records come out the same, bit for bit, as if nothing had happened.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import platform
import subprocess
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmark.backbones.base import make_backbone
from benchmark.backbones.weights import pretrained_name
from benchmark.costs import parameter_count, peak_memory_mb
from benchmark.crew import Crew
from benchmark.errors import Diverged, UserError
from benchmark.evaluation import Evaluator, Record
from benchmark.federation import Client, Round, Server, one_by_one, rounds
from benchmark.method import Method, make_method
from benchmark.results import Damaged, Result, ResultStore, as_columns
from benchmark.seeds import seed_for
from benchmark.spec import RunSpec
from benchmark.state import write
from datasets.base import DomainData, open_dataset, write_atomically
from datasets.partition import Shard, Source, divide, fingerprint
from datasets.samples import Samples
from datasets.splits import make_split
from datasets.transforms import transforms


class Interrupted(Exception):
    """The run was asked to stop and has saved where it is."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where and how runs are carried out; nothing here changes a number."""

    data: Path = Path("data")
    device: str = "cpu"
    threads: int = 1
    client_workers: int = 1
    """Processes that make a round's visits, each on `threads` threads."""
    checkpoint_seconds: float = 30.0
    weights: str | None = None
    """The file of pretrained weights that a spec names by content."""
    keep_model: bool = False
    """Whether what the server holds at the end stays beside the result."""

    def pretrained(self, name: str) -> str:
        """What a spec's `pretrained` means here: a file is found by path and known by content."""
        if name in ("none", "imagenet"):
            return name
        if self.weights is None or pretrained_name(self.weights) != name:
            raise UserError(f"this run starts from {name}; pass that file with --pretrained PATH")
        return self.weights


def preflight(specs: Iterable[RunSpec], place: Place) -> None:
    """Find out now what would make every run fail: absent data, unobtainable weights. Weights are
    fetched here once, not by every worker."""
    for name in dict.fromkeys(spec.dataset for spec in specs):
        open_dataset(name).check_present(place.data)
    for backbone, pretrained in dict.fromkeys((s.backbone, s.pretrained) for s in specs):
        if pretrained != "none":
            make_backbone(backbone, 2, place.pretrained(pretrained))


@dataclasses.dataclass
class Federation:
    """Everything a run needs, made from its spec."""

    method: Method
    server: Server
    clients: list[Client]
    evaluator: Evaluator
    partition: str
    domains: list[str]


def assemble(spec: RunSpec, place: Place) -> Federation:
    """Data, model, server and clients of a run. Only the evaluator gets the target's images."""
    device = torch.device(place.device)
    dataset = open_dataset(spec.dataset)
    dataset.check_domain(spec.target)
    transform = transforms[spec.transform](spec.image_size, device)
    domains = [dataset.load(name, place.data, transform.stored_size) for name in dataset.domains]
    split = make_split(spec.split)
    cuts = [split.cut(data, k, spec.seed) for k, data in enumerate(domains)]
    target = dataset.domains.index(spec.target)
    sources = [
        Source(k, name, domains[k].labels, *cuts[k])
        for k, name in enumerate(dataset.domains)
        if k != target
    ]
    shards = divide(spec.partition, sources, spec.seed)
    visible = [None if k == target else data for k, data in enumerate(domains)]
    method = make_method(spec.method, spec.hparams)

    def make():
        torch.manual_seed(seed_for(spec.seed, "model"))
        return make_backbone(spec.backbone, len(dataset.classes), place.pretrained(spec.pretrained))

    model, working = (method.build(make).to(device) for _ in range(2))
    if spec.training.compile != "off":
        for network in (model, working):
            network.compile(mode=spec.training.compile)
    server = Server(model, spec.training, spec.seed, len(shards))
    clients = [
        Client(
            number,
            shard.name,
            Samples(shard.train, visible, transform, device),
            Samples(shard.val, visible, transform, device),
            server,
            working,
        )
        for number, shard in enumerate(shards)
    ]
    held_out = Samples(
        Shard.of(target, _tested(spec, domains[target], cuts[target][0])),
        domains,
        transform,
        device,
    )
    evaluator = Evaluator(held_out, dataset.domains, spec.target, spec.seed)
    return Federation(
        method, server, clients, evaluator, fingerprint(shards), list(dataset.domains)
    )


def _tested(spec: RunSpec, data: DomainData, inner: np.ndarray) -> np.ndarray:
    """Rows of the target domain that are tested."""
    if spec.test_part == "in":
        return inner
    if spec.test_part == "listed":
        if "test" not in data.parts:
            raise UserError(f"{spec.dataset} has no published test part; use --test-part all")
        return data.parts["test"]
    return np.arange(len(data))


@dataclasses.dataclass
class Progress:
    """What has been measured so far; saved with every checkpoint."""

    next_round: int = 0
    records: list[Record] = dataclasses.field(default_factory=list)
    train_loss: list[float] = dataclasses.field(default_factory=list)
    steps: int = 0
    train_seconds: float = 0.0
    evaluation_seconds: float = 0.0


def execute(
    spec: RunSpec,
    store: ResultStore,
    place: Place = Place(),
    on_round: Callable[[int], None] = lambda done: None,
    stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Carry out a run, or what is left of it, and store its result."""
    torch.set_num_threads(place.threads)
    federation = assemble(spec, place)
    method, server, clients = federation.method, federation.server, federation.clients
    progress = _resume(spec, store, federation)
    on_round(progress.next_round)
    with _hands(spec, place, federation) as visits:
        saved = began = time.monotonic()
        for round in rounds(method, server, clients, progress.next_round, visits):
            began = _judge(federation, round, progress, began)
            on_round(progress.next_round)
            stopping = stop()
            if stopping or began - saved >= place.checkpoint_seconds:
                _save(spec, store, federation, progress)
                saved = time.monotonic()
            if stopping and progress.next_round < spec.training.rounds:
                raise Interrupted(str(spec))
    result = Result(
        spec=spec,
        about={
            "label": method.info.label,
            "category": method.info.category,
            "predictor": next(iter(method.predictors(server, clients))),
            "domains": federation.domains,
        },
        records=as_columns(progress.records),
        train_loss=progress.train_loss,
        partition=federation.partition,
        costs=_costs(federation, progress, torch.device(place.device)),
        environment=environment(place),
    )
    if place.keep_model:
        _keep(spec, store, server)
    store.put(result)
    return result


def _keep(spec: RunSpec, store: ResultStore, server: Server) -> None:
    """The final global model; tensors and builtins only."""
    kept = {"id": spec.id, "state": dict(server.state), "memory": server.memory}
    write_atomically(store.model_path(spec), lambda path: torch.save(kept, path))


@contextlib.contextmanager
def _hands(spec: RunSpec, place: Place, federation: Federation) -> Iterator[Callable]:
    """Who makes the visits of a round: this process, or several others at a time."""
    everyone = len(federation.clients)
    count = min(place.client_workers, spec.training.clients_per_round or everyone, everyone)
    if count == 1:
        yield one_by_one
        return
    with contextlib.closing(Crew(functools.partial(assemble, spec, place), count)) as crew:
        yield crew.visits


def _judge(federation: Federation, round: Round, progress: Progress, began: float) -> float:
    """Evaluate the global model where the protocol reads it and note what the round was; the time
    when this was done."""
    trained = time.monotonic()
    if federation.server.training.evaluates(round.number):
        predictors = federation.method.predictors(federation.server, federation.clients)
        progress.records += federation.evaluator.evaluate(predictors, round.number, round.chosen)
    now = time.monotonic()
    progress.next_round = round.number + 1
    progress.train_loss.append(round.loss)
    progress.steps += round.steps
    progress.train_seconds += trained - began
    progress.evaluation_seconds += now - trained
    return now


def _save(spec: RunSpec, store: ResultStore, federation: Federation, progress: Progress) -> None:
    """Tensors and builtins only, replaced atomically."""
    checkpoint = {
        "id": spec.id,
        "state": dict(federation.server.state),
        "server_memory": federation.server.memory,
        "client_memories": [client.memory for client in federation.clients],
        "traffic": dict(federation.server.traffic.counts),
        "progress": dataclasses.asdict(progress),
    }
    write_atomically(store.checkpoint_path(spec), lambda path: torch.save(checkpoint, path))


def _resume(spec: RunSpec, store: ResultStore, federation: Federation) -> Progress:
    """Take up the last checkpoint if there is a sound one; set a damaged one aside."""
    path = store.checkpoint_path(spec)
    device = federation.clients[0].train.device
    try:
        checkpoint = torch.load(path, map_location=device, weights_only=True)
        if checkpoint["id"] != spec.id:
            raise ValueError("it belongs to another run")
        saved = checkpoint["progress"]
        records = [Record(**record) for record in saved.pop("records")]
        progress = Progress(**saved, records=records)
        write(federation.server.state, checkpoint["state"])
        memories = checkpoint["client_memories"]
        for client, memory in zip(federation.clients, memories, strict=True):
            client.memory = memory
        federation.server.memory = checkpoint["server_memory"]
        federation.server.traffic.counts.update(checkpoint["traffic"])
        return progress
    except FileNotFoundError:
        return Progress()
    except Exception as error:
        aside = store.set_aside(path)
        warnings.warn(
            f"checkpoint {path} is damaged ({type(error).__name__}); kept as {aside.name}, "
            f"the run starts over",
            stacklevel=2,
        )
        return Progress()


def _costs(federation: Federation, progress: Progress, device: torch.device) -> dict[str, Any]:
    """Measured in the run: per round and direction, per step, per image."""
    evaluated = sum(record.count for record in progress.records)
    per_round = {
        kind: total / progress.next_round
        for kind, total in sorted(federation.server.traffic.counts.items())
    }
    return {
        "parameters": parameter_count(federation.server.model),
        "bytes_per_round": per_round,
        "steps": progress.steps,
        "train_seconds": progress.train_seconds,
        "ms_per_step": 1000 * progress.train_seconds / progress.steps,
        "evaluation_seconds": progress.evaluation_seconds,
        "ms_per_evaluated_image": 1000 * progress.evaluation_seconds / max(1, evaluated),
        "peak_memory_mb": peak_memory_mb(device),
    }


def environment(place: Place) -> dict[str, Any]:
    """What a reader needs to know about where the numbers come from."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "device": torch.cuda.get_device_name() if place.device.startswith("cuda") else "cpu",
        "threads": place.threads,
        "commit": _commit(),
    }


@functools.cache
def _commit() -> str | None:
    here = Path(__file__).resolve().parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None


def attempt(
    spec: RunSpec,
    store: ResultStore,
    place: Place,
    on_round: Callable[[int], None] = lambda done: None,
    stop: Callable[[], bool] = lambda: False,
) -> str | None:
    """Execute a run unless it is stored. One that fails is recorded as failed, with its reason,
    which is what comes back; stopping it is no failure."""
    try:
        if not already_stored(spec, store):
            execute(spec, store, place, on_round, stop)
        return None
    except (Interrupted, BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:
        kind = "" if isinstance(error, Diverged | UserError) else f"{type(error).__name__}: "
        reason = f"{kind}{error}".splitlines()[0]
        store.put_failure(spec, reason, traceback.format_exc())
        return reason


def already_stored(spec: RunSpec, store: ResultStore) -> bool:
    """Whether another sweep has finished this run meanwhile; a damaged file is set aside."""
    try:
        return store.get(spec) is not None
    except Damaged as error:
        aside = store.set_aside(store.path(spec))
        warnings.warn(f"result {aside} is damaged ({error}); kept, run again", stacklevel=2)
        return False
