"""Make the bundled slice of BCCD (blood cells, MIT): few images at half size, as a COCO folder.

    python scripts/make_bccd.py FOLDER

where FOLDER is the whole set as COCO json: train.json, val.json, test.json and images/.
"""

import argparse
import json
from pathlib import Path

from PIL import Image

TARGET = Path(__file__).parents[1] / "src" / "nearsight" / "detection" / "bccd"
COUNTS = {"train": 36, "val": 12, "test": 12}
SIZE = (320, 240)  # width, height: half of the originals


def make(source: Path) -> None:
    (TARGET / "images").mkdir(parents=True, exist_ok=True)
    for split, count in COUNTS.items():
        content = json.loads((source / f"{split}.json").read_text())
        # Evenly over the set, which is ordered by acquisition: neighbours resemble each other.
        step = len(content["images"]) / count
        chosen = [content["images"][int(position * step)] for position in range(count)]
        ids = {image["id"] for image in chosen}
        for image in chosen:
            with Image.open(source / "images" / image["file_name"]) as picture:
                small = picture.convert("RGB").resize(SIZE, Image.Resampling.LANCZOS)
            small.save(TARGET / "images" / image["file_name"], quality=80, optimize=True)
        half = {
            "info": {"description": "A slice of BCCD at half size", "license": "MIT, see LICENSE"},
            "images": [{**image, "width": SIZE[0], "height": SIZE[1]} for image in chosen],
            "annotations": [_halved(entry) for entry in content["annotations"] if entry["image_id"] in ids],
            "categories": content["categories"],
        }
        (TARGET / f"{split}.json").write_text(json.dumps(half, separators=(",", ":")) + "\n")


def _halved(annotation: dict) -> dict:
    box = [value / 2 for value in annotation["bbox"]]
    return {**annotation, "bbox": box, "area": box[2] * box[3]}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    make(parser.parse_args().source)
