"""Deletions, columns, compactions: what each does, what it refuses, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from brand.collect import NamedSamples, compact, delete, overlay, undelete, versions
from brand.errors import ChecksumError, SchemaError, UsageError
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.maintenance.reindex import reindex
from brand.storage.maintenance.verify import verify
from tests.collect.support import Model, check, grow, numbers, samples, tidy
from tests.support import files_below


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Parts of 20, 10 and 5 samples, whose keys begin with `a/`, `b/` and `c/`."""
    for mark, first, count in (("a", 0, 20), ("b", 20, 10), ("c", 30, 5)):
        grow(tmp_path / "all", first, count, mark=mark)
    return tmp_path / "all"


def model(*deleted: int) -> Model:
    """What `made` holds without these."""
    every = (*samples(0, 20, mark="a"), *samples(20, 10, mark="b"), *samples(30, 5, mark="c"))
    return Model(tuple(every), frozenset(deleted))


def test_keys_and_indices_name_samples(made: Path) -> None:
    """Whole keys, the beginnings of keys up to a slash, indices, all together."""
    _, found = delete(made, NamedSamples(keys=["a/3", "c/"], indices=[3, 25]))
    assert found.indices.tolist() == [3, 25, 30, 31, 32, 33, 34]
    assert found.keys == {3: "a/3", **{i: f"c/{i}" for i in range(30, 35)}}
    check(made, model(3, 25, 30, 31, 32, 33, 34))


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (NamedSamples(keys=["a/3", "a/333"]), "no sample for 1 key of 2: a/333"),
        (NamedSamples(keys=["a"]), "no sample for 1 key"),
        (NamedSamples(keys=["d/"]), "no sample for 1 key"),
        (NamedSamples(indices=[35]), "samples 0 to 34"),
        (NamedSamples(indices=[-1]), "samples 0 to 34"),
        (NamedSamples(indices=range(35)), "no sample would be left"),
        (NamedSamples(), "no sample is named"),
    ],
)
def test_what_names_no_sample_deletes_none(made: Path, wanted: NamedSamples, told: str) -> None:
    """Not even the samples that others of the keys name."""
    with pytest.raises(UsageError, match=told):
        delete(made, wanted)
    assert numbers(made) == [1, 2, 3]


def test_a_deleted_sample_is_not_found_again(made: Path) -> None:
    """Neither by its key, nor by its index."""
    delete(made, NamedSamples(keys=["a/3"]))
    for wanted in (NamedSamples(keys=["a/3"]), NamedSamples(indices=[3])):
        with pytest.raises(UsageError):
            delete(made, wanted)
    delete(made, NamedSamples(keys=["a/"]))
    check(made, model(*range(20)))


def test_a_deletion_is_taken_back(made: Path) -> None:
    """Until a compaction; older versions are as they were all the time."""
    delete(made, NamedSamples(indices=[3, 4]))
    undelete(made, [3])
    check(made, model(4))
    undelete(made, [4])
    check(made, model())
    with pytest.raises(UsageError, match="sample 4 is not deleted"):
        undelete(made, [4])
    delete(made, NamedSamples(indices=[4]))
    compact(made)
    with pytest.raises(UsageError, match="brand compact"):
        undelete(made, [4])
    assert StoredDataSet(f"{made}@3").sample(4) == model().samples[4]


def test_a_column_is_checked(made: Path) -> None:
    """Length, type, name; the message says what is needed."""
    for name, values, told in (
        ("number", np.zeros(35), "have a field 'number' already"),
        ("score", np.zeros(34), "shape .34,."),
        ("score", np.zeros((35, 1)), "one value for each index"),
        ("score", np.array(["x"] * 35), "whole numbers or floats"),
        ("score", np.full(35, 1 << 63, np.uint64), "the largest is 2\\^63 - 1"),
        ("score", np.full(35, -(1 << 63)), "means a missing value"),
        ("a b", np.zeros(35), "a b"),
        ("index", np.zeros(35), "index"),
    ):
        with pytest.raises(SchemaError, match=told):
            overlay(made, name, values)
    with pytest.raises(UsageError, match="no column 'score'"):
        overlay(made, "score", None)
    assert numbers(made) == [1, 2, 3]


@pytest.mark.parametrize(
    ("values", "codec"),
    [
        (np.arange(35, dtype=np.uint8), "int"),
        (np.arange(35) % 2 == 0, "int"),
        (np.arange(35, dtype=np.float16) / 2, "float"),
    ],
)
def test_a_column_of_any_numbers(made: Path, values: np.ndarray, codec: str) -> None:
    """Older versions do not have it; new samples have no value; it is replaced, and removed."""
    overlay(made, "score", values)
    data = StoredDataSet(made)
    assert data.schema["score"] == codec
    assert np.array_equal(data.column("score"), values)
    assert data.sample(9)["score"] == values[9]
    grow(made, 100, 2)
    assert data.version is not None
    newer = StoredDataSet(made).column("score")
    assert np.array_equal(newer[:35], values)
    assert np.isnan(newer[35:]).all() if codec == "float" else (newer[35:] == np.iinfo(np.int64).min).all()
    overlay(made, "score", np.arange(37))
    assert StoredDataSet(made).column("score").tolist() == list(range(37))
    overlay(made, "score", None)
    assert "score" not in StoredDataSet(made).schema
    assert "score" not in StoredDataSet(f"{made}@3").schema
    tidy(made)


def test_a_compaction_leaves_out_deleted_bytes(made: Path) -> None:
    """The samples that stay have the bytes that they had, and their indices; older versions keep the old parts."""
    before = StoredDataSet(made)
    stored = before.stored_bytes(before.places(np.arange(35)))
    delete(made, NamedSamples(indices=[0, 19, 20, 34, 33, 32, 31, 30]))
    done = compact(made)
    assert done is not None
    assert (done.segments, done.samples, done.freed) == (3, 8, 0)
    after = StoredDataSet(made)
    kept = after.present()
    assert after.stored_bytes(after.places(kept)) == [stored[index] for index in kept]
    assert after.version is not None
    assert [part.samples for part in after.version.parts] == [18, 9, 0]
    assert StoredDataSet(f"{made}@3").sample(30) == model().samples[30]
    assert compact(made) is None
    assert [error for step in verify(made) for error in step.errors] == []
    tidy(made)


def test_a_rewritten_part_is_an_ordinary_data_set(made: Path) -> None:
    """It opens, verifies and is indexed anew by itself, byte for byte."""
    delete(made, NamedSamples(indices=[0, 7]))
    compact(made, forget=True)
    for part in (made / "parts").iterdir():
        before = files_below(part)
        (part / "brand.json").unlink()
        reindex(part)
        assert files_below(part) == before


def test_few_deleted_samples_are_not_worth_it(made: Path) -> None:
    """A part with at most the share `above` of deleted samples stays."""
    delete(made, NamedSamples(indices=[0, 20, 21]))
    assert compact(made, above=0.2) is None
    done = compact(made, above=0.1)
    assert done is not None
    assert (done.segments, done.samples) == (1, 2)
    for above in (-0.1, 1.0):
        with pytest.raises(UsageError, match="a fraction"):
            compact(made, above=above)


def test_old_versions_are_forgotten(made: Path) -> None:
    """Their files go, and the numbers go on; without anything to compact, too."""
    delete(made, NamedSamples(indices=range(20)))
    done = compact(made, forget=True)
    assert done is not None
    assert done.freed > 0
    assert numbers(made) == [5]
    tidy(made)
    check(made, model(*range(20)))
    grow(made, 100, 2)
    assert [line.number for line in versions(made)] == [5, 6]
    assert compact(made) is None
    again = compact(made, forget=True)
    assert again is not None
    assert (again.segments, numbers(made)) == (0, [6])


def test_a_damaged_sample_is_not_copied(made: Path) -> None:
    """The compaction names it and does nothing."""
    delete(made, NamedSamples(indices=[0]))
    data = StoredDataSet(made)
    row = data.rows_at(data.places(np.array([9])))[0]
    file = Path(data.location.chunk_file(data.chunk_of(9)))
    content = bytearray(file.read_bytes())
    content[int(row["offset"])] ^= 1
    file.write_bytes(content)
    with pytest.raises(ChecksumError):
        compact(made)
    assert numbers(made) == [1, 2, 3, 4]
    tidy(made)
