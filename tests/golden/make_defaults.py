"""Makes the golden data set with decode defaults and facts, of version 1.2: python -m tests.golden.make_defaults

Run once, and commit what it made. It refuses to touch a folder that exists.
"""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import brand
from brand import DecodeImage, DecodeMask
from tests.golden.inputs import png
from tests.golden.make import HERE, make_once

FOLDER = HERE / "v1.2-images"
SCHEMA = {"photo": "image", "number": "int", "mask": "image", "plain": "image", "key": "str"}
DECODE = {"photo": DecodeImage(mode="L", upright=True), "mask": DecodeMask()}


def turned(data: bytes, orientation: int) -> bytes:
    """A PNG with an orientation in EXIF."""
    exif = b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 274, 3, 1, orientation, 0, 0)
    return data[:33] + struct.pack(">I", len(exif)) + b"eXIf" + exif + struct.pack(
        ">I", zlib.crc32(b"eXIf" + exif)
    ) + data[33:]  # fmt: skip


def samples() -> list[dict[str, Any]]:
    """Five samples, in which some images are turned."""
    return [
        {
            "photo": turned(png(k + 3, 10 * k), 1 + 5 * (k % 2)),
            "number": k,
            "mask": png(k + 3, 0),
            "plain": turned(png(2, k), 8) if k == 3 else png(2, k),
            "key": f"ä/{k}.png",
        }
        for k in range(5)
    ]


def make(target: Path) -> None:
    """Write the data set."""
    brand.pack(samples(), target, SCHEMA, chunk_size=2, seed=4, jobs=1, compression="none", decode=DECODE)


def main() -> int:
    """Make it, or nothing."""
    return make_once(FOLDER, {"defaults": make})


if __name__ == "__main__":
    sys.exit(main())
