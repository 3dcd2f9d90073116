"""What would make every run fail is found out before a submission, in a process of its own.

Absent data, weights that cannot be had, images too small for the network: the last two need torch,
which a submission does without. Weights are fetched here, because nodes often have no network.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import benchmark.without_torch  # first, before anything imports torch
from benchmark.backbones.base import check_image_size
from benchmark.errors import UserError, command_line
from benchmark.execute import Place, preflight
from benchmark.registry import load_plugin
from benchmark.spec import RunSpec


def check_elsewhere(specs: Iterable[RunSpec], place: Place, plugins: Iterable[str]) -> None:
    """Check one run of each kind in a new process; a user error there is one here."""
    kinds = {(s.dataset, s.backbone, s.pretrained, s.image_size): s.to_json() for s in specs}
    question = {
        "specs": list(kinds.values()),
        "place": {**dataclasses.asdict(place), "data": str(place.data)},
        "plugins": list(plugins),
    }
    command = [sys.executable, "-m", "slurm.preflight"]
    answer = subprocess.run(command, input=json.dumps(question), capture_output=True, text=True)
    said = (answer.stderr.strip().splitlines() or ["no reason given"])[-1]
    if answer.returncode == 2:
        raise UserError(said.removeprefix("error: "))
    if answer.returncode:  # e.g. a torch that does not load on this machine: the nodes may know
        print(f"note: data and weights could not be checked here: {said}", file=sys.stderr)


def check_here(specs: Iterable[RunSpec], place: Place, plugins: Iterable[str]) -> None:
    """Check everything that can be checked on this machine."""
    for path in plugins:
        load_plugin(path)
    specs = list(specs)
    try:
        preflight(specs, place)
    except benchmark.without_torch.NeedsTorch:
        return
    for backbone, size in dict.fromkeys((spec.backbone, spec.image_size) for spec in specs):
        check_image_size(backbone, size)


@command_line
def main() -> None:
    question = json.load(sys.stdin)
    place = Place(**{**question["place"], "data": Path(question["place"]["data"])})
    check_here(map(RunSpec.from_json, question["specs"]), place, question["plugins"])


if __name__ == "__main__":
    main()
