"""Mistakes a user can mend: one clear line and exit code 2, never a traceback."""

from __future__ import annotations

import argparse
import difflib
import functools
import os
import sys
from collections.abc import Callable, Iterable


class UserError(Exception):
    """What was asked for cannot be done; the message is one line that says what to do instead."""


class Diverged(Exception):
    """Training left the real numbers; the run is recorded as failed, the sweep goes on."""


def unknown(kind: str, name: str, valid: Iterable[str]) -> UserError:
    """The error for a name that does not exist, with the nearest ones that do."""
    names = sorted(valid)
    by_lower = {candidate.lower(): candidate for candidate in names}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    if near:
        hint = f"did you mean {by_lower[near[0]]!r}?"
        if len(names) <= 12:
            hint += f" Valid: {', '.join(names)}"
    else:
        hint = f"valid: {', '.join(names) or 'none'}"
    return UserError(f"unknown {kind} {name!r}, {hint}")


class ArgumentParser(argparse.ArgumentParser):
    """argparse, with its complaints in one line like all others."""

    def error(self, message: str):
        raise UserError(f"{message} (see {self.prog} --help)")


def command_line(main: Callable[..., int | None]) -> Callable[..., None]:
    """Turn `main` into a program: user errors become one line, Ctrl-C is quiet, pipes may close."""

    @functools.wraps(main)
    def program(*args, **kwargs) -> None:
        try:
            code = main(*args, **kwargs) or 0
            sys.stdout.flush()
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            code = 2
        except KeyboardInterrupt:
            print(
                "interrupted: finished runs are kept; the same command continues", file=sys.stderr
            )
            code = 130
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        sys.exit(code)

    return program
