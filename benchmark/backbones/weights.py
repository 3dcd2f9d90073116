"""Pretrained weights: ImageNet's through torchvision, or a state dict in a local file.

Loading is strict: a file must hold every entry of the network and nothing else, under torchvision's
key names (or under the network's own, where these differ). Exceptions, each of which starts fresh:
- the classifier, when it has another number of classes than asked for;
- all fully connected layers together, when the file has none of them (AlexNet's convolutions alone,
  or ResNet-18's weights for the network with a bottleneck);
- all batch normalisation together, when AlexNet's weights are given to AlexNet with it;
- counters of batches seen, which older files lack.
Entries in another precision are cast.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmark.errors import UserError
from benchmark.state import State, batchnorm_keys

if TYPE_CHECKING:
    from benchmark.backbones.base import Backbone


def load_pretrained(model: Backbone, name: str, weights: str | None, pretrained: str) -> None:
    """Fill a fresh network: `pretrained` is `imagenet` or the path of a file, and `weights` is
    torchvision's name of the ImageNet weights."""
    if pretrained == "imagenet":
        origin = _imagenet(name, weights)
        state = download(origin)
    else:
        origin = repr(pretrained)
        state = read_state(pretrained)
    load_strictly(model, state, f"weights {origin} do not fit {name}")


def describe_weights(name: str, weights: str | None, pretrained: str) -> str:
    """`none`, torchvision's name of the weights, or a file's name and the hash of its content."""
    if pretrained == "none":
        return "none"
    if pretrained == "imagenet":
        return _imagenet(name, weights)
    return pretrained_name(pretrained)


def pretrained_name(pretrained: str) -> str:
    """How a spec names its weights: `none`, `imagenet`, or a file by name and content, not path."""
    if pretrained in ("none", "imagenet"):
        return pretrained
    with _existing(pretrained).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{Path(pretrained).name} sha256:{digest[:16]}"


def _imagenet(name: str, weights: str | None) -> str:
    if weights is None:
        raise UserError(
            f"backbone {name} has no ImageNet weights; use --pretrained none or the path of a file"
        )
    return weights


def download(weights: str) -> State:
    """The state dict that torchvision calls e.g. `ResNet18_Weights.IMAGENET1K_V1`; fetched once,
    then taken from torch's cache."""
    from torchvision.models import get_weight

    entry = get_weight(weights)
    try:
        # torch announces a download on stdout, where only results belong.
        with contextlib.redirect_stdout(sys.stderr):
            return entry.get_state_dict(
                progress=sys.stderr.isatty(),
                check_hash=True,
                map_location="cpu",
                weights_only=True,
            )
    except Exception as error:
        # No network, a refused or broken download, a read-only cache, a damaged file in it:
        # whichever it is, a file that the user fetches helps.
        raise UserError(
            f"cannot get {weights} ({_reason(error)}); fetch {entry.url} where there is a network "
            f"and pass --pretrained PATH, or put it in {torch.hub.get_dir()}/checkpoints"
        ) from error


def read_state(path: str) -> State:
    """The state dict in a local file."""
    found = _existing(path)
    try:
        state = torch.load(found, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UserError(
            f"pretrained weights {path!r} cannot be read ({type(error).__name__}); it must be a "
            f"file written by torch.save(model.state_dict(), PATH)"
        ) from error
    if not isinstance(state, Mapping):
        raise UserError(
            f"pretrained weights {path!r} hold a {type(state).__name__}, not a state dict; "
            f"save model.state_dict() instead"
        )
    others = [str(key) for key, value in state.items() if not isinstance(value, torch.Tensor)]
    if others:
        raise UserError(
            f"pretrained weights {path!r} are not a state dict (no tensor: {_some(others)}); "
            f"save the state dict alone"
        )
    return dict(state)


def load_strictly(model: Backbone, state: Mapping[str, torch.Tensor], complaint: str) -> None:
    """Copy a state into a network; the docstring of this file says what may be absent."""
    own = model.state_dict()
    given = {model.own_key(key): value for key, value in state.items()}
    head = _keys_of(own, (model.head_name,))
    counters = batchnorm_keys(model).counters
    fresh = set(counters)
    if any(key in given and given[key].shape != own[key].shape for key in head):
        given = {key: value for key, value in given.items() if key not in head}
        fresh |= head
    for part in model.optional_parts():
        keys = _keys_of(own, part)
        if not keys & given.keys():
            fresh |= keys
    problems = {
        "missing": [key for key in own if key not in given and key not in fresh],
        "unexpected": [key for key in given if key not in own],
        "of another shape": [
            f"{key} {tuple(value.shape)} instead of {tuple(own[key].shape)}"
            for key, value in given.items()
            if key in own and value.shape != own[key].shape
        ],
    }
    found = [f"{kind} {_some(keys)}" for kind, keys in problems.items() if keys]
    if found:
        raise UserError(f"{complaint}: {'; '.join(found)}")
    with torch.no_grad():
        for key, value in given.items():
            own[key].copy_(value)


def _existing(path: str) -> Path:
    found = Path(path).expanduser()
    if not found.is_file():
        raise UserError(
            f"pretrained weights {path!r}: no such file; write none, imagenet or the path of a file"
        )
    return found


def _keys_of(state: Iterable[str], modules: Iterable[str]) -> set[str]:
    prefixes = tuple(f"{name}." for name in modules)
    return {key for key in state if key.startswith(prefixes)}


def _some(names: list[str]) -> str:
    """The first three of many, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _reason(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
