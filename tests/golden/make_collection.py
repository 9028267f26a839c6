"""Makes the golden collection of version 1.1: python -m tests.golden.make_collection

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

SCHEMA = {"label": "int", "weight": "float", "text": "str", "key": "str"}
FOLDER = HERE / "v1.1"


def make(folder: Path) -> None:
    """Three parts: one with deleted samples, one written again without some, one without any sample left."""
    options = Options(seed=5, chunk_size=4, compression="none", jobs=1)
    for first, count in ((0, 10), (10, 7), (17, 2)):
        samples = [
            {"label": i % 3, "weight": i / 8, "text": "Grüße " * (i % 4), "key": f"part/{i}"}
            for i in range(first, first + count)
        ]
        append_samples(samples, folder, SCHEMA, options=options, classes=("a", "b", "c"))
        options = Options(seed=5, jobs=1)
    overlay(folder, "rank", np.arange(19) * 2**40)
    overlay(folder, "score", np.where(np.arange(19) % 5 == 0, np.nan, np.arange(19) / 16))
    delete(folder, NamedSamples(indices=[11, 15, 17, 18]))
    compact(folder)
    delete(folder, NamedSamples(keys=["part/3", "part/12"]))
    append_samples(
        [{"label": 2, "weight": 9.5, "text": "new", "key": "part/19"}], folder, SCHEMA, classes=("a", "b", "c"),
        options=options,
    )  # fmt: skip


def main() -> int:
    """Make it, or nothing."""
    if FOLDER.exists():
        sys.stderr.write(f"{FOLDER.name} exists; golden data sets are never made anew\n")
        return 1
    make(FOLDER / "collection")
    (FOLDER / "collection" / "staging").rmdir()
    expected = {}
    for number in (3, 8, 9):
        data = StoredDataSet(f"{FOLDER}/collection@{number}")
        expected[number] = {
            index: {key: plain(value) for key, value in data.sample(index).items()} for index in data.present().tolist()
        }
    (FOLDER / "expected.json").write_text(json.dumps(expected, sort_keys=True, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
