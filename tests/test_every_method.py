"""What must hold for every registered method: the tests walk the registry, nobody is forgotten."""

import multiprocessing
import random
import time
from pathlib import Path

import pytest
import torch

from benchmark.execute import Place, execute
from benchmark.federation import rounds
from benchmark.hparams import fields
from benchmark.launch import launch
from benchmark.method import CATEGORIES, compose, methods
from benchmark.registry import load_plugin
from benchmark.results import ResultStore
from benchmark.seeds import seed_for
from tests.conftest import TOY, TRAINING, toy_spec


def fitting(name: str) -> dict:
    """A network that the method can work on."""
    return {"backbone": "vit_tiny32"} if compose(name).info.needs_tokens else {}


def partial(name: str) -> dict:
    """Three of six clients a round, optimisers carried over where the method allows it."""
    kept = not compose(name).info.needs_fresh_sgd
    training = TRAINING.changed({"clients_per_round": 3, "keep_optimizer": kept})
    return {"partition": "single_domain_k:clients=2", "training": training}


NAMES = methods.names()  # before any test loads a plugin
every_method = pytest.mark.parametrize("name", NAMES)


def outcome(result) -> tuple:
    """Everything of a result that must not depend on when, where or how it was computed."""
    bytes_per_round = result.costs["bytes_per_round"]
    return result.spec, result.records, result.train_loss, result.partition, bytes_per_round


@every_method
def test_it_says_what_it_is(name):
    cls = compose(name)
    assert cls.info.category in CATEGORIES
    assert all((cls.info.label, cls.info.paper, cls.info.venue))
    assert (cls.__doc__ or "").strip()
    module = __import__(cls.__module__, fromlist=["x"])
    for word in ("Paper:", "leaves the client"):
        assert word.lower() in (module.__doc__ or "").lower(), f"{name}: docstring lacks {word!r}"
    for field in fields(cls).values():
        assert field.metadata.get("doc"), f"{name}.{field.name} has no doc"


@every_method
def test_it_trains_with_a_finite_loss_and_predicts_every_class(name, federation):
    ours = federation(toy_spec(name, **fitting(name)))
    before = {key: value.clone() for key, value in ours.server.state.items()}
    for round in rounds(ours.method, ours.server, ours.clients):
        assert 0 <= round.loss < 100
        assert not any("optimizer" in vars(client) for client in round.chosen)
    assert any(not torch.equal(before[key], ours.server.state[key]) for key in before)
    images = next(ours.clients[0].val.evaluation_batches()).images
    predictors = ours.method.predictors(ours.server, ours.clients)
    assert predictors
    for predict in predictors.values():
        if isinstance(predict, torch.nn.Module):
            predict.eval()
        with torch.inference_mode():
            logits = predict(images)
        assert logits.shape == (len(images), 4)
        assert torch.isfinite(logits).all()


def _work(spec, root: Path, place: Place, sender) -> None:
    """A run that never quite ends, so that it is always there to be killed."""

    def tell(done: int) -> None:
        sender.send(done)
        if done == spec.training.rounds:
            time.sleep(600)

    load_plugin(TOY)
    execute(spec, ResultStore(root), place, on_round=tell)


@every_method
@pytest.mark.parametrize("participation", ["full", "partial"])
def test_killed_at_any_moment_it_ends_with_the_same_bits(name, participation, tmp_path):
    spec = toy_spec(name, **fitting(name), **partial(name) if participation == "partial" else {})
    place = Place(data=tmp_path / "data", checkpoint_seconds=0.0)
    whole = execute(spec, ResultStore(tmp_path / "whole"), place)
    store = ResultStore(tmp_path / "killed")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmark.launch", "methods", "tests.conftest"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(spec, store.root, place, sender))
    process.start()
    sender.close()
    rng = random.Random(seed_for(0, name, participation))
    while receiver.recv() < rng.choice([2, 3]):  # round 2 is over: round 1 has been saved
        pass
    time.sleep(rng.uniform(0, 0.05))
    process.kill()
    process.join()
    resumed_from = []
    result = execute(spec, store, place, on_round=resumed_from.append)
    assert resumed_from[0] > 0, "the checkpoint was not taken up"
    assert outcome(result) == outcome(whole)
    assert not store.checkpoint_path(spec).exists()


@every_method
def test_clients_in_parallel_give_the_same_bits(name, tmp_path):
    spec = toy_spec(name, **fitting(name), **partial(name))
    outcomes = [
        outcome(execute(spec, ResultStore(tmp_path / str(count)), place))
        for count in (1, 2)
        for place in [Place(data=tmp_path / "data", client_workers=count)]
    ]
    assert outcomes[0] == outcomes[1]


def test_one_worker_or_two_give_the_same_bits(tmp_path):
    specs = [toy_spec(name, **fitting(name)) for name in NAMES]
    place = Place(data=tmp_path / "data")
    outcomes = []
    for workers in (1, 2):
        store = ResultStore(tmp_path / str(workers))
        events = list(launch(specs, store, [place], workers, [str(TOY)]))
        assert [event for event in events if event.kind == "failed"] == []
        outcomes.append([outcome(store.get(spec)) for spec in specs])
    assert outcomes[0] == outcomes[1]
