"""The golden data sets with lists, of version 1.2: are they read as they were meant, and written as they were?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brand.storage.dataset.dataset import StoredDataSet
from tests.golden import make_lists
from tests.golden.make import all_plain
from tests.golden.support import check_rebuilt
from tests.independent_reader import Reader
from tests.support import files_below
from tests.tools.forge import take_apart

GOLDEN = Path(__file__).resolve().parent / "v1.2"
EXPECTED: list[dict[str, Any]] = json.loads((GOLDEN / "lists.json").read_bytes())

every_set = pytest.mark.parametrize("name", sorted(make_lists.SETS))


@every_set
def test_brand_reads_what_was_written(name: str) -> None:
    """Every element of every list, to the bit; arrays can be written to."""
    data = StoredDataSet(GOLDEN / name)
    assert [all_plain(data.sample(index)) for index in range(len(data))] == EXPECTED
    given = [all_plain(sample) for sample in make_lists.samples()]
    assert [sample | {"arrays": []} for sample in given] == [sample | {"arrays": []} for sample in EXPECTED]
    assert all(array.flags.writeable for array in data.sample(3)["arrays"])


@every_set
def test_the_independent_reader_reads_the_same(name: str) -> None:
    """A reader that was written from the specification alone finds the same elements, and every checksum right."""
    reader = Reader(GOLDEN / name)
    assert [all_plain(reader.sample(index)) for index in range(len(EXPECTED))] == EXPECTED
    assert reader.manifest["version"] == [1, 2]
    assert {chunk.data[8:12] for chunk in reader.chunks} == {b"\1\0\2\0"}


@every_set
@pytest.mark.parametrize("field", [name for name, codec in make_lists.SCHEMA.items() if codec.startswith("list[")])
def test_columns_have_the_number_of_elements(name: str, field: str) -> None:
    """Of each list, in index order."""
    column = np.load(GOLDEN / name / "columns" / f"{field}.npy")
    assert column.dtype == np.dtype("<i8")
    assert column.tolist() == [len(sample[field]) for sample in make_lists.samples()]
    assert StoredDataSet(GOLDEN / name).counts(field).tolist() == column.tolist()


@every_set
def test_a_list_set_is_whole_and_its_index_follows_from_the_chunks(name: str, tmp_path: Path) -> None:
    """`verify` finds nothing, and `reindex` makes manifest and index again, byte for byte."""
    check_rebuilt(GOLDEN / name, tmp_path / name)


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    """Without compression, samples and tables are those of the golden set."""
    make_lists.SETS["lists"](tmp_path / "new")
    for path in sorted((GOLDEN / "lists" / "chunks").iterdir()):
        old, new = take_apart(path), take_apart(tmp_path / "new" / "chunks" / path.name)
        assert new.samples == old.samples
    assert np.array_equal(np.load(GOLDEN / "lists/index/place.npy"), np.load(tmp_path / "new" / "index" / "place.npy"))


def test_golden_lists_are_never_made_anew(capsys: pytest.CaptureFixture[str]) -> None:
    """The script refuses to run where they exist, and they are small."""
    assert make_lists.main() == 1
    assert "never made anew" in capsys.readouterr().err
    assert sum(map(len, files_below(GOLDEN).values())) < 100_000
