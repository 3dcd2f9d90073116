"""Planning, submitting and watching where there is no torch, e.g. on the login node of a cluster.

Importing this module does nothing where torch is installed. Where it is not, and in a sweep that is
only submitted, which torch would make slow to start and large, `torch` and `torchvision` become
inert stand-ins: they can be imported, and every name in them can be a base
class, a decorator, an annotation or a default value, so the files of methods, backbones and
transforms can be read and what they declare (names, hyper-parameters, metadata) is there. Whatever
would compute raises `NeedsTorch`, a user error of one line.

Import it before anything that imports torch.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmark.errors import UserError

PACKAGES = ("torch", "torchvision")


class NeedsTorch(UserError):
    """Something was to be computed."""

    def __init__(self, what: str):
        super().__init__(
            f"{what} needs PyTorch, which is not installed here; install it, or use a machine that "
            f"has it (planning, --launcher slurm and python -m slurm work without)"
        )


class Inert(type):
    """The type of all stand-ins: classes that can be named, subclassed and asked for more names."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return stand_in(f"{cls.__module__}.{cls.__qualname__}.{name}")

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise NeedsTorch(f"{cls.__module__}.{cls.__qualname__}")


def stand_in(path: str) -> Any:
    """What stands for one name of torch."""
    if path in EXCEPTIONS:
        return EXCEPTIONS[path]
    module, _, name = path.rpartition(".")
    return Inert(name, (), {"__module__": module, "__qualname__": name})


def decorator(*args: Any, **kwargs: Any) -> Any:
    """`@torch.no_grad()` and its like, with or without brackets: the function as it is."""
    if len(args) == 1 and not kwargs and callable(args[0]):
        return args[0]
    return lambda function: function


@contextlib.contextmanager
def rehearsal(*args: Any, **kwargs: Any) -> Iterator[None]:
    """`with torch.device("meta")`: a check of shapes without numbers, left out where it needs
    torch; the node makes it before the first round."""
    with contextlib.suppress(NeedsTorch):
        yield


EXCEPTIONS: dict[str, Callable[..., Any]] = {
    "torch.no_grad": decorator,
    "torch.enable_grad": decorator,
    "torch.inference_mode": decorator,
    "torch.compile": decorator,
    "torch.jit.script": decorator,
    "torch.device": rehearsal,
    "torch.cuda.device_count": lambda: 0,
    "torch.cuda.is_available": lambda: False,
    "torch.set_num_threads": lambda count: None,
}


class Module(types.ModuleType):
    """A stand-in for a module of torch."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self.__name__}.{name}"
        value = importlib.import_module(path) if path in MODULES else stand_in(path)
        setattr(self, name, value)
        return value


MODULES = {"torch.nn", "torch.cuda", "torch.nn.functional", "torch.jit", "torch.autograd"}
"""Modules that are used as an attribute without an import of their own."""


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for every module of torch and torchvision."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] in PACKAGES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Module:
        return Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def torch_is_missing() -> bool:
    try:
        return importlib.util.find_spec("torch") is None
    except ImportError:
        return True


def only_submits(arguments: Sequence[str]) -> bool:
    """Whether this process is `python -m benchmark.sweep … --launcher slurm`."""
    program, *flags = arguments or [""]
    named = "--launcher=slurm" in flags or ("--launcher", "slurm") in itertools.pairwise(flags)
    return named and Path(program).parts[-2:] == ("benchmark", "sweep.py")


active = "torch" not in sys.modules and (only_submits(sys.argv) or torch_is_missing())
"""Whether this process has stand-ins for torch."""
if active:
    sys.meta_path.insert(0, Finder())
