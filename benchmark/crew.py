"""Clients in parallel: processes that make the visits of a round, several at a time.

A worker has the whole federation assembled as the main process has it, and keeps nothing from one
visit to the next: the global state comes with every round, a client's memory and messages come with
the visit and go back with its update. So the numbers depend neither on the count of workers nor on
who made which visit. Messages are what a checkpoint may hold, tensors and builtins, saved the same
way, which keeps even the memory layout.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import torch

from benchmark.federation import Client, Server, Update, Visit, visit
from benchmark.method import Method
from benchmark.registry import load_plugin, loaded_plugins
from benchmark.state import write

if TYPE_CHECKING:
    from benchmark.execute import Federation

AHEAD = 2
"""Visits per worker that may be under way or waiting to be added up: memory stays bounded."""


class Crew:
    """Worker processes with one federation each, made there by `assemble`."""

    def __init__(self, assemble: Callable[[], Federation], count: int):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["benchmark.launch", "benchmark.crew", "methods"])
        self._connections: list[Connection] = []
        self._processes = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(theirs, assemble, torch.get_num_threads(), loaded_plugins()),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    def visits(self, method: Method, server: Server, chosen: Sequence[Client]) -> Iterator[Visit]:
        """The visits of one round in the order of `chosen`, whoever is ready first."""
        begin = packed((server.round, server.state, server.memory))
        for connection in self._connections:
            _hand(connection, begin)
        idle, waiting = deque(self._connections), deque(chosen)
        busy: dict[Connection, Client] = {}
        made: dict[int, Visit] = {}
        for client in chosen:
            while client.id not in made:
                while idle and waiting and len(busy) + len(made) < AHEAD * len(self._connections):
                    connection = idle.popleft()
                    busy[connection] = waiting.popleft()
                    _hand(connection, _task(busy[connection]))
                for connection in wait(list(busy)):
                    idle.append(connection)
                    one = busy.pop(connection)
                    made[one.id] = _taken_back(_received(connection), one, server)
            yield made.pop(client.id)

    def close(self) -> None:
        """End the workers; what they were doing is not needed any more."""
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.terminate()
            process.join()


def packed(message: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(message, buffer)
    return buffer.getvalue()


def unpacked(data: bytes, device: torch.device) -> Any:
    return torch.load(io.BytesIO(data), map_location=device, weights_only=True)


def _task(client: Client) -> bytes:
    return packed((client.id, client.memory, client.inbox, client.scratch))


@contextlib.contextmanager
def _alive() -> Iterator[None]:
    """A pipe that is broken means that its worker is gone."""
    try:
        yield
    except (EOFError, BrokenPipeError, ConnectionResetError) as end:
        raise RuntimeError("a client worker died; out of memory?") from end


def _hand(connection: Connection, message: bytes) -> None:
    with _alive():
        connection.send_bytes(message)


def _received(connection: Connection) -> bytes:
    """A worker's answer; what went wrong there is raised here."""
    with _alive():
        error = connection.recv()
        if error is None:
            return connection.recv_bytes()
    raise error


def _taken_back(data: bytes, client: Client, server: Server) -> Visit:
    """The visit that a worker made, and what it changed in the client and in the ledger."""
    answer = unpacked(data, client.train.device)
    client.memory = answer["memory"]
    server.traffic.counts.update(answer["traffic"])
    return Visit(Update(**answer["update"]), answer["loss"], answer["steps"])


def _serve(
    connection: Connection,
    assemble: Callable[[], Federation],
    threads: int,
    plugins: Sequence[str],
) -> None:
    """A worker's life: rounds begin, visits are asked for, until the other side hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what Ctrl-C means
    torch.set_num_threads(threads)
    for path in plugins:
        load_plugin(path)
    federation = assemble()
    with contextlib.suppress(EOFError, OSError):
        while True:
            message = unpacked(connection.recv_bytes(), federation.clients[0].train.device)
            if len(message) == 3:
                _begin(federation.server, *message)
            else:
                _answer(connection, federation, *message)


def _begin(server: Server, round: int, state: dict, memory: dict) -> None:
    server.round, server.memory = round, memory
    write(server.state, state)


def _answer(
    connection: Connection,
    federation: Federation,
    number: int,
    memory: dict,
    inbox: dict,
    scratch: dict,
) -> None:
    """Make one visit; a failure is the parent's to judge."""
    client, server = federation.clients[number], federation.server
    client.round, client.memory, client.inbox, client.scratch = server.round, memory, inbox, scratch
    server.traffic.counts.clear()
    try:
        made = visit(federation.method, server, client)
    except Exception as error:
        connection.send(error)
        return
    connection.send(None)
    connection.send_bytes(
        packed(
            {
                "update": vars(made.update),
                "loss": made.loss,
                "steps": made.steps,
                "memory": client.memory,
                "traffic": dict(server.traffic.counts),
            }
        )
    )
    client.memory, client.inbox, client.scratch = {}, {}, {}
