"""What is asked of the cluster: what all tasks of a submission share, and how runs fill them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmark.errors import UserError
from benchmark.execute import Place
from benchmark.spec import RunSpec
from slurm.executor import Executor
from slurm.job import Job
from slurm.ledger import Ledger
from slurm.manifest import Manifest
from slurm.packing import deal, pack
from slurm.profile import Profile, overridden

Arrays = list[list[list[RunSpec]]]
"""Arrays of tasks of runs."""
Cost = Callable[[Sequence[RunSpec]], list[float]]
"""The expected seconds of runs."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What every task of a submission has in common."""

    root: Path
    place: Place
    plugins: tuple[str, ...]
    profile: Profile

    @classmethod
    def of(cls, root: Path, place: Place, plugins: Sequence[str], profile: Profile) -> Request:
        """Nodes start in another folder, so paths become absolute; the profile says whether there
        is a GPU, because this machine may have none."""
        kind = place.device.partition(":")[0]
        if kind not in ("auto", "cpu", "cuda"):
            raise UserError(f"--device {place.device!r}: write auto, cpu or cuda")
        if kind == "cuda" and not profile.gpus:
            raise UserError("--device cuda: this profile asks for no GPU; add --slurm gpus=1")
        device = "cuda" if profile.gpus and kind != "cpu" else "cpu"
        weights = place.weights and str(Path(place.weights).absolute())
        place = dataclasses.replace(
            place, data=place.data.absolute(), device=device, weights=weights
        )
        files = tuple(str(Path(path).absolute()) for path in plugins)
        return cls(Path(root).absolute(), place, files, profile)

    @classmethod
    def again(cls, root: Path, manifest: Manifest, assignments: Sequence[str]) -> Request:
        """As something was submitted before, with changes of its profile."""
        place = Place(**{**manifest.place, "data": Path(manifest.place["data"])})
        profile = overridden(manifest.profile, assignments)
        return cls.of(root, place, manifest.plugins, profile)

    def arrange(self, specs: Sequence[RunSpec], cost: Cost, largest: int) -> Arrays:
        """Pack runs into tasks, and these into arrays of at most `largest`."""
        tasks = pack(cost(specs), self.profile.capacity)
        return deal([[specs[k] for k in task] for task in tasks], largest)

    def executor(self, ledger: Ledger, submission: str, array: int, arrays: int) -> Executor:
        """The user's limit on tasks at the same time is shared by the arrays."""
        folder = ledger.array_folder(submission, array)
        parallelism = max(1, self.profile.array_parallelism // arrays)
        return Executor(folder, (submission, array), self.profile, self.place.threads, parallelism)

    def job(self, specs: Sequence[RunSpec], submission: str, numbers: Mapping[str, int]) -> Job:
        """One task of a submission; `numbers` are those of the runs' claims."""
        return Job(
            specs=list(specs),
            root=self.root,
            place=self.place,
            plugins=list(self.plugins),
            submission=submission,
            claims=[numbers[spec.id] for spec in specs],
            retries=self.profile.retries,
            patience=self.profile.patience,
        )

    def manifest(self, arrays: Arrays, submission: str, numbers: Mapping[str, int]) -> Manifest:
        """The whole submission, to be written down."""
        return Manifest.new(
            submission,
            [spec for tasks in arrays for task in tasks for spec in task],
            profile=dataclasses.asdict(self.profile),
            place={**dataclasses.asdict(self.place), "data": os.fspath(self.place.data)},
            plugins=list(self.plugins),
            arrays=[[[spec.id for spec in task] for task in tasks] for tasks in arrays],
            claims=numbers,
        )
