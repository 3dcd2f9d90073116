"""A registry: names to things, registered where they are defined, found by importing a folder."""

from __future__ import annotations

import fnmatch
import importlib
import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from benchmark.errors import UserError, unknown

T = TypeVar("T")


class Registry(Generic[T]):
    """Names of one kind. The first look-up imports every module of `package`: no list is kept."""

    def __init__(self, kind: str, package: str):
        self.kind = kind
        self.package = package
        self._entries: dict[str, T] = {}
        self._discovered = False

    def register(self, name: str) -> Callable[[T], T]:
        def add(thing: T) -> T:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._entries[name] = thing
            return thing

        return add

    def discover(self) -> None:
        if not self._discovered:
            self._discovered = True
            folder = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(getattr(folder, "__path__", [])):
                if not module.ispkg and module.name != "__main__":
                    importlib.import_module(f"{self.package}.{module.name}")

    def names(self) -> list[str]:
        self.discover()
        return sorted(self._entries)

    def __contains__(self, name: object) -> bool:
        self.discover()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __getitem__(self, name: str) -> T:
        self.discover()
        if name not in self._entries:
            raise unknown(self.kind, name, self._entries)
        return self._entries[name]

    def match(self, pattern: str) -> list[str]:
        """Names that fit a shell pattern, `all` being every one; a plain name must exist."""
        if pattern == "all":
            return self.names()
        if any(sign in pattern for sign in "*?["):
            found = [name for name in self.names() if fnmatch.fnmatchcase(name, pattern)]
            if not found:
                raise UserError(
                    f"no {self.kind} matches {pattern!r}; valid: {', '.join(self.names())}"
                )
            return found
        self[pattern]
        return [pattern]


def load_plugin(path: str | Path) -> None:
    """Import a user's own file, so that what it registers is there like anything of ours."""
    path = Path(path).resolve()
    if not path.is_file():
        raise UserError(f"plugin file {str(path)!r} does not exist")
    name = f"plugin_{path.stem}"
    if name in sys.modules:
        if Path(sys.modules[name].__file__) == path:
            return
        raise UserError(f"two plugins are named {path.stem!r}; rename one of the files")
    module_spec = importlib.util.spec_from_file_location(name, path)
    if module_spec is None or module_spec.loader is None:
        raise UserError(f"plugin {str(path)!r} is not a Python file (*.py)")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"plugin {str(path)!r} failed: {type(error).__name__}: {error}") from error


def loaded_plugins() -> list[str]:
    """The files of all plugins so far, for other processes to load them, too."""
    return [module.__file__ for name, module in sys.modules.items() if name.startswith("plugin_")]
