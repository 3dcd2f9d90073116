"""The calibration of CSAC: how far a network is, in several layers, from a client's frozen own."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from benchmark.backbones.base import Backbone
from benchmark.state import state_of, write
from methods.ops.capture import captured
from methods.ops.cross_layer import CrossLayerAttention
from methods.ops.kernels import kernel_distance

if TYPE_CHECKING:
    from benchmark.federation import Client

WIDTHS = tuple(3.0**u for u in range(-3, 2))
"""Of the kernels, in mean squared distances."""
STAGES = 3
"""The last stages of the network are compared."""


class Calibration:
    """A client's teacher, and how far a pass of its model is from the teacher's; for one visit."""

    def __init__(self, client: Client, layers: bool, rate: float):
        self.teacher = copy.deepcopy(client.model).eval().requires_grad_(False)
        write(state_of(self.teacher), client.memory["teacher"])
        self.stages = self.teacher.stages[-STAGES:] if layers else ()
        self.optimizer = self.attention = None
        if layers:
            *maps, _ = self._taught(next(client.train.evaluation_batches(1)).images)
            shapes = [tuple(stage.shape[1:]) for stage in maps]
            self.attention = CrossLayerAttention(shapes).to(client.train.device)
            trained = [*self.attention.first.parameters(), *self.attention.second.parameters()]
            if rate > 0:
                momentum = client.training.momentum
                self.optimizer = torch.optim.SGD(trained, rate, momentum, foreach=True)

    @contextlib.contextmanager
    def observed(self, model: Backbone) -> Iterator[Callable[[], list[torch.Tensor]]]:
        """Maps of the stages and logits of the first pass in the context, once it has been."""
        parts = [*(model.taps[stage] for stage in self.stages), model.classifier]
        with contextlib.ExitStack() as stack:
            outputs = [stack.enter_context(captured(part)) for part in parts]
            yield lambda: [output[0] for output in outputs]

    @torch.no_grad()
    def _taught(self, images: torch.Tensor) -> list[torch.Tensor]:
        with self.observed(self.teacher) as seen:
            self.teacher(images)
        return seen()

    def distance(self, images: torch.Tensor, seen: list[torch.Tensor]) -> torch.Tensor:
        """Between what the model gave for these images and what the teacher gives."""
        *maps, logits = seen
        *private, target = self._taught(images)
        distance = kernel_distance(logits, target, WIDTHS)
        if self.attention is None:
            return distance
        ours, theirs = self.attention.project(maps, private)
        weights = self.attention.weights(ours, theirs)
        rows, columns = torch.broadcast_tensors(ours.flatten(2)[:, None], theirs.flatten(2)[None])
        return distance + (weights * kernel_distance(rows, columns, WIDTHS)).sum()

    def descend(self) -> None:
        """One step of the projections, along the gradient that the client's step has left."""
        if self.optimizer is not None:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
