"""What a step costs on any machine: how often the batch goes through the network."""

import collections

import pytest
import torch
from torch import nn

from benchmark.federation import rounds, visit
from tests.conftest import TRAINING, toy_spec

STEPS = 10
QUICK = {"csac": {"pretrain_rounds": 1}}
PASSES = {
    "fedavg": (1, 0),
    "fedprox": (1, 0),
    "mixstyle": (1, 0),
    "dsu": (1, 0),
    "jigen": (1, 0),
    "selfreg": (1, 0),
    "gperxan": (1, 0),
    "fedsr": (1, 0),
    "fpl": (1, 0),
    "copa": (1, 0),
    "fediir": (1, 0),
    "ccst": (1, 0),
    "rsc": (1, 0),  # its masks cost passes of the head alone
    "rsc official": (2, 0),  # each batch with its mirror images
    "csac": (1, 1),  # one teacher
    "fedadg": (1, 0.7),  # in the seven of ten epochs that align, features for D and G
    "moon": (1, 2),  # the received and the previous model
    "fedsam": (2, 0),
    "fedasam": (2, 0),
    "elcfs": (2, 0),  # and two backward passes more than FedAvg: about three steps in all
    "fedfd": (2, 0),
    "fedfd_a": (3, 0),
    "randconv": (3, 0),
    "l2d": (4, 0),  # twice the batch in each of its two stages
}
"""Passes of a whole batch in one step, with and without gradients."""


def counted(model: nn.Module) -> collections.Counter:
    """How many images enter the model, or a copy of it that is made from now on, by whether
    gradients are recorded."""
    counts: collections.Counter = collections.Counter()

    def count(_, inputs, output) -> None:
        counts[torch.is_grad_enabled()] += len(inputs[0])

    first = next(part for part in model.modules() if isinstance(part, nn.Conv2d))
    first.register_forward_hook(count)
    return counts


@pytest.mark.parametrize("name", PASSES)
def test_a_step_makes_its_passes_and_none_more(name, federation):
    method, _, variant = name.partition(" ")
    overrides = {**QUICK, "rsc": {"rsc_variant": variant or "domainbed"}}
    training = TRAINING.changed({"local_steps": STEPS})
    ours = federation(toy_spec(method, training=training, overrides=overrides))
    next(rounds(ours.method, ours.server, ours.clients))
    client = ours.clients[0]
    client.round = ours.server.round = 1
    client.scratch.clear()
    ours.method.exchange(ours.server, ours.clients)
    counts = counted(client.model)
    visit(ours.method, ours.server, client)
    with_gradients, without = (counts[kind] / (8 * STEPS) for kind in (True, False))
    # CSAC asks its teacher for the shapes of its maps with one image a visit.
    assert (with_gradients, without) == pytest.approx(PASSES[name], abs=1 / (8 * STEPS))


def test_mixnorm_predicts_with_five_images_for_one(federation):
    ours = federation(toy_spec("mixnorm+fedavg"))
    counts = counted(ours.server.model)
    predictors = ours.method.predictors(ours.server, ours.clients)
    images = next(ours.clients[0].train.evaluation_batches(10)).images
    with torch.inference_mode():
        for name, factor in (("mixnorm", 5), ("global", 1)):
            counts.clear()
            predictors[name].eval()(images)
            assert counts == {False: factor * len(images)}


def test_an_epoch_of_ccst_is_as_much_longer_as_its_list(federation):
    training = TRAINING.changed({"local_steps": None, "local_epochs": 2})
    steps = []
    for name in ("fedavg", "ccst"):
        ours = federation(toy_spec(name, training=training))
        steps.append(next(rounds(ours.method, ours.server, ours.clients)).steps)
    assert steps == [3 * 2 * (39 // 8), 3 * 2 * (3 * 39 // 8)]
