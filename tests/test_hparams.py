"""Hyper-parameters: types, bounds, spaces, and text from the command line."""

import dataclasses

import pytest

from benchmark.errors import UserError
from benchmark.hparams import (
    Choice,
    LogUniform,
    Uniform,
    format_expression,
    hp,
    parse_expression,
    resolve,
    trial,
)


@dataclasses.dataclass(frozen=True)
class Knobs:
    mu: float = hp(0.1, LogUniform(1e-3, 1), "pull", low=0)
    kind: str = hp("paper", Choice("paper", "code"), "variant")
    size: int | None = hp(None, doc="size")
    on: bool = hp(True, doc="switch")
    layers: tuple[int, ...] = hp((1, 2), doc="stages")
    mix: float = hp(0.5, Uniform(0, 1), "mix", low=0, high=1)


def test_text_is_brought_to_type():
    given = {"mu": "0.5", "kind": "code", "size": "7", "on": "false", "layers": "1/2/3"}
    values = resolve(Knobs, given, "knobs")
    assert values == {
        "mu": 0.5,
        "kind": "code",
        "size": 7,
        "on": False,
        "layers": (1, 2, 3),
        "mix": 0.5,
    }
    assert type(values["size"]) is int
    assert resolve(Knobs, {"size": "none"}, "knobs")["size"] is None
    assert resolve(Knobs, {"mu": 1}, "knobs")["mu"] == 1.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mue": "1"}, r"unknown hyper-parameter of knobs 'mue', did you mean 'mu'\?"),
        ({"mue": "1"}, r"defaults: mu=0.1, kind=paper"),
        ({"mu": "-1"}, "knobs.mu=-1.0 is too small: at least 0"),
        ({"mix": "1.5"}, "too large: at most 1"),
        ({"mu": "much"}, "knobs.mu=much is not of type float"),
        ({"mu": "nan"}, "not of type float"),
        ({"mu": "none"}, "knobs.mu cannot be none"),
        ({"kind": "other"}, r"knobs.kind=other is not one of \{paper, code\}"),
        ({"size": "1.5"}, "knobs.size=1.5 is not of type int or none"),
        ({"on": "maybe"}, "not of type bool"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(given, message):
    with pytest.raises(UserError, match=message) as error:
        resolve(Knobs, given, "knobs")
    assert "\n" not in str(error.value)


def test_trial_zero_is_the_defaults_and_others_are_drawn_from_the_spaces():
    assert trial(Knobs, 0, "knobs") == {}
    drawn = [trial(Knobs, k, "knobs") for k in range(1, 60)]
    assert all(1e-3 <= values["mu"] <= 1 for values in drawn)
    assert {values["kind"] for values in drawn} == {"paper", "code"}
    assert all("size" not in values for values in drawn)
    assert trial(Knobs, 3, "knobs") == trial(Knobs, 3, "knobs") != trial(Knobs, 4, "knobs")


def test_each_field_has_a_stream_of_its_own():
    @dataclasses.dataclass(frozen=True)
    class More(Knobs):
        extra: float = hp(0.0, Uniform(0, 1), "new")

    before, after = trial(Knobs, 5, "knobs"), trial(More, 5, "knobs")
    assert before == {name: after[name] for name in before}


def test_expressions_round_trip():
    assert parse_expression("dirichlet:alpha=0.1,clients=3") == (
        "dirichlet",
        {"alpha": "0.1", "clients": "3"},
    )
    assert format_expression("dirichlet", {"clients": 3, "alpha": 0.1}) == (
        "dirichlet:alpha=0.1,clients=3"
    )
    assert parse_expression("plain") == ("plain", {})
    with pytest.raises(UserError, match="name:key=value"):
        parse_expression("dirichlet:alpha")
