"""DomainNet: six renderings of 345 things (Peng et al., ICCV 2019), and FedBN's ten of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmark.errors import UserError
from datasets.base import register
from datasets.fetch import Download
from datasets.folders import FolderDataset
from datasets.layouts import Listing, find_lists, listed_rows

SERVER = "http://csr.bu.edu/ftp/visda/2019/multi-source"
# MD5 of the archive and of the train and test list of each domain, as mirrors have recorded them.
CHECKSUMS = {
    "clipart": (
        "cd0d8f2d77a4e181449b78ed62bccf1e",
        "b4349693a7f9c05c53955725c47ed6cb",
        "f5ddbcfd657a3acf9d0f7da10db22565",
    ),
    "infograph": (
        "720380b86f9e6ab4805bb38b6bd135f8",
        "379b50054f4ac2018dca4f89421b92d9",
        "779626b50869edffe8ea6941c3755c71",
    ),
    "painting": (
        "1ae32cdb4f98fe7ab5eb0a351768abfd",
        "7db0e7ca73ad9982f6e1f7f3ef372c0a",
        "232b35dc53f26d414686ae579e38d9b5",
    ),
    "quickdraw": (
        "bdc1b6f09f277da1a263389efe0c7a66",
        "b732ced3939ac8efdd8c0a889dca56cc",
        "c1a828fdfe216fb109f1c0083a252c6f",
    ),
    "real": (
        "dcc47055e8935767784b7162e7c7cca6",
        "8ebf02c2075fadd564705f0dc7cd6291",
        "6098816791c3ebed543c71ffa11b9054",
    ),
    "sketch": (
        "658d8009644040ff7ce30bb2e820850f",
        "1233bd18aa9a8a200bf4cecf1c34ef3e",
        "d8a222e4672cfd585298aa14d02ea441",
    ),
}
CLEANED = ("clipart", "painting")  # their archives without duplicates lie in a folder of their own

CLASSES = """
The_Eiffel_Tower The_Great_Wall_of_China The_Mona_Lisa aircraft_carrier airplane alarm_clock
ambulance angel animal_migration ant anvil apple arm asparagus axe backpack banana bandage barn
baseball baseball_bat basket basketball bat bathtub beach bear beard bed bee belt bench bicycle
binoculars bird birthday_cake blackberry blueberry book boomerang bottlecap bowtie bracelet brain
bread bridge broccoli broom bucket bulldozer bus bush butterfly cactus cake calculator calendar
camel camera camouflage campfire candle cannon canoe car carrot castle cat ceiling_fan cell_phone
cello chair chandelier church circle clarinet clock cloud coffee_cup compass computer cookie
cooler couch cow crab crayon crocodile crown cruise_ship cup diamond dishwasher diving_board dog
dolphin donut door dragon dresser drill drums duck dumbbell ear elbow elephant envelope eraser eye
eyeglasses face fan feather fence finger fire_hydrant fireplace firetruck fish flamingo flashlight
flip_flops floor_lamp flower flying_saucer foot fork frog frying_pan garden garden_hose giraffe
goatee golf_club grapes grass guitar hamburger hammer hand harp hat headphones hedgehog helicopter
helmet hexagon hockey_puck hockey_stick horse hospital hot_air_balloon hot_dog hot_tub hourglass
house house_plant hurricane ice_cream jacket jail kangaroo key keyboard knee knife ladder lantern
laptop leaf leg light_bulb lighter lighthouse lightning line lion lipstick lobster lollipop
mailbox map marker matches megaphone mermaid microphone microwave monkey moon mosquito motorbike
mountain mouse moustache mouth mug mushroom nail necklace nose ocean octagon octopus onion oven
owl paint_can paintbrush palm_tree panda pants paper_clip parachute parrot passport peanut pear
peas pencil penguin piano pickup_truck picture_frame pig pillow pineapple pizza pliers police_car
pond pool popsicle postcard potato power_outlet purse rabbit raccoon radio rain rainbow rake
remote_control rhinoceros rifle river roller_coaster rollerskates sailboat sandwich saw saxophone
school_bus scissors scorpion screwdriver sea_turtle see_saw shark sheep shoe shorts shovel sink
skateboard skull skyscraper sleeping_bag smiley_face snail snake snorkel snowflake snowman
soccer_ball sock speedboat spider spoon spreadsheet square squiggle squirrel stairs star steak
stereo stethoscope stitches stop_sign stove strawberry streetlight string_bean submarine suitcase
sun swan sweater swing_set sword syringe t-shirt table teapot teddy-bear telephone television
tennis_racquet tent tiger toaster toe toilet tooth toothbrush toothpaste tornado tractor
traffic_light train tree triangle trombone truck trumpet umbrella underwear van vase violin
washing_machine watermelon waterslide whale wheel windmill wine_bottle wine_glass wristwatch yoga
zebra zigzag
"""


def downloads() -> tuple[Download, ...]:
    """The authors' archives of cleaned images and their lists."""
    found = []
    for domain, (archive, train, test) in CHECKSUMS.items():
        folder = f"{SERVER}/groundtruth" if domain in CLEANED else SERVER
        found.append(Download(f"{folder}/{domain}.zip", f"{domain}.zip", domain, f"md5:{archive}"))
        for part, checksum in (("train", train), ("test", test)):
            name = f"{domain}_{part}.txt"
            url = f"{SERVER}/domainnet/txt/{name}"
            found.append(Download(url, name, f"splits/{name}", f"md5:{checksum}"))
    return tuple(found)


@register("DomainNet")
class DomainNet(FolderDataset):
    """Clip art, infographics, paintings, quick drawings, photos and sketches; 586,575 images.

    That is the authors' cleaned version, which DomainBed uses. With their lists
    (`<domain>_train.txt`, `<domain>_test.txt`) in `splits`, exactly the listed images are read, so
    duplicates in the folders do no harm; without the lists all images are. Parts are as in Dassl:
    val and test are both the test list. Class ids are the sorted folder names, as in DomainBed; the
    lists number the classes otherwise, so only their paths are used.
    """

    domains = tuple(CHECKSUMS)
    letters = ("C", "I", "P", "Q", "R", "S")
    classes = tuple(CLASSES.split())
    counts = {
        "clipart": 48129,
        "infograph": 51605,
        "painting": 72266,
        "quickdraw": 172500,
        "real": 172947,
        "sketch": 69128,
    }
    citation = "Peng et al., Moment Matching for Multi-Source Domain Adaptation, ICCV 2019"
    licence = "collected from the web under US fair use; non-commercial research only"
    folders = ("DomainNet", "domain_net")
    homepage = "http://ai.bu.edu/M3SDA"
    by_hand = "download the cleaned version from the authors' page"
    surplus = (
        "duplicates: put the authors' lists of cleaned images, <domain>_train.txt and "
        "<domain>_test.txt, into the folder splits beside the domains (--download fetches them)"
    )
    downloads = downloads()

    def listing(self, domain: str, root: Path) -> Listing:
        listing = super().listing(domain, root)
        home = listing.home
        places = [home / "splits", home, home / "txt", home / "domainnet" / "txt"]
        names = {part: f"{domain}_{part}.txt" for part in ("train", "test")}
        lists = find_lists(places, names)
        if not lists:
            return listing
        chosen = {part: self.rows(path, listing) for part, path in lists.items()}
        kept = np.unique(np.concatenate(list(chosen.values())))
        train, test = (np.searchsorted(kept, np.sort(chosen[part])) for part in ("train", "test"))
        reduced = listing.keep(kept)
        parts = {"train": train, "val": test, "test": test}
        return Listing(home, reduced.files, reduced.labels, parts)

    def rows(self, path: Path, listing: Listing) -> np.ndarray:
        """The rows of the listed images; all of those of our classes must be there."""
        rows, _, absent = listed_rows(path, listing)
        missing = [file for file in absent if Path(file).parent.name in self.classes]
        if missing:
            raise UserError(
                f"{self.name}: {len(missing):,} images of {path} are missing, the first is "
                f"{listing.home / missing[0]}; unpack the archives again"
            )
        return np.array(rows, dtype=np.int64)


@register("DomainNet10")
class DomainNet10(DomainNet):
    """The ten classes of DomainNet that FedBN uses, with its label ids, from DomainNet's files.

    FedBN's own pickled path lists are not read (unpickling runs code); its paper counts, train plus
    test, clipart 2,629, infograph 3,283, painting 3,091, quickdraw 5,000, real 6,081 and sketch
    2,767 images. Which version of DomainNet these are from is not said, so none are insisted on.
    """

    classes = (
        "bird",  # 0
        "feather",
        "headphones",
        "ice_cream",
        "teapot",
        "tiger",  # 5
        "whale",
        "windmill",
        "wine_glass",
        "zebra",
    )
    counts = None
    citation = (
        "Peng et al., Moment Matching for Multi-Source Domain Adaptation, ICCV 2019; classes of Li "
        "et al., FedBN, ICLR 2021"
    )
    folders = ("DomainNet10", "DomainNet", "domain_net")
