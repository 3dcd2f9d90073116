"""The demonstration is worth looking at: the shift between MiniDigits' domains is real."""

import pytest

from benchmark.execute import Place, execute
from benchmark.protocol import plan, protocols
from benchmark.results import Collection
from leaderboard.select import select


@pytest.mark.parametrize("target", ["handwritten", "blended", "print", "street"])
def test_fedavg_does_far_better_than_chance_and_far_worse_than_at_home(target, store, tmp_path):
    (spec,) = plan(protocols["demo"], ["fedavg"], targets=[target]).specs
    result = execute(spec, store, Place(data=tmp_path))
    (row,) = select(Collection([result], [], {}, {}).frame()).itertuples()
    assert row.test > 0.25, "barely better than the 0.1 of guessing"
    assert row.val > 0.75
    assert row.val - row.test > 0.1, "no shift to speak of"
