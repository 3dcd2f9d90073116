"""`python -m slurm`: look at a sweep on the cluster, try again, cancel, read logs.

status [--watch] [--json]    runs done, running, pending, failed and lost, by method and target
retry [--failed] [--lost]    submit what went wrong again, with the profile it had
cancel                       cancel every live task; what is done or saved stays
logs RUN                     what the task of a run printed, and why it failed
profiles                     what can be asked of the cluster
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

from benchmark.errors import ArgumentParser, UserError, command_line
from benchmark.estimate import expected_seconds
from benchmark.hparams import fields
from benchmark.results import ResultStore
from benchmark.spec import RunSpec
from slurm import scheduler
from slurm.display import render, use_colour
from slurm.ledger import Ledger, Manifest
from slurm.profile import Profile, known_profiles, overridden, user_file
from slurm.status import status

CLEAR = "\033[H\033[2J"


@command_line
def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(
        prog="python -m slurm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, action in COMMANDS.items():
        command = commands.add_parser(name, help=action.__doc__.splitlines()[0])
        command.set_defaults(action=action)
        if name != "profiles":
            command.add_argument("--out", type=Path, default=Path("runs"), help="the result store")
        OPTIONS.get(name, lambda command: None)(command)
    options = parser.parse_args(arguments)
    return options.action(options)


def status_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--watch", action="store_true", help="again and again until all is over")
    command.add_argument("--every", type=float, default=10.0, metavar="SECONDS")
    command.add_argument("--json", action="store_true", help="for programs")
    command.add_argument("--runs", action="store_true", help="list every run")


def retry_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--failed", action="store_true", help="runs that failed by themselves")
    command.add_argument("--lost", action="store_true", help="runs whose tasks are gone")
    command.add_argument(
        "--slurm", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="as in a sweep"
    )


def logs_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", help="id of a run, or how it begins")
    command.add_argument("--lines", type=int, default=40, metavar="N", help="of each file")


def show_status(options: argparse.Namespace) -> int:
    """How every submitted run stands."""
    ledger = opened(options.out)
    colour = use_colour() and not options.json
    while True:
        found = status(ledger)
        text = (
            json.dumps(found.to_json())
            if options.json
            else render(found, colour, everything=options.runs)
        )
        print((CLEAR if options.watch and colour else "") + text, flush=True)
        if not options.watch or not found.in_state("running", "pending", "unknown"):
            return 0
        time.sleep(max(1.0, options.every))


def retry(options: argparse.Namespace) -> int:
    """Submit failed and lost runs again."""
    ledger = opened(options.out)
    every = not (options.failed or options.lost)
    wanted = [state for state in ("failed", "lost") if every or getattr(options, state)]
    found = status(ledger)
    if found.note:
        raise UserError(f"{found.note} (nothing was submitted)")
    runs = [run.run for run in found.in_state(*wanted)]
    if not runs:
        print(f"no run is {' or '.join(wanted)}")
    for manifest, specs in by_submission(ledger, runs):
        submit_again(manifest, specs, options)
    return 0


def submit_again(manifest: Manifest, specs: list[RunSpec], options: argparse.Namespace) -> None:
    """Submit runs as they were submitted before."""
    import benchmark.without_torch  # noqa: F401  (before anything imports torch)
    from benchmark.execute import Place
    from benchmark.registry import load_plugin
    from slurm import launch

    for path in manifest.plugins:
        load_plugin(path)
    store = ResultStore(options.out)
    request = launch.Request(
        root=store.root.absolute(),
        place=Place(**{**manifest.place, "data": Path(manifest.place["data"])}),
        plugins=tuple(manifest.plugins),
        profile=overridden(manifest.profile, options.slurm),
    )
    found = store.collect()
    done = launch.submit(
        specs, request, lambda some: expected_seconds(some, found, request.place.device)
    )
    print(launch.summary(done, store))


def by_submission(ledger: Ledger, runs: Sequence[str]) -> list[tuple[Manifest, list[RunSpec]]]:
    """The runs with the submission that each stands in."""
    owners = ledger.owners()
    groups: dict[str, list[RunSpec]] = {}
    for run in runs:
        groups.setdefault(owners[run].submission, []).append(owners[run].spec(run))
    return [(ledger.manifest(submission), specs) for submission, specs in groups.items()]


def cancel(options: argparse.Namespace) -> int:
    """Cancel every live task of this store."""
    ledger = opened(options.out)
    manifests = {manifest.submission: manifest for manifest in ledger.manifests()}
    live = scheduler.live_tasks(manifest.user for manifest in manifests.values())
    jobs = [one.job for (submission, _, _), one in live.items() if submission in manifests]
    scheduler.cancel(jobs)
    print(f"cancelled {len(jobs)} tasks; the same sweep command continues them")
    return 0


def logs(options: argparse.Namespace) -> int:
    """The last lines that the task of a run wrote."""
    ledger = opened(options.out)
    manifest, run = ledger.find_run(options.run)
    array, task = manifest.places.get(run, (0, 0))
    folder = ledger.array_folder(manifest.submission, array)
    alone = len(manifest.arrays[array]) == 1
    pattern = "*_0_log.*" if alone else f"*_{task}_0_log.*"
    paths = sorted(folder.glob(pattern))
    if not paths:
        print(f"run {run} has not begun: no log in {folder}")
    for path in paths:
        lines = path.read_text(errors="replace").splitlines()[-options.lines :]
        print(f"==> {path}", *lines, "", sep="\n")
    failure = ResultStore(options.out).failure_path(manifest.spec(run))
    if failure.exists():
        data = json.loads(failure.read_text())
        print(f"==> {failure}", data["reason"], data["detail"], sep="\n")
    return 0


def profiles(options: argparse.Namespace) -> int:
    """Keys of a profile with their defaults, and the profiles there are."""
    print("keys:")
    for name, field in fields(Profile).items():
        default = "none" if field.default in (None, ()) else field.default
        print(f"  {name:<18} {default!s:<10} {field.metadata['doc']}")
    print(f"\nprofiles (yours go to {user_file()}):")
    for name, table in known_profiles().items():
        print(f"  {name:<18} {', '.join(f'{k}={v}' for k, v in table.items()) or 'the defaults'}")
    return 0


def opened(root: Path) -> Ledger:
    if not root.is_dir():
        raise UserError(f"no store at {str(root)!r}; name it with --out, as in the sweep")
    return Ledger(root)


COMMANDS = {
    "status": show_status,
    "retry": retry,
    "cancel": cancel,
    "logs": logs,
    "profiles": profiles,
}
OPTIONS = {"status": status_options, "retry": retry_options, "logs": logs_options}

if __name__ == "__main__":
    main()
