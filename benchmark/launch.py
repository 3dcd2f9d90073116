"""The local launcher: a pool of worker processes that each carry out one run after another.

A worker reports rounds and endings through a pipe of its own. One that dies, by whatever signal,
costs only its present run: that run is recorded as failed and a new worker takes its place.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import signal
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

from benchmark.execute import Interrupted, Place, attempt
from benchmark.results import ResultStore
from benchmark.spec import RunSpec

PATIENCE = 10.0
"""Seconds that workers have to save their place when the user stops a sweep."""


@dataclasses.dataclass(frozen=True)
class Event:
    """Something a worker tells: `kind` is round, done, failed or note."""

    spec: RunSpec
    kind: str
    round: int = 0
    text: str = ""
    seconds: float = 0.0


class Worker:
    """One process and the run it is busy with."""

    def __init__(self, store: ResultStore, place: Place, plugins: Sequence[str]):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["benchmark.launch", "methods"])
        self.place = place
        self.spec: RunSpec | None = None
        self.connection, theirs = context.Pipe()
        self.process = context.Process(
            target=_work, args=(theirs, store.root, place, list(plugins))
        )
        self.process.start()
        theirs.close()

    def begin(self, spec: RunSpec) -> None:
        self.spec = spec
        self.connection.send(spec)


def launch(
    specs: Sequence[RunSpec],
    store: ResultStore,
    places: Sequence[Place],
    workers: int,
    plugins: Sequence[str] = (),
) -> Iterator[Event]:
    """Carry out the runs on `workers` processes, yielding what happens as it happens."""
    waiting = deque(specs)
    crew = [
        Worker(store, places[k % len(places)], plugins) for k in range(min(workers, len(specs)))
    ]
    try:
        for worker in crew:
            worker.begin(waiting.popleft())
        while any(worker.spec for worker in crew):
            busy = {worker.connection: worker for worker in crew if worker.spec}
            for connection in wait(list(busy)):
                worker = busy[connection]
                try:
                    event = connection.recv()
                except (EOFError, ConnectionResetError):
                    event = _died(worker, store)
                    crew.remove(worker)
                    worker = Worker(store, worker.place, plugins)
                    crew.append(worker)
                yield event
                if event.kind in ("done", "failed"):
                    worker.spec = None
                    if waiting:
                        worker.begin(waiting.popleft())
    finally:
        _dismiss(crew)


def _died(worker: Worker, store: ResultStore) -> Event:
    worker.process.join(PATIENCE)
    code = worker.process.exitcode
    how = f"signal {signal.Signals(-code).name}" if code and code < 0 else f"exit code {code}"
    reason = f"the worker process died ({how}); out of memory?"
    store.put_failure(worker.spec, reason, "")
    return Event(worker.spec, "failed", text=reason)


def _dismiss(crew: Sequence[Worker]) -> None:
    """Ask every worker to save its place and go; those that do not are stopped."""
    for worker in crew:
        if worker.spec is None:
            with contextlib.suppress(OSError):
                worker.connection.send(None)
        elif worker.process.is_alive():
            worker.process.terminate()
    deadline = time.monotonic() + PATIENCE
    for worker in crew:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.connection.close()


def _work(connection: Connection, root: Path, place: Place, plugins: list[str]) -> None:
    """A worker's life: take a spec, run it, tell how it went, until told to go."""
    from benchmark.registry import load_plugin

    stopping = False

    def stop(*_) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    signal.signal(signal.SIGTERM, stop)
    for path in plugins:
        load_plugin(path)
    store = ResultStore(root)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError, Interrupted):
        while (spec := connection.recv()) is not None:
            connection.send(_attempt(spec, store, place, connection, lambda: stopping))


def _attempt(spec: RunSpec, store: ResultStore, place: Place, connection, stopping) -> Event:
    began = time.monotonic()
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always", UserWarning)
        reason = attempt(
            spec,
            store,
            place,
            on_round=lambda done: connection.send(Event(spec, "round", done)),
            stop=stopping,
        )
    for note in notes:
        connection.send(Event(spec, "note", text=str(note.message)))
    seconds = time.monotonic() - began
    if reason is not None:
        return Event(spec, "failed", text=reason, seconds=seconds)
    return Event(spec, "done", seconds=seconds)
