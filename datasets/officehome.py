"""Office-Home: everyday objects in four renderings (Venkateswara et al., CVPR 2017)."""

from __future__ import annotations

from datasets.base import register
from datasets.folders import FolderDataset

CLASSES = """
Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles Chair Clipboards
Computer Couch Curtains Desk_Lamp Drill Eraser Exit_Sign Fan File_Cabinet Flipflops Flowers Folder
Fork Glasses Hammer Helmet Kettle Keyboard Knives Lamp_Shade Laptop Marker Monitor Mop Mouse Mug
Notebook Oven Pan Paper_Clip Pen Pencil Postit_Notes Printer Push_Pin Radio Refrigerator Ruler
Scissors Screwdriver Shelf Sink Sneakers Soda Speaker Spoon TV Table Telephone ToothBrush Toys
Trash_Can Webcam
"""


@register("OfficeHome")
class OfficeHome(FolderDataset):
    """Art, clip art, product pictures and photos; 15,588 images of 65 classes.

    Class ids follow DomainBed: the original folder names, sorted as ASCII (TV before Table).
    Dassl's copy (`office_home_dg`) has train and val folders in each domain.
    """

    domains = ("Art", "Clipart", "Product", "Real World")
    letters = ("A", "C", "P", "R")
    aliases = {"Real World": ("Real",)}
    classes = tuple(CLASSES.split())
    counts = {"Art": 2427, "Clipart": 4365, "Product": 4439, "Real World": 4357}
    citation = (
        "Venkateswara et al., Deep Hashing Network for Unsupervised Domain Adaptation, CVPR 2017"
    )
    licence = "collected from the web under US fair use; non-commercial research only"
    folders = ("OfficeHome", "office_home", "office_home_dg", "OfficeHomeDataset_10072016")
    homepage = "https://www.hemanthdv.org/officeHomeDataset.html"
    by_hand = "accept the fair use notice on the authors' page and download the archive"
