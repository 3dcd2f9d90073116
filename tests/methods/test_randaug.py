"""RandAugment: sizes, per-image draws, pixels in and pixels out."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmark.errors import UserError
from methods.randaug import randomly_augmented
from tests.conftest import toy_spec


def pixels(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(256, (1, 3, 32, 32), generator=generator, dtype=torch.uint8).expand(
        count, -1, -1, -1
    )


def test_images_keep_their_size_and_type():
    changed = randomly_augmented(pixels(8), 2, 9)
    assert changed.shape == (8, 3, 32, 32)
    assert changed.dtype == torch.uint8


def test_each_image_has_draws_of_its_own():
    torch.manual_seed(0)
    changed = randomly_augmented(pixels(32), 2, 9)
    assert len(changed.flatten(1).unique(dim=0)) > 16
    torch.manual_seed(0)
    assert torch.equal(changed, randomly_augmented(pixels(32), 2, 9))


def test_no_operation_changes_nothing():
    assert torch.equal(randomly_augmented(pixels(4), 0, 9), pixels(4))


def test_it_is_torchvisions_table_at_its_defaults():
    from torchvision.transforms.v2 import RandAugment

    torch.manual_seed(5)
    expected = torch.stack([RandAugment()(image) for image in pixels(6)])
    torch.manual_seed(5)
    assert torch.equal(randomly_augmented(pixels(6), 2, 9), expected)


@pytest.mark.parametrize("transform", ["digits", "imagenet"])
def test_a_batch_goes_through_pixels_and_back(federation, monkeypatch, transform):
    ours = federation(toy_spec("randaug", transform=transform))
    client = ours.clients[0]
    batch = client.train.training_batch(np.arange(8), torch.Generator())
    seen = []
    monkeypatch.setattr(
        "methods.randaug.randomly_augmented",
        lambda images, n, m: seen.append((images, n, m)) or images,
    )
    out = ours.method.augment(client, batch)
    images, count, magnitude = seen[0]
    assert torch.equal(images, client.train._pixels(np.arange(8)))
    assert (count, magnitude) == (2, 9)
    assert torch.allclose(out.images, batch.images, atol=1e-5)
    assert torch.equal(out.labels, batch.labels)
    assert out is not batch


def test_a_magnitude_beyond_the_table_is_refused(federation):
    with pytest.raises(UserError, match=r"randaug_m=31 is too large: at most 30"):
        federation(toy_spec("randaug", overrides={"randaug": {"randaug_m": 31}}))


def test_listing_methods_does_not_wait_for_torchvision():
    code = (
        "import sys; from benchmark.method import methods; assert 'randaug' in methods;"
        "sys.exit('torchvision' in sys.modules)"
    )
    root = Path(__file__).parent.parent.parent
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0
