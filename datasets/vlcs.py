"""VLCS: four older photo collections that share five classes (Fang et al., ICCV 2013)."""

from __future__ import annotations

from datasets.base import register
from datasets.folders import FolderDataset


@register("VLCS")
class VLCS(FolderDataset):
    """Caltech101, LabelMe, SUN09 and VOC2007; 10,729 photos of five classes.

    DomainBed's copy has named class folders; Dassl's has CALTECH, LABELME, PASCAL and SUN with
    train, crossval and test folders of numbered classes (its `full` repeats them and is passed
    over). Dassl tests on the `test` part only, about 30 % of the target.
    """

    domains = ("Caltech101", "LabelMe", "SUN09", "VOC2007")
    letters = ("C", "L", "S", "V")
    aliases = {
        "Caltech101": ("Caltech",),
        "SUN09": ("SUN",),
        "VOC2007": ("VOC", "Pascal", "PascalVOC", "PascalVOC2007"),
    }
    classes = ("bird", "car", "chair", "dog", "person")
    counts = {"Caltech101": 1415, "LabelMe": 2656, "SUN09": 3282, "VOC2007": 3376}
    citation = (
        "Fang, Xu and Rockmore, Unbiased Metric Learning: On the Utilization of Multiple Datasets "
        "and Web Images for Softening Bias, ICCV 2013; the photos after Torralba and Efros, CVPR "
        "2011"
    )
    licence = "no formal licence; the terms of Caltech-101, LabelMe, SUN09 and PASCAL VOC 2007"
    folders = ("VLCS",)
    homepage = "https://github.com/facebookresearch/DomainBed"
    by_hand = "download VLCS.tar.gz from where domainbed/scripts/download.py says"
