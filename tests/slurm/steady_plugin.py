"""A plugin for tests of launchers: a method whose rounds take their time, and may go wrong."""

from __future__ import annotations

import os
import signal
import time

from benchmark.hparams import Choice, hp
from benchmark.method import Method, register


def fail() -> None:
    raise RuntimeError("not today")


FATES = {
    "raises": fail,
    "dies": lambda: signal.raise_signal(signal.SIGKILL),
    "warned": lambda: signal.raise_signal(signal.SIGUSR2),
    "terminated": lambda: signal.raise_signal(signal.SIGTERM),
}


@register("steady", label="Steady", paper="none", venue="none", category="federated", shares=())
class Steady(Method):
    """FedAvg with a pause in every round; in round 2 something may happen to it."""

    pause: float = hp(2.0, doc="seconds of every round, until the file STEADY_HURRY exists", low=0)
    fate: str = hp("well", Choice("well", *FATES), "what happens in round 2")

    def conclude(self, server, clients) -> None:
        super().conclude(server, clients)
        if not os.path.exists(os.environ.get("STEADY_HURRY", "/nowhere")):
            time.sleep(self.pause)
        if server.round == 2 and self.fate != "well":
            FATES[self.fate]()
