"""Makes the golden data sets of the version that the code writes: python -m tests.golden.make

Run it once, when a new version of the format is released, and commit what it made. It refuses to touch a folder that
exists: golden bytes are never made anew, since they stand for the data sets that people have.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zstandard

from brand.formats.constants import VERSION_MAJOR, VERSION_MINOR
from brand.storage.dataset.dataset import StoredDataSet
from tests.golden.inputs import SETS

HERE = Path(__file__).resolve().parent


def plain(value: Any) -> Any:
    """A value as JSON that loses nothing: floats by their bits, bytes and arrays in hexadecimal."""
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, bytes) and len(value) > 1000:
        return {"size": len(value), "sha256": hashlib.sha256(value).hexdigest()}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, np.ndarray):
        return {"dtype": value.dtype.newbyteorder("<").str, "shape": list(value.shape), "data": value.tobytes().hex()}
    return value


def all_plain(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample in the form of the file with the expected values."""
    return {
        name: [plain(each) for each in value] if isinstance(value, list) else plain(value)
        for name, value in sample.items()
    }


def make_once(folder: Path, sets: Mapping[str, Callable[[Path], object]]) -> int:
    """Make data sets in a new folder, and the values of the first one in a file of its name. Returns the exit code."""
    if folder.exists():
        sys.stderr.write(f"{folder.name} exists; golden data sets are never made anew\n")
        return 1
    for name, make in sets.items():
        make(folder / name)
    first = next(iter(sets))
    data = StoredDataSet(folder / first)
    expected = [all_plain(data.sample(index)) for index in range(len(data))]
    (folder / f"{first}.json").write_text(json.dumps(expected, sort_keys=True, separators=(",", ":")) + "\n")
    return 0


def main() -> int:
    """Make everything, or nothing."""
    minor = f".{VERSION_MINOR}" if VERSION_MINOR else ""
    folder = HERE / f"v{VERSION_MAJOR}{minor}"
    if folder.exists():
        sys.stderr.write(f"{folder.name} exists; golden data sets are never made anew\n")
        return 1
    expected: dict[str, Any] = {"zstd": list(zstandard.ZSTD_VERSION), "sets": {}}
    for name, make in SETS.items():
        with tempfile.TemporaryDirectory() as scratch:
            make(folder / name, Path(scratch))
        made = StoredDataSet(folder / name)
        samples = [{key: plain(value) for key, value in made.sample(i).items()} for i in range(len(made))]
        expected["sets"][name] = samples
    (folder / "expected.json").write_text(json.dumps(expected, sort_keys=True, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
