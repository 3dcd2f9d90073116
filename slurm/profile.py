"""Profiles: what to ask the cluster for. Ours, the user's file over them, flags over both."""

from __future__ import annotations

import dataclasses
import datetime
import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmark.errors import UserError, unknown
from benchmark.hparams import defaults, fields, hp, resolve

OURS = Path(__file__).with_name("profiles.toml")
CONTINUE_MARGIN = 20
"""Seconds of the warning that are left for going back to the queue."""


@dataclasses.dataclass(frozen=True)
class Profile:
    """What one task of an array gets, and how runs are put into tasks."""

    partition: str | None = hp(None, doc="none: the cluster's default")
    account: str | None = hp(None, doc="who pays")
    qos: str | None = hp(None, doc="quality of service")
    constraint: str | None = hp(None, doc="features of nodes, e.g. a100")
    time: str = hp("4:00:00", doc="limit of a task, as SLURM writes it: minutes, H:M:S or D-H:M")
    gpus: int = hp(0, doc="per task; 0: the runs use the CPU", low=0)
    cpus: int | None = hp(None, doc="per task; none: the --threads of a run", low=1)
    memory: str = hp("4GB", doc="per task, e.g. 8GB")
    array_parallelism: int = hp(256, doc="tasks that run at the same time", low=1)
    pack_minutes: float = hp(30, doc="short runs share a task up to this; 0: one run each", low=0)
    retries: int = hp(2, doc="how often a run whose process died is tried again", low=0)
    warning: int = hp(90, doc="seconds before the limit at which a task goes back in line", low=2)
    modules: tuple[str, ...] = hp((), doc="for `module load`")
    setup: tuple[str, ...] = hp((), doc="shell lines before the runs, after the modules")
    sbatch: tuple[str, ...] = hp((), doc="further flags of sbatch, e.g. reservation=NAME")
    python: str | None = hp(None, doc="the interpreter on the nodes; none: this one")

    @property
    def minutes(self) -> int:
        return limit_minutes(self.time)

    @property
    def patience(self) -> float:
        """Seconds that a round may still take after the warning."""
        return max(self.warning - CONTINUE_MARGIN, self.warning / 2)

    @property
    def capacity(self) -> float:
        """Seconds of estimated work that one task may hold."""
        available = 0.8 * (60 * self.minutes - self.warning)
        return min(60 * self.pack_minutes, available)


def load_profile(name: str, assignments: Iterable[str] = ()) -> Profile:
    """The profile of a name with the user's `key=value` over it, every key and value checked."""
    known = known_profiles()
    if name not in known:
        raise unknown("SLURM profile", name, known)
    return make_profile({**known[name], **_parse(assignments)}, name)


def overridden(profile: Mapping[str, Any], assignments: Iterable[str]) -> Profile:
    """A profile that was used before, with changes."""
    return make_profile({**profile, **_parse(assignments)}, "as submitted")


def make_profile(given: Mapping[str, Any], name: str) -> Profile:
    listing = ", ".join(f"{key}={plain(value)}" for key, value in defaults(Profile).items())
    for key in given:
        if key not in fields(Profile):
            error = unknown(f"key of SLURM profile {name}", key, fields(Profile))
            raise UserError(f"{error} (defaults: {listing})")
    values = {key: _prepared(key, value) for key, value in given.items()}
    return check(Profile(**resolve(Profile, values, f"profile {name}")), name)


def check(profile: Profile, name: str) -> Profile:
    """What single keys cannot show."""
    if not re.fullmatch(r"\d+[KMGT]?B?", profile.memory, re.IGNORECASE):
        raise UserError(f"SLURM profile {name}: memory={profile.memory}: write e.g. 8GB or 500MB")
    if 60 * profile.minutes <= profile.warning:
        raise UserError(
            f"SLURM profile {name}: a task of {profile.minutes} min is shorter than its warning of "
            f"{profile.warning} s; raise time or lower warning"
        )
    return profile


def user_file() -> Path:
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(folder).expanduser() / "feddomainbed" / "slurm.toml"


def known_profiles() -> dict[str, dict[str, Any]]:
    """All profiles by name, as they are written."""
    profiles: dict[str, dict[str, Any]] = {}
    for path in (OURS, user_file()):
        for name, table in _read(path).items():
            profiles[name] = {**profiles.get(name, {}), **table}
    return profiles


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        tables = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"cannot read SLURM profiles {str(path)!r}: {error}") from error
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            raise UserError(f"{str(path)!r}: {name!r} is in no profile; write it under [NAME]")
    return tables


def _parse(assignments: Iterable[str]) -> dict[str, str]:
    given = {}
    for text in assignments:
        key, sign, value = text.partition("=")
        if not sign:
            raise UserError(f"--slurm {text!r}: write KEY=VALUE, e.g. partition=gpu")
        given[key.strip()] = value.strip()
    return given


def _prepared(key: str, value: Any) -> Any:
    """Lists given as text are separated by semicolons; a time may be a number of minutes, and
    12:00:00 without quotes is a time of day to TOML."""
    if isinstance(fields(Profile)[key].default, tuple):
        items = value.split(";") if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            raise UserError(f'SLURM profile: {key} is a list of texts, e.g. {key} = ["…"]')
        return tuple(item.strip() for item in items if item.strip())
    if isinstance(fields(Profile)[key].default, str) and isinstance(value, int | datetime.time):
        return str(value)
    return value


def plain(value: Any) -> str:
    """A value for people."""
    return "none" if value is None or value == () else str(value)


def limit_minutes(text: str) -> int:
    """SLURM's ways of writing a time (`90`, `90:00`, `1:30:00`, `1-12`, `1-12:30`) as minutes."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if match is None:
        raise UserError(f"SLURM time {text!r}: write minutes, H:M:S or D-H:M, e.g. 12:00:00")
    days, *rest = (None if part is None else int(part) for part in match.groups())
    parts = [part for part in rest if part is not None]
    if days is not None:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, minutes, seconds = (0, *parts, 0)[:3]
    total = 60 * (24 * (days or 0) + hours) + minutes + math.ceil(seconds / 60)
    if total < 1:
        raise UserError(f"SLURM time {text!r}: at least one minute")
    return total
