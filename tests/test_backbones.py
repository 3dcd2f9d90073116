"""Backbones: the spec's counts, torchvision's logits, stages to insert into, strict loading."""

import copy
import os
import sys
import urllib.error
from pathlib import Path

import pytest
import torch
import torchvision
from torch import nn

from benchmark.backbones import base
from benchmark.backbones.base import (
    backbones,
    check_image_size,
    make_backbone,
    replace_norm,
    weights_used,
)
from benchmark.backbones.vit import VisionTransformer
from benchmark.backbones.weights import load_strictly
from benchmark.errors import UserError
from benchmark.state import batchnorm_keys

torch.set_num_threads(1)


def on_meta(name: str, classes: int) -> base.Backbone:
    """The network without memory for its weights."""
    with torch.device("meta"):
        return backbones[name].make(classes)


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def images(size: int, batch: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randn(batch, 3, size, size, generator=generator)
    return pixels.contiguous(memory_format=torch.channels_last)


def shaken(model: nn.Module) -> nn.Module:
    """With running statistics that are not those of a fresh network, in evaluation mode."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_(0, 0.1, generator=generator)
            module.running_var.uniform_(0.5, 1.5, generator=generator)
    return model.to(memory_format=torch.channels_last).eval()


@pytest.fixture(scope="module")
def resnet18():
    """torchvision's network with a state of its own."""
    return shaken(torchvision.models.resnet18(num_classes=5))


# Counts


@pytest.mark.parametrize(
    ("name", "classes", "parameters"),
    [
        ("resnet18", 7, 11_180_103),
        ("resnet18_b256", 7, 11_310_151),
        ("alexnet", 1000, 61_100_840),
        ("alexnet_bn", 10, 57_063_498),
        ("cnn_digitsdg", 10, 115_146),
        ("cnn_small_bn", 10, 115_658),
    ],
)
def test_parameters_with_the_classifier(name, classes, parameters):
    assert count(on_meta(name, classes)) == parameters


@pytest.mark.parametrize(
    ("name", "parameters", "size"),
    [
        ("resnet18", 11_176_512, 512),
        ("resnet50", 23_508_032, 2048),
        ("resnet50_v1", 23_508_032, 2048),
        ("densenet121", 6_953_856, 1024),
        ("vit_b16", 85_798_656, 768),
        ("cnn_digitsdg", 112_576, 256),
    ],
)
def test_parameters_of_the_features(name, parameters, size):
    model = on_meta(name, 7)
    assert count(model) - count(model.classifier) == parameters
    assert model.feature_size == size
    assert model.class_count == 7


@pytest.mark.parametrize(
    ("name", "layers", "channels"),
    [
        ("resnet18", 20, 4_800),
        ("resnet50", 53, 26_560),
        ("densenet121", 121, 41_824),
        ("alexnet_bn", 7, 9_344),
        ("resnet18_b256", 21, 4_800 + 256),
        ("cnn_small_bn", 4, 256),
        ("alexnet", 0, 0),
        ("vit_b16", 0, 0),
        ("cnn_digitsdg", 0, 0),
    ],
)
def test_batchnorm_entries(name, layers, channels):
    model = on_meta(name, 10)
    keys, state = batchnorm_keys(model), model.state_dict()
    assert len(keys.affine) == len(keys.statistics) == 2 * layers
    assert len(keys.counters) == layers
    assert sum(state[key].numel() for key in keys.affine) == 2 * channels


@pytest.mark.parametrize("name", backbones.names())
def test_every_backbone_says_truly_whether_it_has_batchnorm(name):
    assert backbones[name].batchnorm == bool(batchnorm_keys(on_meta(name, 3)).all)
    assert backbones[name].doc.split("\n")[0].endswith(".")


# Shapes


@pytest.mark.parametrize("name", backbones.names())
def test_every_backbone_classifies_its_smallest_images(name):
    model = on_meta(name, 5)
    smallest = torch.empty(2, 3, *[model.smallest_image] * 2, device="meta")
    assert model.features(smallest).shape == (2, model.feature_size)
    assert model(smallest).shape == (2, 5)
    check_image_size(name, model.smallest_image)


@pytest.mark.parametrize(
    ("name", "size", "wanted"),
    [
        ("cnn_tiny_bn", 96, "32×32"),
        ("cnn_digitsdg", 28, "32×32"),
        ("alexnet", 62, "at least 63×63"),
        ("densenet121", 28, "at least 29×29"),
        ("vit_b16", 96, "224×224"),
        ("vit_b16", 384, "224×224"),
    ],
)
def test_images_that_do_not_fit_are_refused_in_one_line(name, size, wanted):
    with pytest.raises(UserError, match=f"{wanted} pixels, not {size}×{size}") as error:
        on_meta(name, 5)(torch.empty(2, 3, size, size, device="meta"))
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=wanted):
        check_image_size(name, size)


@pytest.mark.parametrize("name", ["alexnet", "densenet121"])
def test_smallest_is_the_smallest(name, monkeypatch):
    model = on_meta(name, 5)
    monkeypatch.setattr(model, "smallest_image", 1)
    size = type(model).smallest_image - 1
    with pytest.raises(RuntimeError):
        model(torch.empty(2, 3, size, size, device="meta"))


def test_a_narrow_image_is_refused_too():
    with pytest.raises(UserError, match="not 32×64"):
        on_meta("cnn_tiny_bn", 5)(torch.empty(2, 3, 32, 64, device="meta"))


# The numbers of torchvision


@pytest.mark.parametrize(
    ("name", "theirs", "size"),
    [
        ("resnet18", "resnet18", 64),
        ("resnet50", "resnet50", 64),
        ("densenet121", "densenet121", 64),
        ("alexnet", "alexnet", 80),
    ],
)
def test_logits_are_torchvisions(name, theirs, size):
    reference = shaken(torchvision.models.get_model(theirs, num_classes=5))
    model = on_meta(name, 5).to_empty(device="cpu").to(memory_format=torch.channels_last).eval()
    load_strictly(model, reference.state_dict(), "no fit")
    with torch.no_grad():
        expected, found = reference(images(size)), model(images(size))
        assert torch.equal(found, expected)
        assert torch.equal(model.classifier(model.features(images(size))), expected)
    assert expected.std() > 1e-4


def test_vit_logits_are_torchvisions():
    """On a small one: the class does not depend on the size."""

    def network() -> nn.Module:
        return torchvision.models.VisionTransformer(
            image_size=48, patch_size=16, num_layers=3, num_heads=2, hidden_dim=32, mlp_dim=64
        )

    reference = network().eval()
    nn.init.normal_(reference.heads.head.weight)
    model = VisionTransformer(network()).eval()
    load_strictly(model, reference.state_dict(), "no fit")
    with torch.no_grad():
        expected = reference(images(48))
        assert torch.equal(model(images(48)), expected)
    assert expected.std() > 1e-2
    assert model.state_dict().keys() == reference.state_dict().keys()
    with pytest.raises(UserError, match="48×48"):
        model(images(64))


@pytest.mark.parametrize(
    ("name", "theirs"),
    [("resnet18", "resnet18"), ("resnet50", "resnet50"), ("vit_b16", "vit_b_16")],
)
def test_keys_are_torchvisions(name, theirs):
    with torch.device("meta"):
        reference = torchvision.models.get_model(theirs, num_classes=5).state_dict()
    assert {k: v.shape for k, v in on_meta(name, 5).state_dict().items()} == {
        k: v.shape for k, v in reference.items()
    }


@pytest.mark.parametrize("name", ["alexnet", "densenet121"])
def test_keys_that_differ_from_torchvisions_are_told_one_by_one(name):
    with torch.device("meta"):
        reference = torchvision.models.get_model(name, num_classes=5).state_dict()
    model = on_meta(name, 5)
    own = model.state_dict()
    renamed = {model.own_key(key): value.shape for key, value in reference.items()}
    assert renamed == {key: value.shape for key, value in own.items()}
    assert len(renamed) == len(reference)
    assert [model.own_key(key) for key in own] == list(own)


def test_alexnet_bn_with_idle_normalisation_is_alexnet():
    """Fresh statistics and affine are the identity up to epsilon: torchvision's logits remain."""
    reference = torchvision.models.alexnet(num_classes=5).eval()
    model = on_meta("alexnet_bn", 5).to_empty(device="cpu").eval()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.reset_parameters()
    load_strictly(model, reference.state_dict(), "no fit")
    with torch.no_grad():
        torch.testing.assert_close(model(images(80)), reference(images(80)), rtol=1e-3, atol=1e-5)
    assert not any(isinstance(module, nn.Dropout) for module in model.modules())
    kinds = [type(part).__name__ for part in model.conv1]
    assert kinds == ["Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d"]
    assert [type(part).__name__ for part in model.fc2] == ["Linear", "BatchNorm1d", "ReLU"]


def test_v1_strides_halve_earlier_and_keep_the_sizes():
    model, modern = on_meta("resnet50_v1", 5), on_meta("resnet50", 5)
    assert model.layer3[0].conv1.stride == (2, 2)
    assert model.layer3[0].conv2.stride == (1, 1)
    assert modern.layer3[0].conv1.stride == (1, 1)
    batch = torch.empty(1, 3, 64, 64, device="meta")
    assert model.layer1[0].conv2.stride == modern.layer1[0].conv2.stride
    assert model(batch).shape == modern(batch).shape


@pytest.mark.parametrize("name", ["cnn_tiny_bn", "densenet121"])
def test_a_network_can_be_called_with_other_weights(name):
    """Methods that look one step ahead do so; a part named like a method would break it."""
    torch.manual_seed(0)
    model = make_backbone(name, 3, "none").eval()
    zero = {key: torch.zeros_like(value) for key, value in model.named_parameters()}
    logits = torch.func.functional_call(model, zero, images(32))
    assert torch.equal(logits, torch.zeros(2, 3))
    assert all(model.get_submodule(path) is module for path, module in model.named_modules())


def test_weights_lie_in_channels_last_memory():
    weight = make_backbone("cnn_tiny_bn", 3, "none").block2[0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)


# Stages


class Probe(nn.Module):
    """Remembers what it saw and changes it."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(()))
        self.seen = None

    def forward(self, x):
        self.seen = x.detach()
        return x * self.gain


SHAPES = {
    "resnet18": {
        "stem": (64, 16, 16),
        "layer1": (64, 16, 16),
        "layer2": (128, 8, 8),
        "layer3": (256, 4, 4),
        "layer4": (512, 2, 2),
    },
    "densenet121": {
        "stem": (64, 16, 16),
        "denseblock1": (256, 16, 16),
        "transition1": (128, 8, 8),
        "denseblock2": (512, 8, 8),
        "transition2": (256, 4, 4),
        "denseblock3": (1024, 4, 4),
        "transition3": (512, 2, 2),
        "denseblock4": (1024, 2, 2),
        "norm5": (1024, 2, 2),
    },
    "alexnet": {
        "conv1": (64, 7, 7),
        "conv2": (192, 3, 3),
        "conv3": (384, 3, 3),
        "conv4": (256, 3, 3),
        "conv5": (256, 1, 1),
    },
    "cnn_tiny_bn": {
        "block1": (16, 16, 16),
        "block2": (32, 8, 8),
        "block3": (32, 4, 4),
        "block4": (64, 2, 2),
    },
    "vit_b16": {"embedding": (197, 768), **{f"encoder_layer_{k}": (197, 768) for k in range(12)}},
}


@pytest.mark.parametrize("name", SHAPES)
def test_each_stage_passes_its_output_on(name):
    model = on_meta(name, 5)
    keys = list(model.state_dict())
    probes = {stage: Probe() for stage in model.stages}
    for stage, probe in probes.items():
        model.insert(stage, probe)
    size = model.largest_image or 64
    model(torch.empty(2, 3, size, size, device="meta"))
    assert {stage: tuple(probe.seen.shape[1:]) for stage, probe in probes.items()} == SHAPES[name]
    assert [key for key in model.state_dict() if not key.startswith("taps.")] == keys


@pytest.mark.parametrize("name", ["resnet50", "resnet50_v1", "resnet18_b256", "alexnet_bn"])
def test_relatives_have_the_same_stages(name):
    relative = "alexnet" if name == "alexnet_bn" else "resnet18"
    assert on_meta(name, 5).stages == tuple(SHAPES[relative])


def test_a_stage_ends_after_its_relu_and_what_is_inserted_is_used(resnet18):
    model = make_backbone("resnet18", 5, "none").eval()
    load_strictly(model, resnet18.state_dict(), "no fit")
    seen = {}
    for stage in model.stages[1:]:
        getattr(resnet18, stage).register_forward_hook(
            lambda part, given, out, stage=stage: seen.__setitem__(stage, out)
        )
    with torch.no_grad():
        resnet18(images(64))
        probes = {stage: Probe() for stage in model.stages}
        for stage, probe in probes.items():
            probe.gain.data.fill_(1)
            model.insert(stage, probe)
        plain = model(images(64))
        for stage, output in seen.items():
            assert torch.equal(probes[stage].seen, output)
            assert output.min() == 0
        assert probes["stem"].seen.min() == 0
        probes["layer4"].gain.data.zero_()
        silenced = model(images(64))
    assert torch.equal(plain, resnet18(images(64)))
    assert torch.equal(silenced, model.classifier.bias.expand(2, -1))


def test_densenets_last_stage_is_what_is_pooled():
    torch.manual_seed(0)
    model, probe = make_backbone("densenet121", 5, "none").eval(), Probe()
    probe.gain.data.fill_(1)
    model.insert("norm5", probe)
    with torch.no_grad():
        features = model.features(images(32))
    assert probe.seen.min() == 0
    torch.testing.assert_close(features, probe.seen.mean((2, 3)))


def test_modules_after_one_stage_run_in_order_and_survive_a_copy():
    model = make_backbone("cnn_tiny_bn", 5, "none").eval()
    model.insert("block2", nn.ReLU())
    model.insert("block2", nn.Threshold(0.5, 0.0))
    twin = copy.deepcopy(model)
    assert [type(part) for part in twin.taps["block2"]] == [nn.ReLU, nn.Threshold]
    with torch.no_grad():
        assert torch.equal(twin(images(32)), model(images(32)))


def test_an_unknown_stage_is_refused_with_the_ones_there_are():
    message = r"unknown stage of ResNet 'layer5', .*Valid: features, layer1"
    with pytest.raises(UserError, match=message):
        on_meta("resnet18", 5).insert("layer5", nn.Identity())


def test_more_tokens_may_leave_the_embedding():
    class Prompts(nn.Module):
        def forward(self, tokens):
            return torch.cat([tokens, torch.zeros_like(tokens[:, :4])], dim=1)

    model, probe = on_meta("vit_b16", 5), Probe()
    model.insert("embedding", Prompts())
    model.insert("encoder_layer_11", probe)
    assert model(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 5)
    assert probe.seen.shape == (2, 201, 768)


# Other normalisation


@pytest.mark.parametrize(
    ("name", "layers"),
    [("resnet18", 20), ("resnet18_b256", 20), ("densenet121", 121), ("cnn_tiny_bn", 4)],
)
def test_replacing_norms_by_themselves_changes_nothing(name, layers):
    torch.manual_seed(0)
    model = make_backbone(name, 3, "none").eval()
    keys, norms = list(model.state_dict()), batchnorm_keys(model)
    with torch.no_grad():
        before = model(images(32))
        paths = replace_norm(model, copy.deepcopy)
        assert torch.equal(model(images(32)), before)
    assert len(paths) == layers
    assert list(model.state_dict()) == keys
    assert batchnorm_keys(model) == norms


def test_norms_are_replaced_where_asked_under_their_path():
    model = on_meta("resnet18", 3).eval()
    paths = replace_norm(
        model,
        lambda old: nn.InstanceNorm2d(old.num_features),
        where=lambda path, old: path.startswith("layer2.") and old.num_features == 128,
    )
    assert paths == [
        *("layer2.0.bn1", "layer2.0.bn2", "layer2.0.downsample.1"),
        *("layer2.1.bn1", "layer2.1.bn2"),
    ]
    for path in paths:
        assert isinstance(model.get_submodule(path), nn.InstanceNorm2d)
        assert not model.get_submodule(path).training
    assert len(batchnorm_keys(model).counters) == 15
    assert model(torch.empty(2, 3, 64, 64, device="meta")).shape == (2, 3)


def test_replaced_norms_are_used():
    model = make_backbone("cnn_tiny_bn", 3, "none").eval()

    class Zero(nn.Module):
        def forward(self, x):
            return torch.zeros_like(x)

    replace_norm(model, lambda old: Zero(), where=lambda path, old: path.startswith("block4"))
    assert torch.equal(model(images(32)), model.head.bias.expand(2, -1))


# Loading


@pytest.fixture
def tiny(tmp_path):
    """A state of cnn_tiny_bn at three classes and a function that loads what a file holds."""
    torch.manual_seed(5)
    state = make_backbone("cnn_tiny_bn", 3, "none").state_dict()

    def load(content: object, classes: int = 3) -> base.Backbone:
        path = tmp_path / "weights.pth"
        torch.save(content, path)
        return make_backbone("cnn_tiny_bn", classes, str(path))

    return state, load


def same(model: nn.Module, state: dict, but: str = "nothing") -> bool:
    own = model.state_dict()
    return all(torch.equal(own[key], state[key]) for key in state if not key.startswith(but))


def test_a_file_is_loaded_whole(tiny):
    state, load = tiny
    model = load(state)
    assert same(model, state)
    assert model.block2[0].weight.is_contiguous(memory_format=torch.channels_last)


def test_a_classifier_of_another_class_count_starts_fresh(tiny):
    state, load = tiny
    torch.manual_seed(6)
    fresh = make_backbone("cnn_tiny_bn", 4, "none").classifier
    torch.manual_seed(6)
    model = load(state, classes=4)
    assert same(model, state, but="head.")
    assert torch.equal(model.classifier.weight, fresh.weight)
    assert torch.equal(model.classifier.bias, fresh.bias)


def test_half_precision_is_cast(tiny):
    state, load = tiny
    half = {k: v.half() if v.is_floating_point() else v for k, v in state.items()}
    model = load(half)
    assert same(model, {k: v.to(state[k].dtype) for k, v in half.items()})
    assert {p.dtype for p in model.parameters()} == {torch.float32}


def test_counters_may_be_absent(tiny):
    state, load = tiny
    model = load({key: value for key, value in state.items() if "num_batches" not in key})
    assert same(model, state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("block1.0.weight"), "missing block1.0.weight$"),
        (lambda s: s.pop("block3.1.running_var"), "missing block3.1.running_var$"),
        (lambda s: s.pop("head.bias"), "missing head.bias$"),
        (lambda s: s.update(extra=torch.ones(1)), "unexpected extra$"),
        (
            lambda s: s.update({"block1.0.weight": torch.ones(2, 3)}),
            r"another shape block1.0.weight \(2, 3\) instead of \(16, 3, 3, 3\)$",
        ),
        (
            lambda s: [s.pop(k) for k in list(s) if k.startswith("block2")],
            "missing block2.0.weight, block2.0.bias, block2.1.weight and 3 more$",
        ),
        (lambda s: s.clear(), "missing block1.0.weight, .* and 21 more$"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_key(tiny, change, message):
    state, load = tiny
    state = dict(state)
    change(state)
    with pytest.raises(UserError, match=message) as error:
        load(state)
    assert "do not fit cnn_tiny_bn" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([torch.ones(1)], "hold a list, not a state dict"),
        ({"epoch": 3, "state_dict": {}}, r"not a state dict \(no tensor: epoch, state_dict\)"),
        (Path("x"), "cannot be read"),
    ],
)
def test_what_is_no_state_dict_is_refused(tiny, content, message):
    with pytest.raises(UserError, match=message) as error:
        tiny[1](content)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"not weights", b"PK\x03\x04broken"])
def test_a_damaged_file_is_refused(tmp_path, content):
    path = tmp_path / "weights.pth"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"weights\.pth' cannot be read") as error:
        make_backbone("cnn_tiny_bn", 3, str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("path", ["imagenett", "."])
def test_a_missing_file_is_refused(path):
    with pytest.raises(UserError, match=f"'{path}': no such file; write none, imagenet or"):
        make_backbone("cnn_tiny_bn", 3, path)
    with pytest.raises(UserError, match="no such file"):
        weights_used("cnn_tiny_bn", path)


def test_the_bottleneck_takes_resnet18s_weights_and_its_own(resnet18, tmp_path):
    path = tmp_path / "resnet18.pth"
    torch.save(resnet18.state_dict(), path)
    model = make_backbone("resnet18_b256", 5, str(path)).eval()
    with torch.no_grad():
        expected = nn.Sequential(*list(resnet18.children())[:-1])(images(64)).flatten(1)
        assert torch.equal(model.squeeze(model.maps(images(64))), expected)
    torch.save(model.state_dict(), path)
    assert same(make_backbone("resnet18_b256", 5, str(path)), model.state_dict())
    with pytest.raises(UserError, match=r"resnet18: unexpected bottleneck\.0\.weight"):
        make_backbone("resnet18", 5, str(path))


def test_part_of_the_fully_connected_layers_is_not_enough():
    model = on_meta("alexnet", 5)
    state = {key: value for key, value in model.state_dict().items() if not key.startswith("fc1")}
    with pytest.raises(UserError, match=r"no fit: missing fc1\.linear\.weight, fc1\.linear\.bias$"):
        load_strictly(model, state, "no fit")
    without = {key: value for key, value in state.items() if key.startswith("conv")}
    load_strictly(model, without, "no fit")
    model = on_meta("alexnet_bn", 5)
    load_strictly(model, without, "no fit")
    some = {**without, "conv1.norm.weight": torch.empty(64, device="meta")}
    with pytest.raises(UserError, match=r"missing conv1\.norm\.bias"):
        load_strictly(model, some, "no fit")


def test_densenets_old_key_names_are_read():
    with torch.device("meta"):
        reference = torchvision.models.densenet121(num_classes=1000).state_dict()
    old = {
        key.replace("norm1.", "norm.1.").replace("conv2.", "conv.2."): value
        for key, value in reference.items()
        if not key.endswith("num_batches_tracked")
    }
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    load_strictly(on_meta("densenet121", 7), old, "no fit")


# ImageNet


@pytest.mark.parametrize("name", backbones.names())
def test_imagenet_weights_are_the_classic_ones_or_refused(name):
    if backbones[name].weights is None:
        with pytest.raises(UserError, match=f"backbone {name} has no ImageNet weights"):
            weights_used(name, "imagenet")
        return
    weights = torchvision.models.get_weight(weights_used(name, "imagenet"))
    assert weights.name == "IMAGENET1K_V1"
    with torch.device("meta"):
        function = weights.url.rpartition("/")[2].split("-")[0]
        reference = torchvision.models.get_model(function).state_dict()
    load_strictly(on_meta(name, 7), reference, "no fit")


def test_without_imagenet_weights_a_line_says_so():
    with pytest.raises(UserError, match="use --pretrained none or the path of a file"):
        make_backbone("cnn_tiny_bn", 3, "imagenet")


def test_offline_a_line_says_how_to_get_the_file(monkeypatch, tmp_path):
    def refuse(*args, **kwargs):
        raise urllib.error.URLError("no route\nto host")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)
    with pytest.raises(UserError) as error:
        make_backbone("resnet18", 3, "imagenet")
    message = str(error.value)
    assert "\n" not in message
    assert "cannot get ResNet18_Weights.IMAGENET1K_V1 (URLError: " in message
    assert "fetch https://download.pytorch.org/models/resnet18-f37072fd.pth" in message
    assert "--pretrained PATH" in message
    assert f"{tmp_path}/hub/checkpoints" in message


def test_imagenet_weights_are_taken_from_the_cache(monkeypatch, tmp_path, capsys):
    def fetch(url, path, *args, **kwargs):
        fetched.append(url)
        torch.save(state, path)

    fetched = []
    state = torchvision.models.resnet18(num_classes=1000).state_dict()
    state = {key: value for key, value in state.items() if "num_batches" not in key}
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", fetch)
    for _ in range(2):
        model = make_backbone("resnet18", 3, "imagenet")
        assert same(model, state, but="fc.")
        assert model.class_count == 3
    assert fetched == ["https://download.pytorch.org/models/resnet18-f37072fd.pth"]
    assert capsys.readouterr().out == ""


def test_a_file_is_described_by_its_content(tmp_path):
    path = tmp_path / "mine.pth"
    path.write_bytes(b"abc")
    assert weights_used("cnn_tiny_bn", str(path)) == "mine.pth sha256:ba7816bf8f01cfea"
    assert weights_used("resnet50", "none") == "none"
    assert weights_used("resnet50", "imagenet") == "ResNet50_Weights.IMAGENET1K_V1"


def test_listing_backbones_does_not_wait_for_torchvision():
    import subprocess

    code = (
        "import sys; from benchmark.backbones.base import backbones; names = backbones.names(); "
        "sys.exit('torchvision' in sys.modules or 'resnet18' not in names)"
    )
    root = Path(__file__).parent.parent
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0


# Real files


@pytest.fixture
def weights() -> Path:
    folder = os.environ.get("FEDDOMAINBED_DATA")
    if not folder or not (Path(folder) / "weights").is_dir():
        pytest.skip("FEDDOMAINBED_DATA names no folder with weights")
    return Path(folder) / "weights"


@pytest.mark.parametrize("name", ["resnet50", "resnet50_v1"])
def test_kerass_resnet50_loads(weights, name):
    path = weights / "resnet50_keras_v1_fp16.pth"
    state = torch.load(path, weights_only=True)
    assert state["conv1.weight"].dtype == torch.float16
    model = make_backbone(name, 7, str(path))
    assert model.conv1.weight.dtype == torch.float32
    assert same(model, {k: v.float() for k, v in state.items() if v.ndim}, but="fc.")
    complete = make_backbone(name, 1000, str(path)).state_dict()
    assert torch.equal(complete["fc.weight"], state["fc.weight"].float())


@pytest.mark.parametrize("name", ["alexnet", "alexnet_bn"])
def test_alexnets_convolutions_load_alone(weights, name):
    path = weights / "alexnet_features_only.pth"
    state = torch.load(path, weights_only=True)
    model = make_backbone(name, 7, str(path))
    assert torch.equal(model.conv1.convolution.weight, state["features.0.weight"])
    assert torch.equal(model.conv5.convolution.bias, state["features.10.bias"])
    assert model.fc1.linear.weight.std() > 0


def test_features_are_a_place_of_their_own_and_the_classifier_can_be_widened():
    model = make_backbone("cnn_tiny_bn", 3, "none")
    model.insert("features", nn.Linear(256, 20))
    model.widen_classifier(20)
    assert model.features(images(32)).shape == (2, 20)
    assert model(images(32)).shape == (2, 3)
    assert model.feature_size == 20


def test_a_method_can_pool_in_its_own_way():
    class Corner(nn.Module):
        def forward(self, maps):
            return maps[:, :, 0, 0]

    model = make_backbone("resnet18", 3, "none").eval()
    model.pooling = Corner()
    with torch.no_grad():
        assert torch.equal(model.features(images(64)), model.maps(images(64))[:, :, 0, 0])
