"""Finished runs and their models.

A result holds no model. One that was kept (`--keep-model`) is loaded; otherwise the run is repeated
aside, which gives the same bits, and its model is kept then. The repeated numbers are compared with
the stored ones, so a plot never shows another model than the one the result is about without
saying so.
"""

from __future__ import annotations

import dataclasses
import difflib
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from benchmark.backbones.base import Backbone
from benchmark.errors import UserError
from benchmark.execute import Federation, Place, assemble, attempt, preflight
from benchmark.results import Result, ResultStore
from benchmark.spec import RunSpec
from benchmark.state import write
from datasets.base import write_atomically
from datasets.samples import Batch
from leaderboard.fields import parse_conditions, restricted
from leaderboard.gather import gather
from leaderboard.submissions.rerun import differences

MOST = 8
"""Runs at a time: each may have to be repeated."""


def find_runs(
    root: Path,
    ids: Sequence[str],
    where: Sequence[str],
    misfit: Callable[[RunSpec], str | None],
) -> list[Result]:
    """The finished runs that ids, or beginnings of them, and conditions name, as far as a plot can
    be made of them; `misfit` says why it cannot."""
    found = restricted(gather(root), parse_conditions(where))
    if not found.results:
        raise UserError(f"no finished run in {root} with {' '.join(where)}")
    if ids:
        called = [_called(beginning, found.results, root) for beginning in ids]
        chosen = list({result.spec.id: result for result in called}.values())
        for result in chosen:
            if reason := misfit(result.spec):
                raise UserError(f"{result.spec}: {reason}")
        return chosen
    chosen = [result for result in found.results if _reason(misfit, result.spec) is None]
    if not chosen:
        spec = found.results[0].spec
        raise UserError(f"no run in {root} fits, e.g. {spec}: {_reason(misfit, spec)}")
    if len(chosen) > MOST:
        raise UserError(
            f"{len(chosen)} runs fit, e.g. {chosen[0].spec}; name some by id, or narrow them to "
            f"{MOST} with --where, e.g. --where method={chosen[0].spec.method} seed=0"
        )
    return chosen


def _reason(misfit: Callable[[RunSpec], str | None], spec: RunSpec) -> str | None:
    """Why a run does not fit; one of a plugin that is not loaded does not either."""
    try:
        return misfit(spec)
    except UserError as error:
        return str(error)


def _called(beginning: str, results: Sequence[Result], root: Path) -> Result:
    """The one run whose id begins so."""
    fitting = [result for result in results if result.spec.id.startswith(beginning.lower())]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        some = ", ".join(result.spec.id for result in fitting[:3]) + ", …" * (len(fitting) > 3)
        raise UserError(f"{len(fitting)} runs begin with {beginning!r} ({some}); write more of it")
    heads = {result.spec.id[: len(beginning)]: result for result in results}
    near = difflib.get_close_matches(beginning.lower(), heads, n=1, cutoff=0.5)
    hint = f"did you mean {heads[near[0]].spec}?" if near else f"e.g. {results[0].spec}"
    raise UserError(f"no run {beginning!r} in {root}, {hint}")


@dataclasses.dataclass(frozen=True)
class Finished:
    """A finished run: its result, and its federation as it was at the end."""

    result: Result
    federation: Federation

    @property
    def spec(self) -> RunSpec:
        return self.result.spec

    @property
    def model(self) -> Backbone:
        return self.federation.server.model.eval()

    @property
    def title(self) -> str:
        return f"{self.result.about['label']}, {self.spec.target} unseen, seed {self.spec.seed}"

    @property
    def domains(self) -> list[str]:
        return self.federation.domains

    def batches(self) -> Iterator[Batch]:
        """What was judged: the clients' validation samples of the source domains, which nobody
        trained on, and the test samples of the unseen one."""
        for client in self.federation.clients:
            yield from client.val.evaluation_batches()
        yield from self.federation.evaluator.held_out.evaluation_batches()


def open_run(result: Result, store: ResultStore, place: Place) -> Finished:
    """A finished run with its model, kept or made again."""
    spec = result.spec
    threads = result.environment.get("threads")  # they and the device decide about the last bits
    if isinstance(threads, int) and threads > 0:
        place = dataclasses.replace(place, threads=threads)
    if result.environment.get("device") == "cpu":
        place = dataclasses.replace(place, device="cpu")
    torch.set_num_threads(place.threads)
    preflight([spec], place)
    kept = _kept(spec, store, place.device)
    if kept is None:
        kept = _repeat(result, store, place)
    for difference in kept.get("differs", ()):
        print(f"note: {spec} as repeated is not the stored one: {difference}", file=sys.stderr)
    federation = assemble(spec, place)
    write(federation.server.state, kept["state"])
    federation.server.memory = kept["memory"]
    return Finished(result, federation)


def _kept(spec: RunSpec, store: ResultStore, device: str) -> dict[str, Any] | None:
    """The kept model of a run; a damaged one is set aside."""
    path = store.model_path(spec)
    try:
        kept = torch.load(path, map_location=device, weights_only=True)
        if kept["id"] != spec.id or not {"state", "memory"} <= set(kept):
            raise ValueError("it belongs to another run")
        return kept
    except FileNotFoundError:
        return None
    except Exception as error:
        aside = store.set_aside(path)
        kind = type(error).__name__
        print(f"note: model {path} is damaged ({kind}); kept as {aside.name}", file=sys.stderr)
        return None


def _repeat(result: Result, store: ResultStore, place: Place) -> dict[str, Any]:
    """Carry out a run once more, beside the store, and keep its model."""
    spec = result.spec
    print(f"{spec} has no kept model: it is repeated, and kept", file=sys.stderr)
    store.check_writable()
    aside = ResultStore(store.root / ".repeated" / spec.id)
    with tqdm(total=spec.training.rounds, unit="round", disable=None) as bar:
        failure = attempt(
            spec,
            aside,
            dataclasses.replace(place, keep_model=True),
            on_round=lambda done: bar.update(done - bar.n),
        )
    if failure is not None:
        raise UserError(f"{spec} cannot be repeated: {failure}")
    kept = torch.load(aside.model_path(spec), map_location=place.device, weights_only=True)
    kept["differs"] = list(differences(result, aside.get(spec)))
    write_atomically(store.model_path(spec), lambda path: torch.save(kept, path))
    shutil.rmtree(aside.root)
    return kept
