"""Digits-DG: four kinds of digits at 32 x 32 (Zhou et al., AAAI 2020)."""

from __future__ import annotations

from datasets.base import register
from datasets.folders import FolderDataset


@register("DigitsDG")
class DigitsDG(FolderDataset):
    """MNIST, MNIST-M, SVHN and SYN, 6,000 digits each, 4,800 in train and 1,200 in val."""

    domains = ("mnist", "mnist_m", "svhn", "syn")
    letters = ("M", "MM", "SV", "SY")
    aliases = {"syn": ("synthetic", "syn_digits")}
    classes = tuple("0123456789")
    counts = dict.fromkeys(domains, 6000)
    citation = (
        "Zhou et al., Deep Domain-Adversarial Image Generation for Domain Generalisation, AAAI "
        "2020; digits of LeCun et al. 1998, Ganin et al. 2016 and Netzer et al. 2011"
    )
    licence = "MNIST CC BY-SA 3.0; MNIST-M, SYN and SVHN for non-commercial research"
    image_size = 32
    mean = std = (0.5, 0.5, 0.5)
    folders = ("digits_dg", "DigitsDG")
    homepage = "https://github.com/KaiyangZhou/Dassl.pytorch/blob/master/DATASETS.md"
    by_hand = "download digits_dg.zip from where Dassl's page says"
