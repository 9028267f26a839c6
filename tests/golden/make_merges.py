"""Makes the golden collection with merged segments, of version 1.3: python -m tests.golden.make_merges

Run once, and commit what it made. It refuses to touch a folder that exists.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from brand.chunker import Options
from brand.collect import NamedSamples, append_samples, compact, delete, overlay
from brand.storage.dataset.dataset import StoredDataSet
from tests.golden.make import HERE, plain

SCHEMA = {"label": "int", "text": "str", "key": "str"}
FOLDER = HERE / "v1.3"
NIGHTS = 8


def append(folder: Path, night: int) -> None:
    """Add three samples."""
    options = Options(seed=5, jobs=1, chunk_size=None if night else 4, compression="auto" if night else "none")
    rows = [
        {"label": i % 2, "text": "Grüße " * (i % 3), "key": f"{night}/{i}"} for i in range(3 * night, 3 * night + 3)
    ]
    append_samples(rows, folder, SCHEMA, options=options, classes=("a", "b"))


def make(folder: Path) -> None:
    """Make a segment of eight with a deleted sample in it and two left out, and one that was appended afterwards."""
    for night in range(NIGHTS):
        append(folder, night)
    overlay(folder, "score", np.arange(3 * NIGHTS) / 8)
    delete(folder, NamedSamples(indices=[4, 12, 13]))
    compact(folder, above=0.5, forget=True)
    append(folder, NIGHTS)


def main() -> int:
    """Make it, or nothing."""
    if FOLDER.exists():
        sys.stderr.write(f"{FOLDER.name} exists; golden data sets are never made anew\n")
        return 1
    make(FOLDER / "collection")
    (FOLDER / "collection" / "staging").rmdir()
    data = StoredDataSet(f"{FOLDER}/collection")
    expected = {
        index: {key: plain(value) for key, value in data.sample(index).items()} for index in data.present().tolist()
    }
    (FOLDER / "expected.json").write_text(json.dumps(expected, sort_keys=True, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
