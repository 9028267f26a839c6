"""Does a reader of an older version refuse a data set that it would read wrong, and read the others exactly?

A reader of version 1.0 reads every minor version, ignores keys that it does not know, and refuses unknown codecs. So
everything that changes values stands in a codec. Two such readers are asked: the independent one, with the codecs of
version 1.0, and Brand 0.2.0 as it was, where the repository has its history.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import brand
from brand import DecodeImage
from brand.chunker import Options, convert_images
from brand.storage.dataset.dataset import StoredDataSet
from tests.golden import make_classes, make_lists
from tests.golden.inputs import png
from tests.golden.make import plain
from tests.golden.make_defaults import turned
from tests.independent_reader import CODECS_1_0, Reader
from tests.support import LIMIT_S

BRAND_0_2 = "f8b923dc5bb5f6d65dea8de4e2b164bde31553bf"


def _folder(target: Path, **options: Any) -> None:
    source = target.with_suffix(".src")
    for number, name in enumerate(("a/0.png", "a/1.png", "b/0.png")):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(turned(png(3, number), 6))
    convert_images(source, target, Options(**options))


def _lists(kind: str, elements: list[Any]) -> Callable[[Path], object]:
    samples = [{"things": elements[:n], "n": n} for n in range(3)]
    return lambda target: brand.pack(samples, target, {"things": f"list[{kind}]", "n": "int"})


def _images(target: Path) -> None:
    samples = [{"photo": turned(png(3, n), 6), "n": n} for n in range(3)]
    brand.pack(samples, target, {"photo": "image", "n": "int"}, decode={"photo": DecodeImage(upright=True)})


READ: dict[str, Callable[[Path], object]] = {
    "noticed": _folder,
    "classes": lambda target: _folder(target, classes=("b", "never", "a")),
    "field_classes": make_classes.make,
}
"""Data sets whose values do not depend on anything that version 1.2 has added."""
REFUSED: dict[str, Callable[[Path], object]] = {
    "decode defaults": _images,
    "lists": make_lists.SETS["lists"],
    "list[int]": _lists("int", [1, 2]),
    "list[str]": _lists("str", ["a", "b"]),
    "list[image]": _lists("image", [png(1, 1), png(2, 2)]),
}
"""Data sets that another reader would read as other values."""


def values(data: Any, count: int) -> list[dict[str, Any]]:
    """The samples in a form that JSON has."""
    return [{name: plain(value) for name, value in data.sample(index).items()} for index in range(count)]


@pytest.mark.parametrize("name", READ)
def test_other_sets_are_read_exactly(name: str, tmp_path: Path) -> None:
    """Every value, although the manifest says 1.2: what an old reader ignores changes no value."""
    READ[name](tmp_path / "set.brand")
    data = StoredDataSet(tmp_path / "set.brand")
    reader = Reader(tmp_path / "set.brand", CODECS_1_0)
    assert reader.manifest["version"] == [1, 2] or name == "classes"
    assert values(reader, len(data)) == values(data, len(data))


@pytest.mark.parametrize("name", REFUSED)
def test_sets_that_it_would_read_wrong_are_refused(name: str, tmp_path: Path) -> None:
    """The error names field and codec."""
    REFUSED[name](tmp_path / "set.brand")
    field, codec = next(pair for pair in Reader(tmp_path / "set.brand").manifest["header"]["schema"] if "[" in pair[1])
    with pytest.raises(ValueError, match=re.escape(f"{field} has the codec {codec}")):
        Reader(tmp_path / "set.brand", CODECS_1_0)


OLD = """
import json, sys
from brand.errors import BrandError
from brand.storage.dataset import StoredDataSet
from tests.golden.make import plain

told = {}
for path in sys.argv[1:]:
    try:
        data = StoredDataSet(path)
        told[path] = [{k: plain(v) for k, v in data.sample(i).items()} for i in range(len(data))]
    except BrandError as error:
        told[path] = str(error)
print(json.dumps(told))
"""


@pytest.mark.slow
def test_brand_0_2_itself(repository: Path, tmp_path: Path) -> None:
    """Exactly the right values, or an error that names field and codec."""
    archive = subprocess.run(["git", "archive", BRAND_0_2, "brand", "tests"], cwd=repository, capture_output=True,
                             check=False)  # fmt: skip
    if archive.returncode:
        pytest.skip("the history of the repository is not here")
    old = tmp_path / "old"
    old.mkdir()
    subprocess.run(["tar", "-x", "-C", str(old)], input=archive.stdout, check=True)
    sets = {name: tmp_path / f"{number}.brand" for number, name in enumerate([*READ, *REFUSED])}
    for name, make in (READ | REFUSED).items():
        make(sets[name])
    environment = os.environ | {"PYTHONPATH": str(old)}
    said = subprocess.run([sys.executable, "-c", OLD, *map(str, sets.values())], env=environment, cwd=old,
                          capture_output=True, text=True, timeout=LIMIT_S, check=True)  # fmt: skip
    told = json.loads(said.stdout)
    for name in READ:
        data = StoredDataSet(sets[name])
        assert told[str(sets[name])] == json.loads(json.dumps(values(data, len(data))))
    for name in REFUSED:
        assert re.search(r"field '(photo|pictures|things)': unknown codec '[a-z]+\[", told[str(sets[name])]), name
