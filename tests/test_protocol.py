"""Plans: what a protocol means on a dataset, and the papers' settings to the number."""

import pytest

from benchmark.errors import UserError
from benchmark.protocol import Settings, plan, protocols
from tests.conftest import TRAINING, toy_protocol


def planned(name, dataset, **changes):
    specs = plan(protocols[name], ["fedavg"], datasets=[dataset], **changes).specs
    assert len({spec.setting for spec in specs}) == 1
    return specs


@pytest.mark.parametrize(
    ("name", "dataset", "targets", "seeds", "expected"),
    [
        (
            "fedfd",
            "PACS",
            4,
            4,
            {"backbone": "resnet18_b256", "rounds": 40, "local_steps": 200, "batch_size": 64}
            | {"lr": 0.01, "momentum": 0.5, "validate_every": 20, "weights": "samples"},
        ),
        ("fedfd", "DomainNet10", 6, 4, {"backbone": "alexnet_bn", "pretrained": "none"}),
        (
            "fedfd_cross_silo",
            "PACS",
            4,
            4,
            {"rounds": 120, "local_steps": 20, "clients_per_round": 10}
            | {"partition": "dirichlet_label:alpha=0.5,clients=10,min_samples=10"},
        ),
        (
            "gperxan",
            "OfficeHome",
            4,
            3,
            {"backbone": "resnet50", "rounds": 100, "local_epochs": 1, "lr": 0.002}
            | {"split": "random:fraction=0.1", "schedule": "cosine", "image_size": 224},
        ),
        (
            "gperxan",
            "Camelyon17",
            5,
            3,
            {"backbone": "densenet121", "image_size": 96, "split": "random:fraction=0.2"},
        ),
        (
            "stablefdg",
            "PACS",
            4,
            3,
            {"backbone": "resnet18", "rounds": 50, "local_epochs": 5, "clients_per_round": 10}
            | {"lr": 0.001, "weight_decay": 5e-4, "weights": "uniform", "split": "official"}
            | {"partition": "single_domain_k:clients=10"},
        ),
        (
            "stablefdg",
            "DigitsDG",
            4,
            3,
            {"backbone": "cnn_digitsdg", "lr": 0.02, "schedule": "step", "step_rounds": 20}
            | {"clip": 2.5, "image_size": 32, "rounds": 50},
        ),
        (
            "stablefdg",
            "DomainNet",
            6,
            3,
            {"backbone": "resnet50", "rounds": 60, "batch_size": 64}
            | {"partition": "single_domain_k:clients=6"},
        ),
        ("fedadg", "VLCS", 4, 5, {"lr": 0.01, "rounds": 20, "local_epochs": 10, "batch_size": 16}),
        ("fedadg", "OfficeHome", 4, 5, {"lr": 0.05, "rounds": 30, "split": "random:fraction=0.3"}),
    ],
)
def test_the_papers_settings(name, dataset, targets, seeds, expected):
    specs = planned(name, dataset)
    assert len(specs) == targets * seeds
    flat = specs[0].to_json() | specs[0].to_json()["training"]
    assert {key: flat[key] for key in expected} == expected


def test_every_protocol_plans_on_every_dataset_it_names():
    for name in protocols:
        if isinstance(protocols[name], str):
            continue  # a test plugin
        assert plan(protocols[name], ["fedavg", "erm_pool"]).specs


def test_the_users_changes_win_over_the_papers():
    (spec,) = plan(
        protocols["stablefdg"],
        ["fedavg"],
        datasets=["DigitsDG"],
        targets=["svhn"],
        settings=Settings.parse(["training.lr=0.5"]),
        changes={"backbone": "cnn_small_bn", "seeds": (7,)},
    ).specs
    assert (spec.training.lr, spec.backbone, spec.seed) == (0.5, "cnn_small_bn", 7)
    assert spec.training.clip == 2.5


def test_a_target_may_be_a_letter_or_a_spelling():
    specs = plan(protocols["fedfd"], ["fedavg"], datasets=["PACS"], targets=["P", "Art painting"])
    assert [spec.target for spec in specs.specs[::4]] == ["photo", "art_painting"]


def test_a_target_of_one_dataset_is_planned_there_alone():
    both = plan(protocols["fedfd"], ["fedavg"], datasets=["PACS", "OfficeHome"], targets=["photo"])
    assert {spec.dataset for spec in both.specs} == {"PACS"}
    with pytest.raises(UserError, match="unknown target domain of PACS, OfficeHome 'phto'"):
        plan(protocols["fedfd"], ["fedavg"], datasets=["PACS", "OfficeHome"], targets=["phto"])


def test_centralised_methods_run_on_pooled_data_whatever_the_partition():
    training = TRAINING.changed({"clients_per_round": 5})
    protocol = toy_protocol(partition="single_domain_k:clients=2", training=training)
    specs = plan(protocol, ["erm_pool"]).specs
    assert {spec.partition for spec in specs} == {"pooled"}


def test_an_image_size_that_the_network_cannot_take_fails_before_any_run():
    with pytest.raises(UserError, match="takes images of 32×32 pixels, not 64×64"):
        plan(toy_protocol(image_size=64), ["fedavg"])
