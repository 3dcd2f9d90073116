"""What a printed line means in terms of runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Reading:
    """How one printed line is run: what to run, and which of the run's records is the number."""

    expression: str
    overrides: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """Hyper-parameters by method."""
    training: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    changes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the protocol."""
    predictor: str | None = None
    """The way of predicting that the line shows; None: the method's own."""
    part: str = "test"
    """`val` for numbers measured on the domains that were trained on."""


@dataclasses.dataclass(frozen=True)
class Paper:
    """A paper's facts: where its settings are, what its names mean, what cannot be run and why."""

    settings: Mapping[str, tuple[str, Mapping[str, Any]]]
    """Setting as in the published rows → protocol and changes to it."""
    methods: Mapping[str, Reading]
    """Printed name → reading, where no variant says otherwise."""
    variants: Mapping[tuple[str, str, str], Reading]
    """(table, printed name, variant) → reading; table `*` means any."""
    unplanned: Mapping[tuple[str, str, str], str]
    """(table, dataset, printed name) → why a line is not run; `*` means any."""
    backbones: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    """Printed backbone → ours where the protocol's own is not meant."""
