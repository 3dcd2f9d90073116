"""Batch normalisation in passes that are not the main one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


@contextlib.contextmanager
def frozen_statistics(model: nn.Module) -> Iterator[None]:
    """Normalise as in training, by batch statistics, without touching the running ones.

    The counters and running statistics of every batch-normalisation layer come out bit for bit as
    they went in, also when the pass fails.
    """
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    for layer in layers:
        layer.track_running_stats = False
        layer._kept = layer.running_mean, layer.running_var
        layer.running_mean = layer.running_var = None
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True
            layer.running_mean, layer.running_var = layer._kept
            del layer._kept
