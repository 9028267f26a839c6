"""Makes the golden data set with names of classes of several fields, version 1.2: python -m tests.golden.make_classes

Run once, and commit what it made. It refuses to touch a folder that exists.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

import brand
from tests.golden.make import HERE, make_once

FOLDER = HERE / "v1.2-classes"
NAMES = {
    "label": ["no", "yes"],
    "fine": ["ø", "\"'\\ \n", "日本語"],
    "tags": ["x", "y", "z", "never"],
    "boxes.kind": ["car", "bus"],
}
ROWS: dict[str, list[Any]] = {
    "label": [0, 1, -1, 1, 0],
    "fine": [2, 0, 1, -1, 2],
    "tags": [[0, 2], [], [1], [2, 2, 0], [-1]],
    "number": [5, 6, 7, 8, 9],
    "boxes": [[{"kind": 1, "x": 7}, {"kind": 0, "x": 8}], [], [{"kind": 0, "x": 9}], [], [{"kind": -1, "x": 0}]],
}


def table() -> pa.Table:
    """A table as `datasets` stores it: three columns of ClassLabel, one of which has lists, and one inside structs."""
    features: dict[str, Any] = {name: {"names": names, "_type": "ClassLabel"} for name, names in NAMES.items()}
    features["tags"] = {"feature": features["tags"], "_type": "Sequence"}
    x = {"dtype": "int64", "_type": "Value"}
    features["boxes"] = [{"kind": features.pop("boxes.kind"), "x": x}]  # as earlier versions store lists
    features["number"] = {"dtype": "int64", "_type": "Value"}
    described = json.dumps({"info": {"features": features}})
    return pa.table(ROWS).replace_schema_metadata({b"huggingface": described.encode()})


def make(target: Path) -> None:
    """Write the data set."""
    brand.pack(table(), target, chunk_size=2, seed=4, jobs=1, compression="none")


def main() -> int:
    """Make it, or nothing."""
    return make_once(FOLDER, {"classes": make})


if __name__ == "__main__":
    sys.exit(main())
