"""CCST: styles and their transfer, the enlarged list, the encoders, what is shared."""

import numpy as np
import pytest
import torch

from benchmark.errors import UserError
from benchmark.federation import rounds, visit
from benchmark.hparams import trial
from benchmark.method import compose
from benchmark.state import copy_of
from methods.ops import adain
from methods.ops.adain import PooledStyle, style_rows, transfer
from methods.ops.reconstruction import reconstruct
from methods.ops.restyle import EXTRA, ORIGINAL, draw_entries, restyled, swapped, swaps_of
from tests.conftest import TRAINING, toy_spec
from tests.methods.parts import three_of_six
from tests.test_federation import equal, run_rounds

PARTIAL = three_of_six(rounds=4)


def ccst(federation, training=TRAINING, method="ccst", **hparams):
    return federation(toy_spec(method, training=training, overrides={"ccst": hparams}))


def prepared(ours):
    ours.method.prepare(ours.server, ours.clients)
    client = ours.clients[0]
    ours.method.receive(ours.server, client)
    return client


def test_pooled_style_is_of_all_pixels_not_the_mean_of_the_images_styles():
    """Constant maps 0 and 2: the pooled std is √(1 + 1e-5), the images' own are √1e-5."""
    maps = torch.stack([torch.zeros(3, 4, 4), torch.full((3, 4, 4), 2.0)])
    pooled = PooledStyle()
    for image in maps:  # in batches of one: it adds up
        pooled.add(image[None])
    mean, std = pooled.result()[0]
    assert mean.tolist() == [1.0] * 3
    assert std.tolist() == pytest.approx([1.000005] * 3, abs=1e-7)
    assert style_rows(maps)[:, 1].mean().item() == pytest.approx(0.00316, abs=1e-5)


def test_after_the_transfer_maps_have_the_style_and_alpha_0_changes_nothing():
    torch.manual_seed(0)
    maps = 3 * torch.rand(4, 5, 8, 8) + 1
    rows = torch.rand(4, 2, 5) + 0.5
    changed = transfer(maps, rows, 1.0)
    assert torch.allclose(changed.mean((2, 3)), rows[:, 0], atol=1e-4)
    assert torch.allclose(changed.std((2, 3)), rows[:, 1], atol=1e-3)
    assert torch.equal(transfer(maps, rows, 0.0), maps)
    half = transfer(maps, rows, 0.5)
    assert torch.allclose(half, (changed + maps) / 2, atol=1e-6)


def banks(counts):
    return [[torch.zeros(count, 2, 3)] for count in counts]


def test_k_as_large_as_the_federation_gives_every_original_once_and_every_style_once():
    for own in range(3):
        entries = draw_entries(banks([1, 1]), 50, own, 3)
        assert (entries == ORIGINAL).sum() == 50
        assert entries.sort(1).values.tolist() == [[ORIGINAL, 0, 1]] * 50


def test_k_of_one_keeps_a_third_and_draws_are_distinct_clients():
    torch.manual_seed(0)
    entries = draw_entries(banks([1, 1]), 3000, 1, 1)
    assert entries.shape == (3000, 1)
    shares = [(entries == style).float().mean().item() for style in (ORIGINAL, 0, 1)]
    assert shares == pytest.approx([1 / 3] * 3, abs=0.03)
    pairs = draw_entries(banks([1, 1, 1, 1]), 500, 2, 2)
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert set(pairs.unique().tolist()) == {ORIGINAL, 0, 1, 2, 3}


def test_single_styles_are_drawn_from_the_drawn_clients_images():
    torch.manual_seed(0)
    entries = draw_entries(banks([4, 10]), 2000, 0, 3)
    first = entries[(entries >= 0) & (entries < 4)]
    second = entries[entries >= 4]
    assert len(first) == len(second) == 2000
    assert set(first.tolist()) == set(range(4))
    assert set(second.tolist()) == set(range(4, 14))


@pytest.mark.parametrize("encoder", ["feat", "rgb"])
def test_one_entry_without_strength_is_fedavg_bit_for_bit(federation, encoder):
    ours = ccst(federation, ccst_k=1, ccst_alpha=0.0, ccst_encoder=encoder)
    fedavg = run_rounds(federation(toy_spec("fedavg")))
    assert equal(run_rounds(ours), fedavg)
    assert not equal(run_rounds(ccst(federation, ccst_k=1, ccst_encoder=encoder)), fedavg)


def test_without_strength_the_list_is_k_copies_of_the_data(federation):
    training = TRAINING.changed({"local_steps": None, "local_epochs": 1, "batch_size": 9})
    ours = ccst(federation, training, ccst_alpha=0.0)
    client = prepared(ours)
    batches = list(ours.method.batches(client))
    assert len(batches) == 3 * 39 // 9
    own = next(client.train.evaluation_batches()).images.flatten(1)
    seen = torch.cat([batch.images for batch in batches]).flatten(1)
    assert [(seen == image).all(1).sum().item() for image in own] == [3] * 39


def test_an_epoch_is_k_times_as_long_and_a_number_of_steps_stays(federation):
    epochs = TRAINING.changed({"local_steps": None, "local_epochs": 2})
    found = {}
    for name, training in (("epochs", epochs), ("steps", TRAINING)):
        for k in (1, 3):
            ours = ccst(federation, training, ccst_k=k)
            found[name, k] = len(list(ours.method.batches(prepared(ours))))
    assert found["epochs", 1] == 2 * (39 // 8)
    assert found["epochs", 3] == 2 * (3 * 39 // 8)
    assert found["steps", 1] == found["steps", 3] == 2


def test_weights_and_steps_of_clients_are_of_the_original_counts(federation):
    ours = ccst(federation)
    client = prepared(ours)
    list(ours.method.batches(client))
    assert client.size == 39
    assert ours.method.weigh(ours.server, ours.clients) == [1 / 3] * 3


def test_colours_of_a_copy_are_the_other_clients_and_originals_are_untouched(federation):
    ours = ccst(federation, ccst_encoder="rgb")
    client = prepared(ours)
    rows = client.scratch["ccst"][0]
    assert rows.shape == (2, 2, 3)  # green's and blue's
    assert rows[:, 0].argmax(1).tolist() == [1, 2]
    images = client.train._pixels(np.arange(6))
    styles = np.array([ORIGINAL, 0, 1, ORIGINAL, 1, 0])
    changed = restyled(images, styles, rows, adain.rgb_coder(), 1.0)
    assert changed.dtype == torch.uint8
    assert torch.equal(changed[[0, 3]], images[[0, 3]])
    means = changed[[1, 2, 4, 5]].float().mean((2, 3)) / 255
    assert torch.allclose(means, rows[[0, 1, 1, 0], 0], atol=0.02)  # clipping moves them a little
    batch = next(ours.method.batches(client))
    styled = batch.extras[EXTRA] != ORIGINAL
    reds = client.train.transform.to_pixels(batch.images).mean((2, 3)).argmax(1) == 0
    assert torch.equal(reds, ~styled)


def test_styles_of_feat_are_those_of_the_initial_network(federation):
    ours = ccst(federation)
    initial = copy_of(ours.server.state)
    with torch.no_grad():
        for value in ours.clients[0].state.values():  # the lent model holds something else
            value.zero_()
    client = prepared(ours)
    first, second = client.memory["ccst"]["styles"][0]
    assert first.shape == (1, 2, 16) and second.shape == (1, 2, 32)
    model = ours.server.model.eval()
    maps = model.block1(next(ours.clients[1].train.evaluation_batches()).images)
    assert torch.allclose(first[0, 0], maps.mean((0, 2, 3)), atol=1e-5)
    assert torch.allclose(
        first[0, 1], maps.var((0, 2, 3), correction=0).add(1e-5).sqrt(), atol=1e-5
    )
    assert equal(copy_of(ours.server.state), initial)


def test_feat_gives_maps_the_style_inside_the_network_and_only_in_training(federation):
    ours = ccst(federation)
    client = prepared(ours)
    model = client.model.train()
    batch = next(ours.method.batches(client))
    styles, rows = batch.extras[EXTRA], client.scratch["ccst"]
    place = swaps_of(model)[0]
    maps = model.block1(batch.images)
    with swapped(model, styles, rows, 1.0):
        changed = place(maps)
        model.eval()
        assert place(maps) is maps
        model.train()
        with pytest.raises(UserError, match="another method changes how many images"):
            place(maps[:3])
    assert place(maps) is maps
    own = styles == ORIGINAL
    assert own.any() and not own.all()
    assert torch.equal(changed[own], maps[own])
    assert torch.allclose(changed[~own].mean((2, 3)), rows[0][styles[~own], 0], atol=1e-4)


def test_evaluation_is_that_of_the_plain_network(federation):
    ours = ccst(federation)
    run_rounds(ours)
    plain = federation(toy_spec("fedavg")).server.model
    plain.load_state_dict(ours.server.state)  # no keys of its own
    images = next(ours.clients[0].val.evaluation_batches()).images
    with torch.no_grad():
        assert torch.equal(ours.server.model.eval()(images), plain.eval()(images))


@pytest.mark.parametrize(
    ("hparams", "size"),
    [
        ({}, 2 * (16 + 32) * 4),
        ({"ccst_stages": 1}, 2 * 16 * 4),
        ({"ccst_encoder": "rgb"}, 2 * 3 * 4),
        ({"ccst_encoder": "rgb", "ccst_mode": "single"}, 39 * 2 * 3 * 4),
    ],
)
def test_a_style_is_two_numbers_a_channel_sent_once_to_all_others(federation, hparams, size):
    ours = ccst(federation, **hparams)
    run_rounds(ours)
    counts = dict(ours.server.traffic.counts)
    assert counts["up/style"] == 3 * size
    assert counts["down/style"] == 3 * 2 * size
    model = sum(t.numel() * t.element_size() for t in ours.server.state.values())
    once_more = 3 * model if "ccst_encoder" not in hparams else 0
    assert counts["down/weights"] == 3 * 3 * model + once_more
    assert {kind.split("/")[1] for kind in counts} - {"weights"} == set(compose("ccst").info.shares)


def test_styles_of_clients_that_were_never_sampled_are_there_and_stay(federation):
    ours = federation(toy_spec("ccst", **PARTIAL))
    met, before = set(), None
    for round in rounds(ours.method, ours.server, ours.clients):
        assert [len(client.memory["ccst"]["styles"]) for client in ours.clients] == [5] * 6
        entries = {client.id: client.memory["ccst"]["entries"].clone() for client in ours.clients}
        assert [len(entries[client.id]) for client in ours.clients] == [
            client.size for client in ours.clients
        ]
        used = set(torch.cat([own.flatten() for own in entries.values()]).tolist())
        assert used == {ORIGINAL, 0, 1, 2, 3, 4}
        assert before is None or equal(entries, before)
        before = entries
        met |= {client.id for client in round.chosen}
    assert len(met) > 3


def test_with_fedprox_both_act(federation):
    def both(mu):
        overrides = {"fedprox": {"mu": mu}}
        return run_rounds(federation(toy_spec("ccst+fedprox", overrides=overrides)))

    alone = run_rounds(ccst(federation))
    assert equal(both(0.0), alone)
    assert not equal(both(1.0), alone)


def test_searching_stays_with_the_encoder_that_needs_no_files():
    drawn = [trial(compose("ccst"), number, "ccst") for number in range(1, 20)]
    assert {settings["ccst_encoder"] for settings in drawn} == {"feat"}
    assert {settings["ccst_mode"] for settings in drawn} == {"overall", "single"}


def test_more_entries_than_clients_are_refused(federation):
    with pytest.raises(
        UserError, match="ccst_k=4 draws as many different clients, but there are 3"
    ):
        run_rounds(ccst(federation, ccst_k=4))
    run_rounds(federation(toy_spec("ccst", partition="pooled", overrides={"ccst": {"ccst_k": 1}})))


def test_a_network_without_convolutional_stages_is_refused_by_feat_alone(federation):
    with pytest.raises(UserError, match="choose a CNN or a ResNet"):
        federation(toy_spec("ccst", backbone="vit_tiny32"))
    rgb = {"ccst": {"ccst_encoder": "rgb"}}
    run_rounds(federation(toy_spec("ccst", backbone="vit_tiny32", overrides=rgb)), 1)


@pytest.fixture
def adain_files(tmp_path, monkeypatch):
    """Files like pytorch-AdaIN's, with random weights; the encoder's goes on after relu4_1."""
    torch.manual_seed(0)
    coder = adain.vgg_coder()
    longer = {**coder.encoder.state_dict(), "32.weight": torch.zeros(512, 512, 3, 3)}
    torch.save(longer, tmp_path / "vgg_normalised.pth")
    torch.save(coder.decoder.state_dict(), tmp_path / "decoder.pth")
    monkeypatch.setenv("FEDDOMAINBED_ADAIN", str(tmp_path))
    return tmp_path


def test_the_vgg_coder_has_the_published_layers():
    coder = adain.vgg_coder()
    shapes = [tuple(w.shape[:2]) for name, w in coder.encoder.named_parameters() if w.dim() == 4]
    assert shapes == [(3, 3), (64, 3), (64, 64), (128, 64), (128, 128), (256, 128)] + [
        (256, 256)
    ] * 3 + [(512, 256)]
    back = [tuple(w.shape[:2]) for name, w in coder.decoder.named_parameters() if w.dim() == 4]
    assert back == [(256, 512)] + [(256, 256)] * 3 + [
        (128, 256),
        (128, 128),
        (64, 128),
        (64, 64),
        (3, 64),
    ]
    assert [int(key.split(".")[0]) for key in coder.encoder.state_dict()][::2] == [
        0, 2, 5, 9, 12, 16, 19, 22, 25, 29,
    ]  # fmt: skip
    assert [int(key.split(".")[0]) for key in coder.decoder.state_dict()][::2] == [
        1, 5, 8, 11, 14, 18, 21, 25, 28,
    ]  # fmt: skip
    with torch.no_grad():
        maps = coder.encode(torch.rand(1, 3, 30, 30))
        assert maps.shape == (1, 512, 4, 4)
        assert coder.decode(maps, torch.Size((30, 30))).shape == (1, 3, 30, 30)


def test_with_the_papers_encoder_a_style_is_4096_bytes(federation, adain_files):
    training = TRAINING.changed({"rounds": 1, "local_steps": 1})
    ours = ccst(federation, training, ccst_encoder="vgg")
    run_rounds(ours)
    counts = dict(ours.server.traffic.counts)
    assert counts["up/style"] == 3 * 4096
    assert counts["down/style"] == 3 * 2 * 4096
    assert ours.clients[0].memory["ccst"]["styles"][0][0].shape == (1, 2, 512)
    loaded = adain.load_vgg_coder(adain_files, "any", torch.device("cpu"))
    stored = torch.load(adain_files / "vgg_normalised.pth", weights_only=True)
    assert torch.equal(loaded.encoder[29].weight, stored["29.weight"])
    assert not loaded.training and not any(w.requires_grad for w in loaded.parameters())


def test_absent_wrong_or_other_files_are_refused_in_one_line(federation, adain_files, monkeypatch):
    with pytest.raises(UserError, match=r"have ccst_digest=[0-9a-f]{16}, not 0123") as error:
        ccst(federation, ccst_encoder="vgg", ccst_digest="0123")
    digest = str(error.value).split("ccst_digest=")[1][:16]
    ccst(federation, ccst_encoder="vgg", ccst_digest=digest)
    adain.load_vgg_coder.cache_clear()
    torch.save({"1.weight": torch.zeros(2)}, adain_files / "decoder.pth")
    with pytest.raises(UserError, match=r"decoder.pth is not pytorch-AdaIN's: 1.weight"):
        ccst(federation, ccst_encoder="vgg")
    (adain_files / "decoder.pth").unlink()
    with pytest.raises(UserError, match="set FEDDOMAINBED_ADAIN to a folder with both"):
        ccst(federation, ccst_encoder="vgg")
    monkeypatch.delenv("FEDDOMAINBED_ADAIN")
    with pytest.raises(UserError, match="or choose ccst_encoder=feat"):
        ccst(federation, ccst_encoder="vgg")
    with pytest.raises(UserError, match="is not one of"):
        ccst(federation, ccst_encoder="inception")


@pytest.fixture
def resnet18(monkeypatch):
    """torchvision's ResNet-18 with random weights in the place of the download."""
    from torchvision.models import resnet18 as make

    torch.manual_seed(0)
    state = make().state_dict()
    monkeypatch.setattr("benchmark.backbones.weights.download", lambda weights: state)
    adain._resnet_encoder.cache_clear()
    yield state
    adain._resnet_encoder.cache_clear()


def test_the_resnet_variant_trains_and_shares_a_decoder(federation, resnet18):
    training = TRAINING.changed({"rounds": 1})
    ours = ccst(federation, training, ccst_encoder="resnet", ccst_decoder_rounds=2)
    state = copy_of(run_rounds(ours))
    counts = dict(ours.server.traffic.counts)
    assert {kind.split("/")[1] for kind in counts} == {"weights", "style", "decoder"}
    decoders = [client.memory["ccst_decoder"] for client in ours.clients]
    assert equal(decoders[0], decoders[1])
    size = sum(value.numel() * 4 for value in decoders[0].values())
    assert counts["up/decoder"] == 3 * 2 * size
    assert counts["down/decoder"] == 3 * 3 * size
    assert counts["up/style"] == 3 * 2 * 64 * 4
    again = ccst(federation, training, ccst_encoder="resnet", ccst_decoder_rounds=2)
    assert equal(run_rounds(again), state)  # the encoder is cached now: that draws nothing


def test_the_resnet_encoder_is_imagenets_up_to_layer1(resnet18):
    from datasets.transforms import transforms

    coder = adain.resnet_coder(torch.device("cpu"))
    pixels = torch.rand(2, 3, 32, 32)
    from benchmark.backbones.base import make_backbone

    network = make_backbone("resnet18", 2, "imagenet").eval()
    x = network.conv1(transforms["imagenet"](32).from_pixels(pixels))
    expected = network.layer1(network.maxpool(network.relu(network.bn1(x))))
    assert torch.allclose(coder.encode(pixels), expected, atol=1e-5)
    assert not coder.encode(pixels).requires_grad


def test_reconstruction_gets_better(federation, resnet18):
    training = TRAINING.changed({"local_steps": 60, "batch_size": 4})
    client = ccst(federation, training, ccst_encoder="rgb").clients[0]
    coder = adain.resnet_coder(torch.device("cpu"))
    first = reconstruct(client, coder, "once", 0.0)
    assert reconstruct(client, coder, "once", 1e-2) < 0.7 * first


def test_a_visit_leaves_the_clients_own_samples_alone(federation):
    ours = ccst(federation)
    client = prepared(ours)
    samples = client.train
    visit(ours.method, ours.server, client)
    assert client.train is samples
    assert len(client.train) == 39
