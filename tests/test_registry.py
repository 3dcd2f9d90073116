"""Names: found by importing, suggested when wrong, registered once."""

import sys

import pytest

from benchmark.errors import UserError
from benchmark.method import methods
from benchmark.registry import Registry, load_plugin


@pytest.fixture
def fruit():
    registry = Registry("fruit", "benchmark.protocols")
    for name in ("apple", "apricot", "Pear"):
        registry.register(name)(name.upper())
    return registry


def test_look_up_and_patterns(fruit):
    assert fruit["apple"] == "APPLE"
    assert fruit.match("ap*") == ["apple", "apricot"]
    assert fruit.match("all") == ["Pear", "apple", "apricot"]
    assert fruit.match("Pear") == ["Pear"]


def test_a_wrong_name_gets_the_nearest_one(fruit):
    with pytest.raises(UserError, match=r"unknown fruit 'aple', did you mean 'apple'\?"):
        fruit["aple"]
    with pytest.raises(UserError, match="did you mean 'Pear'"):
        fruit["pear"]
    with pytest.raises(UserError, match="valid: Pear, apple, apricot"):
        fruit["zzz"]
    with pytest.raises(UserError, match=r"no fruit matches 'x\*'"):
        fruit.match("x*")


def test_registering_twice_is_an_error(fruit):
    with pytest.raises(ValueError, match="registered twice"):
        fruit.register("apple")(None)


def test_methods_are_discovered_without_a_list():
    assert {"fedavg", "fedprox", "fedbn", "silobn", "erm_pool"} <= set(methods.names())


def test_plugin_errors_are_one_line(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        load_plugin(tmp_path / "none.py")
    bad = tmp_path / "broken_plugin.py"
    bad.write_text("import nothing_of_this_name")
    with pytest.raises(UserError, match="failed: ModuleNotFoundError"):
        load_plugin(bad)
    note = tmp_path / "notes.txt"
    note.write_text("x")
    with pytest.raises(UserError, match="not a Python file"):
        load_plugin(note)


def test_a_plugin_is_loaded_once(tmp_path, monkeypatch):
    file = tmp_path / "my_fruit_plugin.py"
    file.write_text(
        "from benchmark.protocol import protocols\nprotocols.register('plugged')('yes')\n"
    )
    from benchmark.protocol import protocols

    protocols.discover()
    monkeypatch.setattr(protocols, "_entries", dict(protocols._entries))  # for this test alone
    monkeypatch.setattr(sys, "modules", sys.modules.copy())
    load_plugin(file)
    load_plugin(file)
    assert protocols["plugged"] == "yes"
