"""L2A-OT: transport with literal numbers, what is frozen when, novel domains that move away."""

import pytest
import torch
import torch.nn.functional as F

from benchmark.federation import rounds
from benchmark.method import compose
from benchmark.state import copy_of
from methods.l2a_ot import Generator
from methods.ops.sources import source_numbers
from methods.ops.transport import cosine_cost, transport_cost, transport_plan
from tests.conftest import TRAINING, toy_spec
from tests.test_federation import equal, run_rounds


def spec(training=TRAINING, **given):
    return toy_spec("l2a_ot", training=training, overrides={"l2a_ot": given})


def test_two_points_against_two():
    """Costs 0 on the diagonal, else 1, regulariser 1: ½·σ(1) = .36553 stays, cost 1 − σ(1)."""
    cost, half = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]), torch.full((1, 2), 0.5)
    plan = transport_plan(cost, half, half, 1.0, 20)
    assert plan[0].flatten().tolist() == pytest.approx(
        [0.36553, 0.13447, 0.13447, 0.36553], abs=1e-5
    )
    assert transport_cost(cost, half, half, 1.0, 20).item() == pytest.approx(0.26894, abs=1e-5)


def test_plans_have_the_given_masses():
    torch.manual_seed(0)
    cost = 2 * torch.rand(4, 7, 5)
    here, there = torch.rand(4, 7).softmax(1), torch.rand(4, 5).softmax(1)
    plan = transport_plan(cost, here, there, 1.0, 20)
    assert plan.sum(2) == pytest.approx(here, abs=1e-5)
    assert plan.sum(1) == pytest.approx(there, abs=1e-5)


def test_points_without_mass_take_no_part_and_empty_sets_cost_nothing():
    torch.manual_seed(0)
    cost = torch.rand(1, 6, 6, requires_grad=True)
    few = torch.tensor([[0.5, 0.5, 0.0, 0.0, 0.0, 0.0]])
    others = torch.tensor([[0.0, 0.0, 0.0, 1 / 3, 1 / 3, 1 / 3]])
    small = transport_cost(
        cost[:, :2, 3:], torch.full((1, 2), 0.5), torch.full((1, 3), 1 / 3), 1.0, 20
    )
    assert transport_cost(cost, few, others, 1.0, 20).item() == pytest.approx(
        small.item(), rel=1e-5
    )
    for here, there in ((torch.zeros(1, 6), others), (few, torch.zeros(1, 6))):
        value = transport_cost(cost, here, there, 1.0, 20)
        assert value.item() == 0
        assert torch.autograd.grad(value, cost)[0].abs().max() == 0


def test_the_cost_is_one_minus_the_cosine():
    one, other = torch.tensor([[1.0, 0.0], [3.0, 4.0]]), torch.tensor([[2.0, 0.0], [0.0, -1.0]])
    assert cosine_cost(one, other).flatten().tolist() == pytest.approx([0, 1, 0.4, 1.8], abs=1e-6)


@pytest.mark.parametrize("size", [32, 33, 75])
def test_the_generator_keeps_size_and_range_and_listens_to_the_domain(size):
    torch.manual_seed(0)
    generator = Generator(3, 16, 1)
    images = torch.rand(2, 3, size, size) * 2 - 1
    made = [generator(images, torch.full((2,), k)) for k in (0, 3, 5)]
    assert all(m.shape == images.shape and m.abs().max() <= 1 for m in made)
    assert (made[0] - made[1]).abs().mean() > 1e-3
    assert (made[1] - made[2]).abs().mean() > 1e-3


def test_with_real_images_only_it_is_balanced_pooled_erm_bit_for_bit(federation):
    erm = run_rounds(federation(toy_spec("erm_pool", overrides={"erm_pool": {"balanced": True}})))
    ours = federation(spec(l2a_alpha=1.0))
    assert equal(run_rounds(ours), erm)
    assert ours.clients[0].memory == {}
    assert not equal(run_rounds(federation(spec())), erm)


def test_what_is_trained_when(federation):
    """Rounds 0 and 1 of 4 train the domain classifier, then it is frozen and the generator learns;
    the classifier that judges generated images is the network at that moment, for ever."""
    training = TRAINING.changed({"rounds": 4})
    ours = federation(spec(training, l2a_warmup=0.5))
    memories, states = [], []
    for _ in rounds(ours.method, ours.server, ours.clients):
        states.append(copy_of(ours.server.state))
        memory = ours.clients[0].memory
        memories.append({k: copy_of(memory[k]) for k in memory if k != "l2a_adam"})
    names = [set(memory) for memory in memories]
    assert names[:2] == [{"l2a_domains"}] * 2
    assert names[2:] == [{"l2a_domains", "l2a_classes", "l2a_generator"}] * 2
    domains = [memory["l2a_domains"] for memory in memories]
    assert domains[0]["head.weight"].shape[0] == 3
    assert not torch.equal(domains[0]["head.weight"], domains[1]["head.weight"])
    assert equal(domains[1], domains[2])
    assert equal(domains[2], domains[3])
    assert equal(memories[2]["l2a_classes"], states[1])
    assert equal(memories[3]["l2a_classes"], states[1])
    generators = [memory["l2a_generator"] for memory in memories[2:]]
    assert not torch.equal(generators[0]["leave.weight"], generators[1]["leave.weight"])
    adam = ours.clients[0].memory["l2a_adam"]
    assert adam["state"][0]["step"] == 12  # two rounds of two steps for each of three sources


def started(federation, **given):
    ours = federation(spec(**{"l2a_warmup": 0.0, **given}))
    client = ours.clients[0]
    ours.method.receive(ours.server, client)
    client.optimizer = ours.method.optimizer(client)
    client.model.train()
    return ours.method, client, next(iter(ours.method.batches(client)))


def test_novel_domains_move_away_from_the_sources(federation):
    far = {"l2a_class": 0.0, "l2a_cycle": 0.0, "l2a_lr": 0.01}
    method, client, batch = started(federation, **far)
    sources = source_numbers(client, batch.domains)
    torch.manual_seed(0)

    def distance():
        with torch.no_grad():
            images = client.scratch["l2a_generator"](batch.images, sources + 3)
            return method._distance(client, batch.images, images, sources).item()

    before = distance()
    for _ in range(30):
        made = method._generate(client, batch)
    assert distance() > before + 0.05
    assert not made.requires_grad
    assert made.shape == batch.images.shape


def test_the_cycle_leads_back(federation):
    back = {"l2a_class": 0.0, "l2a_domain": 0.0, "l2a_lr": 0.01}
    method, client, batch = started(federation, **back)
    generator = client.scratch["l2a_generator"]
    sources = source_numbers(client, batch.domains)

    def error():
        with torch.no_grad():
            there = generator(batch.images, sources + 3)
            return F.l1_loss(generator(there, sources), batch.images).item()

    before = error()
    for _ in range(30):
        method._generate(client, batch)
    assert error() < 0.8 * before


def test_the_generators_step_leaves_every_other_network_alone(federation):
    method, client, batch = started(federation)
    names = ("l2a_domains", "l2a_classes")
    before = [copy_of(client.scratch[name].state_dict()) for name in names]
    own = copy_of(client.state)
    method._generate(client, batch)
    for name, state in zip(names, before, strict=True):
        assert equal(client.scratch[name].state_dict(), state)
    assert equal(client.state, own)
    assert all(p.grad is None for p in client.scratch["l2a_classes"].parameters())


def test_the_network_learns_from_both_kinds_of_images(federation):
    method, client, batch = started(federation, l2a_alpha=0.3)
    novel = torch.randn_like(batch.images)
    batch.extras["novel"] = novel
    real, made = (F.cross_entropy(client.model(x), batch.labels) for x in (batch.images, novel))
    expected = 0.3 * real + 0.7 * made
    assert method.loss(client, batch).item() == pytest.approx(expected.item(), rel=1e-5)


def test_it_runs_where_all_images_are_also_with_odd_batches(federation):
    training = TRAINING.changed({"batch_size": 4, "keep_optimizer": True})
    ours = federation(spec(training, balanced=False))
    assert len(ours.clients) == 1
    assert compose("l2a_ot").info.shares == ("images",)
    state = run_rounds(ours)
    assert all(torch.isfinite(value).all() for value in state.values())
    assert set(ours.server.traffic.counts) == {"down/weights", "up/weights"}
    assert state.keys() == federation(toy_spec("erm_pool")).server.state.keys()
