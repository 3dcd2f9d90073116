"""The federated domain-generalisation methods over other bases: exact resume, full and partial."""

import pytest

from benchmark.execute import Interrupted, execute
from benchmark.federation import rounds
from benchmark.method import compose
from benchmark.results import ResultStore
from tests.conftest import TRAINING, toy_spec
from tests.methods.parts import three_of_six
from tests.test_every_method import outcome

PARTIAL = three_of_six(keep_optimizer=True)
QUICK = {"csac": {"pretrain_rounds": 1}}


@pytest.mark.parametrize("changes", [{}, PARTIAL], ids=["full", "partial"])
@pytest.mark.parametrize(
    "expression", ["ga+silobn", "ga+fedprox", "csac+silobn", "fedsr+fedbn", "ga+copa"]
)
def test_compositions_continue_with_the_same_bits(expression, changes, tmp_path, place):
    spec = toy_spec(expression, overrides=QUICK, **changes)
    whole = execute(spec, ResultStore(tmp_path / "whole"), place)
    store = ResultStore(tmp_path / "stopped")
    for _ in range(2):
        with pytest.raises(Interrupted):
            execute(spec, store, place, stop=lambda: True)
    assert outcome(execute(spec, store, place)) == outcome(whole)
    assert whole.about["label"] == compose(expression).info.label


@pytest.mark.parametrize("method", ["ga", "csac", "copa", "fedsr"])
def test_clients_that_miss_a_class_and_have_less_than_a_batch(method, federation):
    spec = toy_spec(
        method,
        partition="dirichlet_label:alpha=0.1,clients=2,min_samples=4",
        training=TRAINING.changed({"batch_size": 32}),
        overrides=QUICK,
    )
    ours = federation(spec)
    assert any(client.size < 32 for client in ours.clients)
    assert any(len(set(client.train.labels)) < 4 for client in ours.clients)
    for round in rounds(ours.method, ours.server, ours.clients):
        assert 0 <= round.loss < 100
