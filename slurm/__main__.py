"""`python -m slurm`: look at sweeps on the cluster, try again, cancel, read logs."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from time import sleep

from benchmark.errors import ArgumentParser, UserError, command_line
from benchmark.estimate import expected_seconds
from benchmark.hparams import fields
from benchmark.results import ResultStore
from benchmark.spec import RunSpec
from slurm import scheduler
from slurm.display import CLEAR, render, use_colour
from slurm.ledger import Ledger
from slurm.logs import logs
from slurm.manifest import Manifest
from slurm.profile import Profile, known_profiles, plain, user_file
from slurm.status import status
from slurm.wording import counted


@command_line
def main(arguments: Sequence[str] | None = None) -> int | None:
    parser = ArgumentParser(prog="python -m slurm", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (action, add_options) in COMMANDS.items():
        command = commands.add_parser(name, help=action.__doc__, description=action.__doc__)
        command.set_defaults(action=action)
        add_options(command)
    options = parser.parse_args(arguments)
    return options.action(options)


def show_status(options: argparse.Namespace) -> None:
    """how every submitted run stands"""
    ledger = opened(options.out)
    colour = use_colour() and not options.json
    try:
        while True:
            found = status(ledger)
            if options.json:
                text = json.dumps(found.to_json())
            else:
                text = render(found, colour, everything=options.runs)
            print(CLEAR + text if options.watch and colour else text, flush=True)
            if not options.watch or not found.in_state("running", "pending", "unknown"):
                return
            sleep(options.every)
    except KeyboardInterrupt:  # how one stops watching
        return


def retry(options: argparse.Namespace) -> None:
    """submit failed and lost runs again, as they were submitted before"""
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


def by_submission(ledger: Ledger, runs: Sequence[str]) -> list[tuple[Manifest, list[RunSpec]]]:
    """The runs with the submission that each stands in."""
    owners = ledger.owners()
    groups: dict[str, list[RunSpec]] = {}
    for run in runs:
        groups.setdefault(owners[run].submission, []).append(owners[run].spec(run))
    return [(ledger.manifest(submission), specs) for submission, specs in groups.items()]


def submit_again(manifest: Manifest, specs: list[RunSpec], options: argparse.Namespace) -> None:
    import benchmark.without_torch  # noqa: F401  (before anything imports torch)
    from benchmark.registry import load_plugin
    from slurm.launch import submit, summary
    from slurm.request import Request

    for path in manifest.plugins:
        load_plugin(path)
    store = ResultStore(options.out)
    request = Request.again(store.root, manifest, options.slurm)
    found = store.collect()
    done = submit(specs, request, lambda some: expected_seconds(some, found, request.place.device))
    print(summary(done, store))


def cancel(options: argparse.Namespace) -> None:
    """cancel every live task of this store; what is done or saved stays"""
    manifests = opened(options.out).manifests()
    names = {manifest.submission for manifest in manifests}
    users = [manifest.user for manifest in manifests]
    if count := scheduler.cancel_tasks(lambda task: task[0] in names, users):
        print(f"cancelled {counted(count, 'task')}; the same sweep command continues")
    else:
        print("no task of this store is live: nothing to cancel")


def show_logs(options: argparse.Namespace) -> None:
    """what the task of a run printed, and why the run failed"""
    print(logs(opened(options.out), options.run, options.lines))


def show_profiles(options: argparse.Namespace) -> None:
    """what can be asked of the cluster: keys with their defaults, and the profiles there are"""
    print("keys:")
    for name, field in fields(Profile).items():
        print(f"  {name:<18} {plain(field.default):<10} {field.metadata['doc']}")
    print(f"\nprofiles (yours go to {user_file()}):")
    for name, table in known_profiles().items():
        print(f"  {name:<18} {', '.join(f'{k}={v}' for k, v in table.items()) or 'the defaults'}")


def opened(root: Path) -> Ledger:
    if not root.is_dir():
        raise UserError(f"no store at {str(root)!r}; name it with --out, as in the sweep")
    return Ledger(root)


def at_least_one(kind: Callable[[str], float]) -> Callable[[str], float]:
    """The type of an option."""

    def number(text: str) -> float:
        value = kind(text)
        if not 1 <= value < math.inf:
            raise argparse.ArgumentTypeError(f"{text} is not a number of at least 1")
        return value

    number.__name__ = kind.__name__
    return number


def store_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", type=Path, default=Path("runs"), help="the result store")


def status_options(command: argparse.ArgumentParser) -> None:
    store_options(command)
    command.add_argument("--watch", action="store_true", help="again and again until all is over")
    command.add_argument(
        "--every", type=at_least_one(float), default=10.0, metavar="SECONDS", help="with --watch"
    )
    command.add_argument("--json", action="store_true", help="for programs")
    command.add_argument("--runs", action="store_true", help="list every run")


def retry_options(command: argparse.ArgumentParser) -> None:
    store_options(command)
    command.add_argument("--failed", action="store_true", help="runs that failed by themselves")
    command.add_argument("--lost", action="store_true", help="runs whose tasks are gone")
    command.add_argument(
        "--slurm", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="as in a sweep"
    )


def logs_options(command: argparse.ArgumentParser) -> None:
    store_options(command)
    command.add_argument("run", metavar="RUN", help="id of a run, or how it begins")
    command.add_argument(
        "--lines", type=at_least_one(int), default=40, metavar="N", help="of each file"
    )


COMMANDS = {
    "status": (show_status, status_options),
    "retry": (retry, retry_options),
    "cancel": (cancel, store_options),
    "logs": (show_logs, logs_options),
    "profiles": (show_profiles, lambda command: None),
}

if __name__ == "__main__":
    main()
