"""`brand.pack`: any iterable or indexable of dicts comes back value for value."""

from __future__ import annotations

import json
import math
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand import pack
from brand.chunker.plan.report import StageProgress
from brand.chunker.sources.source import is_of_large
from brand.errors import SchemaError, SourceError, TargetExistsError, UsageError
from brand.formats.header import Schema
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.maintenance.verify import verify
from brand.torch import BrandDataset
from tests.rounds import examples
from tests.support import tree_digest

I64 = st.integers(-(2**63), 2**63 - 1)
JSON = st.recursive(
    st.none() | st.booleans() | I64 | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
SCHEMA = {"i": "int", "f": "float", "s": "str", "b": "bytes", "j": "json"}
SAMPLES = st.fixed_dictionaries(
    {"i": I64, "f": st.floats(), "s": st.text(max_size=20), "b": st.binary(max_size=30), "j": JSON}
)


class Numbers:
    """An indexable of dicts, and no more than that."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return {"n": index, "text": f"number {index} " * (index % 7)}


NUMBERS = {"n": "int", "text": "str"}


def stored(path: Path) -> list[dict[str, Any]]:
    """All samples in index order."""
    data_set = StoredDataSet(path)
    return [data_set.sample(index) for index in range(len(data_set))]


def same(found: Any, expected: Any) -> bool:
    """Equal, where NaN equals itself and -0.0 is not 0.0."""
    if isinstance(expected, float):
        return (
            isinstance(found, float)
            and math.copysign(1, found) == math.copysign(1, expected)
            and (found == expected or (math.isnan(found) and math.isnan(expected)))
        )
    return type(found) is type(expected) and bool(found == expected)


@pytest.mark.slow
@examples(20)
@given(st.lists(SAMPLES, min_size=1, max_size=20), st.integers(1, 7), st.sampled_from(["auto", "none", "zstd"]))
def test_any_values_come_back_equal(
    tmp_path_factory: pytest.TempPathFactory, samples: list[dict[str, Any]], chunk_size: int, compression: Any
) -> None:
    """Every plain codec, any value it takes, for any chunk size and compression; and the set verifies."""
    target = tmp_path_factory.mktemp("pack") / "set"
    pack(samples, target, SCHEMA, chunk_size=chunk_size, compression=compression, jobs=1)
    for found, expected in zip(stored(target), samples, strict=True):
        assert list(found) == list(SCHEMA)
        assert all(same(found[name], expected[name]) for name in ("i", "f", "s", "b")), (found, expected)
        assert json.dumps(found["j"]) == json.dumps(expected["j"])
    assert [error for step in verify(target) for error in step.errors] == []


@pytest.mark.parametrize(
    "dtype",
    ["?", "i1", "<i2", ">i2", "i4", "i8", "u1", "u2", ">u4", "u8", "f2", "f4", ">f8", "c8", "c16"],
)
def test_arrays_come_back_equal(tmp_path: Path, dtype: str) -> None:
    """Each dtype, from either byte order, each number of dimensions, empty ones too; writable and little-endian."""
    shapes: list[tuple[int, ...]] = [(), (0,), (3,), (2, 0, 3), (2, 3, 4)]
    given = [(np.arange(math.prod(shape)) - 3).reshape(shape).astype(dtype) for shape in shapes]
    pack([{"a": values} for values in given], tmp_path / "set", {"a": "ndarray"}, jobs=1)
    data_set = BrandDataset(tmp_path / "set")
    for index, values in enumerate(given):
        found = data_set[index]["a"]
        assert found.shape == values.shape
        assert found.dtype == values.dtype.newbyteorder("<")
        assert np.array_equal(found, values)
        assert found.flags.writeable


def test_arrays_in_any_memory_layout_come_back_equal(tmp_path: Path) -> None:
    """Transposed, strided, reversed and read-only views are stored by their elements; lists become arrays."""
    base = np.arange(24.0).reshape(4, 6)
    frozen = base.copy()
    frozen.flags.writeable = False
    arrays = [base.T, base[::2, ::3], base[::-1], np.asfortranarray(base), frozen, [[1, 2], [3, 4]], 5]
    pack([{"a": array} for array in arrays], tmp_path / "set", {"a": "ndarray"}, jobs=1)
    for found, expected in zip(stored(tmp_path / "set"), arrays, strict=True):
        assert np.array_equal(found["a"], np.asarray(expected))


def test_numpy_numbers_and_bools_are_numbers(tmp_path: Path) -> None:
    """`int` takes anything that is an integer, `float` anything that is a number."""
    given: list[tuple[Any, Any]] = [
        (np.int8(-3), np.float32(0.5)),
        (np.uint64(7), 3),
        (True, np.int16(2)),
        (np.int64(2**62), True),
    ]
    pack([{"i": i, "f": f} for i, f in given], tmp_path / "set", {"i": "int", "f": "float"}, jobs=1)
    found = stored(tmp_path / "set")
    assert found == [{"i": int(i), "f": float(f)} for i, f in given]
    assert all(type(sample["i"]) is int and type(sample["f"]) is float for sample in found)


def test_bytes_may_be_a_bytearray_or_a_view(tmp_path: Path) -> None:
    """What has the buffer interface of bytes is stored as bytes."""
    given = [b"one", bytearray(b"two"), memoryview(b"xthreex")[1:-1]]
    pack([{"b": value} for value in given], tmp_path / "set", {"b": "bytes"}, jobs=1)
    assert [sample["b"] for sample in stored(tmp_path / "set")] == [b"one", b"two", b"three"]


@pytest.mark.slow
def test_real_files_in_image_and_audio_fields_come_back_bit_for_bit(tmp_path: Path, photos: Path, clips: Path) -> None:
    """`image` and `audio` keep the file's bytes; decoding is left to reading."""
    pairs = list(zip(sorted(photos.rglob("*.*")), sorted(clips.rglob("*.*")), strict=False))
    samples = [{"picture": a.read_bytes(), "sound": b.read_bytes()} for a, b in pairs]
    pack(samples, tmp_path / "set", {"picture": "image", "sound": "audio"}, jobs=2)
    data_set = BrandDataset(tmp_path / "set", decode=False, fields=("picture", "sound"))
    assert [data_set[i] for i in range(len(data_set))] == [(s["picture"], s["sound"]) for s in samples]
    decoded = BrandDataset(tmp_path / "set", fields=("picture", "sound"))[3]
    assert decoded[0].mode == "RGB"
    assert decoded[1].samples.ndim == 2


LARGE_SAMPLES: dict[str, tuple[dict[str, str], Any]] = {
    "bytes": ({"x": "bytes"}, lambda i: {"x": bytes([i]) * 300_000}),
    "views of memory": ({"x": "bytes", "key": "str"}, lambda i: {"x": memoryview(bytes([i]) * 300_000), "key": f"{i}"}),
    "arrays": ({"x": "ndarray", "i": "int"}, lambda i: {"x": np.full((300, 500), i, np.int16), "i": i}),
    "texts": ({"x": "str"}, lambda i: {"x": "é" * (300_000 + i)}),
    "files": ({"x": "audio", "y": "image"}, lambda i: {"x": bytes([i]) * 300_000, "y": b"\x89PNG\r\n\x1a\n" * i}),
}


@pytest.mark.parametrize("kind", LARGE_SAMPLES)
def test_a_list_of_large_samples_is_read_by_index_and_stored_as_a_generator_is(tmp_path: Path, kind: str) -> None:
    """No sample is written twice: the work folder never has a spool. The data set is the same, byte for byte."""
    schema, make = LARGE_SAMPLES[kind]
    samples, spools = [make(i) for i in range(20)], list[int]()

    def look(_: StageProgress) -> None:
        spools.append(len(list(tmp_path.rglob("*.records"))))

    pack(samples, tmp_path / "list", schema, chunk_size=3, on_progress=look)
    assert spools
    assert not any(spools)
    pack(tuple(samples), tmp_path / "tuple", schema, chunk_size=3, jobs=1)
    pack(iter(samples), tmp_path / "generator", schema, chunk_size=3, on_progress=look)
    assert any(spools)
    assert tree_digest(tmp_path / "list") == tree_digest(tmp_path / "tuple") == tree_digest(tmp_path / "generator")


@pytest.mark.parametrize(
    ("codec", "samples", "by_index"),
    [
        ("bytes", [{"x": bytes(1 << 20)}], True),
        ("bytes", [{"x": bytes(1 << 20)}] * 9 + [{"x": b""}] * 9, True),
        ("bytes", [{"x": bytes(1 << 20)}] + [{"x": b""}] * 9, False),
        ("bytes", [{"x": b"small"}] * 5000, False),
        ("bytes", [], False),
        ("bytes", [{"y": bytes(1 << 20)}], False),
        ("bytes", [bytes(1 << 20)], False),
        ("bytes", [None], False),
        ("bytes", ({"x": bytes(1 << 20)} for _ in range(3)), False),
        ("bytes", Numbers(4), False),
        ("json", [{"x": "text" * (1 << 20)}], True),
        ("json", [{"x": {"a": "text" * (1 << 20)}}], False),
        ("ndarray", [{"x": [[0.5] * 1000] * 1000}], False),
        ("list[str]", [{"x": ["text" * (1 << 20)]}], False),
        ("int", [{"x": 1}], False),
    ],
)
def test_only_lists_of_large_samples_that_take_no_time_to_encode_are_read_by_index(
    codec: str, samples: Any, *, by_index: bool
) -> None:
    """Such samples are encoded twice."""
    assert is_of_large(samples, Schema.parse({"x": codec})) == by_index


def test_a_wrong_sample_of_a_list_of_large_ones_is_named_before_anything_is_written(tmp_path: Path) -> None:
    """As it is from a generator."""
    samples = [{"x": bytes(1 << 20)}] * 1500
    samples[777] = {"x": "text"}  # type: ignore[dict-item]
    with pytest.raises(SchemaError, match="sample 777, field 'x'"):
        pack(samples, tmp_path / "set", {"x": "bytes"})
    assert not (tmp_path / "set").exists()


@pytest.mark.slow
def test_a_list_a_generator_and_an_indexable_hold_the_same_samples(tmp_path: Path) -> None:
    """Whatever way the samples come in, sample `i` is the `i`-th."""
    source = Numbers(500)
    everything = [source[i] for i in range(len(source))]
    for name, samples in {
        "list": everything,
        "tuple": tuple(everything),
        "generator": iter(everything),
        "indexable": source,
    }.items():
        report = pack(samples, tmp_path / name, NUMBERS, chunk_size=33, jobs=2)
        assert stored(tmp_path / name) == everything
        assert (report.samples, report.chunks, report.chunk_size) == (500, 16, 33)
    assert tree_digest(tmp_path / "list") == tree_digest(tmp_path / "generator") == tree_digest(tmp_path / "tuple")


def test_a_generator_is_read_once_and_in_order(tmp_path: Path) -> None:
    """No second pass, and nothing is asked after its end."""
    read: list[int] = []

    def stream() -> Iterator[dict[str, int]]:
        for number in range(3000):
            read.append(number)
            yield {"n": number}

    pack(stream(), tmp_path / "set", {"n": "int"}, jobs=2)
    assert read == list(range(3000))


def test_mappings_that_are_no_dicts_are_samples(tmp_path: Path) -> None:
    """Any Mapping will do, and fields beyond the schema are left out."""

    class Row(Mapping[str, Any]):
        def __init__(self, number: int) -> None:
            self.number = number

        def __getitem__(self, name: str) -> Any:
            return {"n": self.number, "other": object()}[name]

        def __iter__(self) -> Iterator[str]:
            return iter(("n", "other"))

        def __len__(self) -> int:
            return 2

    pack([Row(4), types.MappingProxyType({"n": 5, "more": None})], tmp_path / "set", {"n": "int"}, jobs=1)
    assert stored(tmp_path / "set") == [{"n": 4}, {"n": 5}]


def test_a_set_of_samples_is_an_iterable(tmp_path: Path) -> None:
    """What can be iterated and has a length, but no items, is read once."""
    values = {n: {"n": n} for n in range(10)}.values()
    told: list[StageProgress] = []
    pack(values, tmp_path / "set", {"n": "int"}, jobs=1, on_progress=told.append)
    assert stored(tmp_path / "set") == [{"n": n} for n in range(10)]
    assert told[-1].samples == told[-1].total == 10


def test_a_key_field_names_the_samples(tmp_path: Path) -> None:
    """With a `str` field `key` it is the key; without, the key is the index in decimal."""
    pack([{"key": "b", "n": 1}, {"key": "a", "n": 2}], tmp_path / "keys", {"n": "int", "key": "str"}, jobs=1)
    pack([{"n": 1}, {"n": 2}], tmp_path / "plain", {"n": "int"}, jobs=1)
    assert [BrandDataset(tmp_path / "keys")[i]["key"] for i in (0, 1)] == ["b", "a"]
    assert [BrandDataset(tmp_path / "plain")[i]["key"] for i in (0, 1)] == ["0", "1"]


def test_fields_come_in_the_order_of_the_schema(tmp_path: Path) -> None:
    """Not in the order of each dict, nor with numbers first."""
    schema = {"text": "str", "n": "int", "raw": "bytes", "x": "float"}
    pack([{"x": 1.0, "raw": b"", "n": 1, "text": "t"}], tmp_path / "set", schema, jobs=1)
    assert list(stored(tmp_path / "set")[0]) == list(schema)
    assert list(BrandDataset(tmp_path / "set").schema) == list(schema)


def test_classes_name_the_labels(tmp_path: Path) -> None:
    """They are kept with the data set."""
    pack([{"label": 1}, {"label": 0}], tmp_path / "set", {"label": "int"}, classes=["cat", "dog"], jobs=1)
    assert BrandDataset(tmp_path / "set").classes == ["cat", "dog"]
    assert BrandDataset(tmp_path / "set").column("label").tolist() == [1, 0]


@pytest.mark.parametrize("nothing", [[], (), iter([]), Numbers(0)], ids=["list", "tuple", "iterator", "indexable"])
def test_no_samples_is_a_source_error(tmp_path: Path, nothing: Any) -> None:
    """A data set has at least one sample."""
    with pytest.raises(SourceError, match="there are none"):
        pack(nothing, tmp_path / "set", {"n": "int"}, jobs=1)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_of_the_users_own_code_comes_through(tmp_path: Path, jobs: int) -> None:
    """An exception in a generator or in `__getitem__` is theirs, and stays what it is."""

    class Broken(Numbers):
        def __getitem__(self, index: int) -> dict[str, Any]:
            if index == 37:
                raise ZeroDivisionError("theirs")
            return super().__getitem__(index)

    def stream() -> Iterator[dict[str, Any]]:
        yield {"n": 1, "text": ""}
        raise ZeroDivisionError("theirs")

    with pytest.raises(ZeroDivisionError, match="theirs"):
        pack(Broken(50), tmp_path / "a", NUMBERS, chunk_size=4, jobs=jobs)
    with pytest.raises(ZeroDivisionError, match="theirs"):
        pack(stream(), tmp_path / "b", NUMBERS, jobs=jobs)
    assert not (tmp_path / "a" / "brand.json").exists()
    pack(Numbers(50), tmp_path / "a", NUMBERS, chunk_size=4, jobs=jobs)
    assert stored(tmp_path / "a") == [Numbers(50)[i] for i in range(50)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_file_that_the_users_own_code_misses_is_no_fault_of_the_storage(tmp_path: Path, jobs: int) -> None:
    """A generator or `__getitem__` that opens a missing file: FileNotFoundError, not "cannot write" the target."""

    class Files(Numbers):
        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"n": index, "text": (tmp_path / "missing.txt").read_text()}

    with pytest.raises(FileNotFoundError, match=r"missing\.txt"):
        pack((Files(3)[i] for i in range(3)), tmp_path / "a", NUMBERS, jobs=jobs)
    with pytest.raises(FileNotFoundError, match=r"missing\.txt"):
        pack(Files(3), tmp_path / "b", NUMBERS, jobs=jobs)


def test_an_unfinished_pack_goes_on_only_with_the_same_samples(tmp_path: Path) -> None:
    """A source that changed is another source."""

    class Late(Numbers):
        """Is interrupted after the plan was made and some chunks were written."""

        calls = 0

        def __getitem__(self, index: int) -> dict[str, Any]:
            Late.calls += 1
            if Late.calls > 60:
                raise KeyboardInterrupt
            return super().__getitem__(index)

    with pytest.raises(KeyboardInterrupt):
        pack(Late(40), tmp_path / "set", NUMBERS, chunk_size=4, jobs=1)
    with pytest.raises(TargetExistsError, match="another source or with other options"):
        pack(Numbers(41), tmp_path / "set", NUMBERS, chunk_size=4, jobs=1)
    with pytest.raises(TargetExistsError, match="another source or with other options"):
        pack(Numbers(40), tmp_path / "set", NUMBERS, chunk_size=4, jobs=1, seed=1)
    report = pack(Numbers(40), tmp_path / "set", NUMBERS, chunk_size=4, jobs=1)
    assert report.chunks_found > 0
    assert stored(tmp_path / "set") == [Numbers(40)[i] for i in range(40)]


def test_wrong_options_leave_nothing_behind(tmp_path: Path) -> None:
    """What is wrong in the call is said before the target is touched."""
    for wrong in ({"seed": -1}, {"chunk_size": 0}, {"chunk_size": 1, "chunk_bytes": 1}, {"jobs": 0}):
        with pytest.raises(UsageError):
            pack([{"n": 1}], tmp_path / "set", {"n": "int"}, **wrong)  # type: ignore[arg-type]
    with pytest.raises(SchemaError):
        pack([{"n": 1}], tmp_path / "set", {"n": "integer"})
    assert not (tmp_path / "set").exists()
