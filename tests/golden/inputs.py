"""What the golden data sets of version 1 were made from. Never change an input: the committed bytes follow from it."""

from __future__ import annotations

import math
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import brand
from brand.chunker import Options, convert_audio, convert_images

Make = Callable[[Path, Path], object]
"""(target, empty folder for source files) -> makes the data set."""


def png(width: int, shade: int) -> bytes:
    """A grey picture of one row; its pixels are stored, so that no version of zlib matters."""
    rows = zlib.compress(b"\0" + bytes((shade + x) % 256 for x in range(width)), 0)
    head = struct.pack(">IIBBBBB", width, 1, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", rows), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )


def wav(frames: int) -> bytes:
    """A mono clip of 16-bit frames at 8 kHz."""
    data = b"".join(struct.pack("<h", 1000 * k) for k in range(frames))
    form = struct.pack("<HHIIHH", 1, 1, 8000, 16000, 2, 16)
    return b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt \x10\0\0\0" + form + b"data" + struct.pack(
        "<I", len(data)
    ) + data  # fmt: skip


ARRAYS: list[np.ndarray[Any, Any]] = [
    np.array(True),
    np.arange(-2, 2, dtype=np.int8),
    np.arange(6, dtype=">i2").reshape(2, 3),
    np.zeros((2, 0, 3), np.int32),
    np.array([-(2**63), 2**63 - 1]),
    np.arange(8, dtype=np.uint8)[::2],
    np.array([[65535]], np.uint16),
    np.array(4_000_000_000, np.uint32),
    np.array([2**64 - 1], np.uint64),
    np.array([0.5, math.inf, -0.0], np.float16),
    np.array([math.nan, 1e-45], np.float32),
    np.array([[0.1], [-1e300]]),
    np.array([1 + 2j], np.complex64),
    np.asfortranarray(np.arange(4).reshape(2, 2) * 1j),
]
"""One array of each dtype, in the order of the dtype numbers."""

EVERY_CODEC = {
    "number": "int",
    "text": "str",
    "ratio": "float",
    "blob": "bytes",
    "tree": "json",
    "array": "ndarray",
    "picture": "image",
    "clip": "audio",
    "key": "str",
}


def every_codec() -> list[dict[str, Any]]:
    """Fourteen samples of nine fields, with the values that are easily got wrong."""
    texts = ["", "ASCII", "Zürich", "日本語", "\U0001f600", "a\0b", "e\u0301"]
    ratios = [0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 0.1]
    trees: list[Any] = [None, True, {}, [], "x", {"b": [1, 2.5, {"a": None}], "ä": "\u2028"}, -1]
    return [
        {
            "number": (-1) ** k * (2**63 - 1 if k % 7 == 0 else k),
            "text": texts[k % 7],
            "ratio": ratios[k % 7],
            "blob": bytes(range(k)),
            "tree": trees[k % 7],
            "array": array,
            "picture": png(k + 1, 7 * k),
            "clip": wav(k),
            "key": f"sample/{k:02d}",
        }
        for k, array in enumerate(ARRAYS)
    ]


def sentences() -> list[dict[str, Any]]:
    """Many small texts that resemble each other: they are stored with a dictionary."""
    animals, places = ["wolf", "crane", "otter", "beetle", "lynx"], ["river bank", "old forest", "dry meadow"]
    return [
        {
            "label": k % 5,
            "text": f"Note {k * k % 977}: the {animals[k % 5]} was seen at the {places[k % 3]}, {k % 41} metres away.",
            "score": k / 16,
        }
        for k in range(250)
    ]


def pages() -> list[dict[str, Any]]:
    """Large texts, stored compressed without a dictionary, and one sample that does not compress and is stored raw."""
    noise = np.random.Philox(key=1).random_raw(2500).astype("<u8").tobytes()
    return [
        *({"page": f"line {k} of a long page\n".encode() * 1200, "number": k} for k in range(4)),
        {"page": noise, "number": 4},
    ]


def picture_files() -> dict[str, bytes]:
    """An image folder of two classes."""
    files = {f"{kind}/{k}.png": png(3 + k, 40 * k) for kind in ("circles", "squares") for k in range(3)}
    return files | {"circles/deep/under.png": png(9, 5)}


def clip_files() -> dict[str, bytes]:
    """An audio folder of two speakers with sidecars, and an empty folder is added below."""
    files = {f"{who}/{k}.wav": wav(4 + k) for who in ("ada", "grace") for k in range(2)}
    return files | {"ada/0.txt": b"good morning\n", "grace/1.lab": "grüezi".encode()}


def lay(folder: Path, files: dict[str, bytes]) -> Path:
    """Write files below a folder."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def _pack(samples: Callable[[], list[dict[str, Any]]], schema: dict[str, str], **more: Any) -> Make:
    return lambda target, _: brand.pack(samples(), target, schema, jobs=1, **more)


def _pictures(target: Path, scratch: Path) -> None:
    convert_images(lay(scratch / "pictures", picture_files()), target, Options(chunk_size=4, jobs=1))


def _clips(target: Path, scratch: Path) -> None:
    (lay(scratch / "clips", clip_files()) / "grace" / "empty").mkdir()
    with patch.dict(sys.modules, {"soundfile": None}):  # as released versions made it: clips were not measured
        convert_audio(scratch / "clips", target, Options(seed=3, chunk_size=3, compression="none", jobs=1))


SETS: dict[str, Make] = {
    "every_codec": _pack(every_codec, EVERY_CODEC, chunk_size=6, seed=2, compression="none"),
    "every_codec_zstd": _pack(every_codec, EVERY_CODEC, chunk_size=6, seed=2, compression="zstd"),
    "dictionary": _pack(
        sentences, {"label": "int", "text": "str", "score": "float"}, chunk_size=160, compression="zstd"
    ),
    "no_dictionary": _pack(pages, {"page": "bytes", "number": "int"}, chunk_size=4),
    "one_sample": _pack(lambda: [{"text": "alone"}], {"text": "str"}, compression="none"),
    "classes": _pack(
        lambda: [{"label": k % 3} for k in range(10)],
        {"label": "int"},
        classes=["no", "yes", "ø \"'\\ \n"],
        chunk_size=5,
        compression="none",
    ),
    "pictures": _pictures,
    "clips": _clips,
}
"""Name of each golden data set -> how it was made."""
