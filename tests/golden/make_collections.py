"""Makes the golden collections, of version 1.1 and, with merges, of 1.3: python -m tests.golden.make_collections

Run once for each version, and commit what it made. It refuses to touch a folder that exists.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from brand.chunker import Options
from brand.collect import NamedSamples, append_samples, compact, delete, overlay
from brand.storage.dataset.dataset import StoredDataSet
from tests.golden.make import HERE, plain

GROWN = {"label": "int", "weight": "float", "text": "str", "key": "str"}
MERGED = {"label": "int", "text": "str", "key": "str"}
NIGHTS = 8


def append(folder: Path, schema: Mapping[str, str], classes: Sequence[str], samples: Sequence[dict[str, Any]]) -> None:
    """Add samples to a collection, or begin it with them."""
    new = not folder.exists()
    options = Options(seed=5, jobs=1, chunk_size=4 if new else None, compression="none" if new else "auto")
    append_samples(samples, folder, schema, options=options, classes=classes)


def make_grown(folder: Path) -> None:
    """Three parts: one with deleted samples, one written again without some, one without any sample left."""
    for first, count in ((0, 10), (10, 7), (17, 2)):
        samples = [
            {"label": i % 3, "weight": i / 8, "text": "Grüße " * (i % 4), "key": f"part/{i}"}
            for i in range(first, first + count)
        ]
        append(folder, GROWN, ("a", "b", "c"), samples)
    overlay(folder, "rank", np.arange(19) * 2**40)
    overlay(folder, "score", np.where(np.arange(19) % 5 == 0, np.nan, np.arange(19) / 16))
    delete(folder, NamedSamples(indices=[11, 15, 17, 18]))
    compact(folder)
    delete(folder, NamedSamples(keys=["part/3", "part/12"]))
    append(folder, GROWN, ("a", "b", "c"), [{"label": 2, "weight": 9.5, "text": "new", "key": "part/19"}])


def append_night(folder: Path, night: int) -> None:
    """Add three samples."""
    numbers = range(3 * night, 3 * night + 3)
    samples = [{"label": i % 2, "text": "Grüße " * (i % 3), "key": f"{night}/{i}"} for i in numbers]
    append(folder, MERGED, ("a", "b"), samples)


def make_merged(folder: Path) -> None:
    """A segment of eight with a deleted sample in it and two left out, and one that was appended afterwards."""
    for night in range(NIGHTS):
        append_night(folder, night)
    overlay(folder, "score", np.arange(3 * NIGHTS) / 8)
    delete(folder, NamedSamples(indices=[4, 12, 13]))
    compact(folder, above=0.5, forget=True)
    append_night(folder, NIGHTS)


def values(path: Path | str) -> dict[str, Any]:
    """All present samples of a version, by index, in the form of expected.json."""
    data = StoredDataSet(path)
    return {
        str(index): {key: plain(value) for key, value in data.sample(index).items()}
        for index in data.present().tolist()
    }


def _of_versions(folder: Path) -> dict[str, Any]:
    return {str(number): values(f"{folder}@{number}") for number in (3, 8, 9)}


SETS: dict[str, tuple[Callable[[Path], None], Callable[[Path], dict[str, Any]]]] = {
    "v1.1": (make_grown, _of_versions),
    "v1.3": (make_merged, values),
}
"""Folder -> what makes its collection, and what its expected.json holds."""


def main() -> int:
    """Make those that are missing."""
    missing = [name for name in SETS if not (HERE / name).exists()]
    if not missing:
        sys.stderr.write(f"{', '.join(SETS)} exist; golden data sets are never made anew\n")
        return 1
    for name in missing:
        make, expected = SETS[name]
        folder = HERE / name / "collection"
        make(folder)
        (folder / "staging").rmdir()
        (folder / "present").unlink()
        text = json.dumps(expected(folder), sort_keys=True, separators=(",", ":"))
        (HERE / name / "expected.json").write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
