"""Makes src/nearsight/datasets/clothing64.npz from the image folder of the clothing dataset (train, validation, test).

    python scripts/make_clothing.py FOLDER src/nearsight/datasets/clothing64.npz

Each photograph is resized to 64 × 64 and stored as WebP, back to back in one array per split. Takes about a minute.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import numpy as np
from PIL import Image

SPLITS = {"train": "train", "val": "validation", "test": "test"}
SIZE = (64, 64)


def encode(path: Path) -> bytes:
    out = io.BytesIO()
    with Image.open(path) as image:
        small = image.convert("RGB").resize(SIZE, Image.Resampling.LANCZOS)
    small.save(out, "WEBP", quality=80, method=6)
    return out.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    chosen = parser.parse_args()
    classes = sorted(path.name for path in (chosen.folder / "train").iterdir())
    arrays: dict[str, np.ndarray] = {"classes": np.array(classes)}
    for split, folder in SPLITS.items():
        names = sorted(
            p.relative_to(chosen.folder / folder).as_posix() for p in (chosen.folder / folder).rglob("*.jpg")
        )
        encoded = [encode(chosen.folder / folder / name) for name in names]
        arrays[f"{split}_images"] = np.frombuffer(b"".join(encoded), dtype=np.uint8)
        arrays[f"{split}_ends"] = np.cumsum([len(data) for data in encoded]).astype(np.int32)
        arrays[f"{split}_labels"] = np.array([classes.index(name.split("/")[0]) for name in names], dtype=np.uint8)
        arrays[f"{split}_names"] = np.frombuffer("\n".join(names).encode(), dtype=np.uint8)
    np.savez_compressed(chosen.out, **arrays)
    print(f"{chosen.out}: {chosen.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
