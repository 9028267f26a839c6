"""Makes the golden data sets with lists, of version 1.2: python -m tests.golden.make_lists

Run once, and commit what it made. It refuses to touch a folder that exists.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import brand
from tests.golden.inputs import ARRAYS, png, wav
from tests.golden.make import HERE, make_once

SCHEMA = {
    "pictures": "list[image]",
    "number": "int",
    "clips": "list[audio]",
    "texts": "list[str]",
    "arrays": "list[ndarray]",
    "whole": "list[int]",
    "ratios": "list[float]",
    "key": "str",
}
FOLDER = HERE / "v1.2"
_EDGES = [-(2**63), 2**63 - 1, 0, -1]
_RATIOS = [-0.0, float("inf"), float("nan"), 5e-324, 0.1]
_TEXTS = ["", "ASCII", "Zürich", "日本語", "\U0001f600", "a\0b", "e\u0301"]


def samples() -> list[dict[str, Any]]:
    """Eight samples whose lists have 0 to 7 elements, each field another number of them."""
    return [
        {
            "pictures": [png(k + at + 1, at) for at in range(k % 6)],
            "number": k,
            "clips": [wav(at) for at in range(k % 3)],
            "texts": _TEXTS[: 7 - k],
            "arrays": ARRAYS[2 * k : 2 * k + k % 4],
            "whole": _EDGES[: k % 5],
            "ratios": _RATIOS[k % 6 :],
            "key": f"document/{k}",
        }
        for k in range(8)
    ]


def _make(compression: Any) -> Callable[[Path], object]:
    return lambda target: brand.pack(
        samples(), target, SCHEMA, chunk_size=3, seed=4, jobs=1, compression=compression
    )  # fmt: skip


SETS = {"lists": _make("none"), "lists_zstd": _make("zstd")}


def main() -> int:
    """Make them, or nothing."""
    return make_once(FOLDER, SETS)


if __name__ == "__main__":
    sys.exit(main())
