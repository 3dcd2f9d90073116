"""`python -m benchmark.list [KIND|NAME]`: everything registered, or one thing in full."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from tabulate import tabulate

from benchmark.backbones.base import backbones
from benchmark.errors import ArgumentParser, command_line, unknown
from benchmark.hparams import fields
from benchmark.method import compose, methods
from benchmark.protocol import protocols
from benchmark.registry import Registry, load_plugin
from datasets.base import datasets
from datasets.partition import partitions
from datasets.splits import splits
from datasets.transforms import transforms

KINDS: dict[str, Registry] = {
    "methods": methods,
    "datasets": datasets,
    "partitions": partitions,
    "protocols": protocols,
    "backbones": backbones,
    "splits": splits,
    "transforms": transforms,
}


@command_line
def main(arguments: Sequence[str] | None = None) -> int:
    parser = ArgumentParser(prog="python -m benchmark.list", description=__doc__)
    parser.add_argument("what", nargs="?", help=f"{', '.join(KINDS)}, or a name")
    parser.add_argument("--plugin", nargs="+", default=[], metavar="FILE.py")
    options = parser.parse_args(arguments)
    for path in options.plugin:
        load_plugin(path)
    print(listing(options.what))
    return 0


def listing(what: str | None) -> str:
    """All kinds, one kind, or one thing."""
    if what is None:
        return "\n\n".join(f"{kind}\n{overview(kind)}" for kind in KINDS)
    if what in KINDS:
        return overview(what)
    if "+" in what:
        return describe("methods", what)
    for kind, registry in KINDS.items():
        if what in registry:
            return describe(kind, what)
    raise unknown("kind or name", what, [*KINDS, *(n for r in KINDS.values() for n in r)])


def overview(kind: str) -> str:
    """One line per name."""
    rows = [(name, *SUMMARIES.get(kind, _first_line)(name, kind)) for name in KINDS[kind]]
    return tabulate(rows, tablefmt="plain", disable_numparse=True)


def describe(kind: str, name: str) -> str:
    """What it is, where it comes from, and its settings with defaults and spaces."""
    thing = compose(name) if kind == "methods" else KINDS[kind][name]
    lines = [f"{name} ({kind.removesuffix('s')})", ""]
    if kind == "methods":
        info = thing.info
        shares = ", ".join(("weights", *info.shares))
        lines += [f"{info.label}: {info.paper}, {info.venue}", f"category: {info.category}"]
        lines += [f"leaves the client: {shares}", "", _module_doc(thing)]
    elif kind == "datasets":
        lines += [inspect.getdoc(thing) or "", "", f"domains: {', '.join(thing.domains)}"]
        lines += [f"classes: {', '.join(thing.classes)}", thing.citation, thing.licence]
    elif kind == "protocols":
        rest = {key: value for key, value in vars(thing).items() if key != "doc"}
        lines += [thing.doc, "", *(f"{key} = {value}" for key, value in rest.items())]
    else:
        lines += [_doc(thing)]
    if inspect.isclass(thing) and hasattr(thing, "__dataclass_fields__"):
        lines += ["", _settings(thing)]
    return "\n".join(lines).rstrip()


def _settings(cls: type) -> str:
    rows = [
        (name, field.default, field.metadata.get("space") or "", field.metadata.get("doc", ""))
        for name, field in fields(cls).items()
    ]
    if not rows:
        return "no hyper-parameters"
    return tabulate(rows, ("name", "default", "space", ""), "simple", disable_numparse=True)


def _doc(thing: object) -> str:
    return getattr(thing, "doc", None) or inspect.getdoc(thing) or ""


def _module_doc(cls: type) -> str:
    """A method's story is the docstring of its file; of a composition, of each part's."""
    parts = [cls] if "+" not in cls.name else cls.__bases__
    return "\n\n".join((inspect.getmodule(part).__doc__ or "").strip() for part in parts)


def _first_line(name: str, kind: str) -> tuple[str, ...]:
    return (_doc(KINDS[kind][name]).split("\n")[0],)


def _method_line(name: str, kind: str) -> tuple[str, ...]:
    info = methods[name].info
    return (info.label, info.category, info.venue)


SUMMARIES: dict[str, Callable[[str, str], tuple[str, ...]]] = {"methods": _method_line}


if __name__ == "__main__":
    main()
