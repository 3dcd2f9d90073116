"""Predictors × domains → records. The only place that holds the target domain's images."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from benchmark.seeds import seed_for
from datasets.samples import Samples

if TYPE_CHECKING:
    from benchmark.federation import Client
    from benchmark.method import Predictor


class Score(NamedTuple):
    """How well a predictor does on some samples."""

    accuracy: float
    loss: float
    count: int


@dataclasses.dataclass(frozen=True)
class Record:
    """One measurement: a predictor after a round, on one part of one domain (of one client)."""

    round: int
    predictor: str
    part: str
    client: str
    domain: str
    accuracy: float
    loss: float
    count: int


@torch.inference_mode()
def outcomes(predict: Predictor, samples: Samples) -> tuple[np.ndarray, np.ndarray]:
    """Per sample: whether it was classified rightly, and its cross-entropy."""
    right, losses = [], []
    for batch in samples.evaluation_batches():
        logits = predict(batch.images)
        right.append(logits.argmax(1) == batch.labels)
        losses.append(F.cross_entropy(logits, batch.labels, reduction="none"))
    return torch.cat(right).cpu().numpy(), torch.cat(losses).double().cpu().numpy()


def score(predict: Predictor, samples: Samples) -> Score:
    """Accuracy and mean loss over all samples."""
    if len(samples) == 0:
        return Score(0.0, 0.0, 0)
    right, losses = outcomes(predict, samples)
    return Score(float(right.mean()), float(losses.mean()), len(samples))


class Evaluator:
    """Judges predictors on the clients' validation parts and on the unseen target domain."""

    def __init__(self, target: Samples, domain_names: Sequence[str], target_name: str, seed: int):
        self._target = target
        self._domain_names = domain_names
        self._target_name = target_name
        self._seed = seed

    @property
    def held_out(self) -> Samples:
        """What is tested, for those who look at a finished run."""
        return self._target

    def evaluate(
        self, predictors: Mapping[str, Predictor], round: int, clients: Sequence[Client]
    ) -> list[Record]:
        """All records of one round: validation per client and domain, and the test."""
        records = []
        for name, predict in predictors.items():
            if isinstance(predict, torch.nn.Module):
                predict.eval()
            torch.manual_seed(seed_for(self._seed, "evaluate", round, name))
            for client in clients:
                if len(client.val):
                    records += self._validation(predict, round, name, client)
            test = score(predict, self._target)
            records.append(Record(round, name, "test", "", self._target_name, *test))
        return records

    def _validation(
        self, predict: Predictor, round: int, name: str, client: Client
    ) -> list[Record]:
        right, losses = outcomes(predict, client.val)
        domains = client.val.shard.domains
        return [
            Record(
                round,
                name,
                "val",
                client.name,
                self._domain_names[domain],
                float(right[domains == domain].mean()),
                float(losses[domains == domain].mean()),
                int((domains == domain).sum()),
            )
            for domain in np.unique(domains)
        ]
