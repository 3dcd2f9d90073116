"""DANN: the reversal, where gradients go, the growth of λ, ERM at λ = 0."""

import pytest
import torch
import torch.nn.functional as F

from benchmark.method import compose, make_method
from benchmark.state import copy_of
from methods.dann import reverse_gradient
from methods.ops.sources import source_count, source_numbers
from tests.conftest import toy_spec
from tests.test_federation import equal, run_rounds


def test_the_reversal_is_the_identity_forwards_and_minus_lambda_backwards():
    x = torch.randn(5, 3, requires_grad=True)
    incoming = torch.randn(5, 3)
    y = reverse_gradient(x, 0.3)
    assert torch.equal(y, x)
    (gradient,) = torch.autograd.grad(y, x, incoming)
    assert torch.equal(gradient, -0.3 * incoming)


def test_lambda_grows_as_in_the_paper():
    method = make_method("dann", {"dann_lambda": 2.0})
    values = [method.strength(progress) for progress in (0.0, 0.1, 0.5, 1.0)]
    assert values == pytest.approx([0.0, 0.924234, 1.973229, 1.999818], abs=1e-6)
    assert make_method("dann", {"dann_ramp": False}).strength(0.0) == 1.0


@pytest.mark.parametrize(("target", "present"), [("green", [0, 2, 3]), ("grey", [0, 1, 2])])
def test_sources_are_numbered_without_the_gap_of_the_target(federation, target, present):
    client = federation(toy_spec("dann", target=target)).clients[0]
    assert source_count(client) == 3
    domains = torch.tensor([present[2], present[0], present[1], present[2]])
    assert source_numbers(client, domains).tolist() == [2, 0, 1, 2]


def started(federation, progress: int, **given):
    ours = federation(toy_spec("dann", overrides={"dann": given}))
    client = ours.clients[0]
    client.round = progress
    ours.method.receive(ours.server, client)
    client.model.train()
    return ours.method, client, next(iter(ours.method.batches(client)))


def gradients(loss, modules):
    parameters = [p for module in modules for p in module.parameters()]
    return torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)


def test_the_features_ascend_the_head_descends_and_the_classifier_takes_no_part(federation):
    method, client, batch = started(federation, 1, dann_lambda=0.7, dann_ramp=False)
    model, head = client.model, client.scratch["dann"]
    stages = [getattr(model, stage) for stage in model.stages]
    features = model.features(batch.images)
    classes = F.cross_entropy(model.classifier(features), batch.labels)
    domains = F.cross_entropy(head(features), source_numbers(client, batch.domains))
    loss = method.loss(client, batch)
    assert loss.item() == pytest.approx((classes + domains).item(), rel=1e-6)
    for ours, plain, adversary in zip(
        gradients(loss, stages), gradients(classes, stages), gradients(domains, stages), strict=True
    ):
        assert torch.allclose(ours, plain - 0.7 * adversary, atol=1e-5)
    for ours, plain in zip(gradients(loss, [head]), gradients(domains, [head]), strict=True):
        assert torch.allclose(ours, plain, atol=1e-6)
    for ours, plain in zip(
        gradients(loss, [model.classifier]), gradients(classes, [model.classifier]), strict=True
    ):
        assert torch.allclose(ours, plain, atol=1e-6)


def test_without_lambda_it_is_pooled_erm_bit_for_bit(federation):
    erm = run_rounds(federation(toy_spec("erm_pool")))
    assert equal(
        run_rounds(federation(toy_spec("dann", overrides={"dann": {"dann_lambda": 0.0}}))), erm
    )
    assert not equal(run_rounds(federation(toy_spec("dann"))), erm)


def test_the_head_lives_in_memory_and_learns(federation):
    ours = federation(toy_spec("dann"))
    run_rounds(ours, 1)
    first = copy_of(ours.clients[0].memory["dann"])
    ours = federation(toy_spec("dann"))
    run_rounds(ours)
    last = ours.clients[0].memory["dann"]
    assert first["4.weight"].shape == (3, 256)
    assert not torch.equal(first["4.weight"], last["4.weight"])
    assert ours.server.state.keys() == federation(toy_spec("erm_pool")).server.state.keys()


def test_it_runs_where_all_images_are(federation):
    ours = federation(toy_spec("dann"))
    assert len(ours.clients) == 1
    assert compose("dann").info.shares == ("images",)
    run_rounds(ours, 1)
    assert set(ours.server.traffic.counts) == {"down/weights", "up/weights"}
