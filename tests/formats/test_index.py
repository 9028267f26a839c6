"""The index: made from tables in any order, and distrusted when it is read."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.errors import FormatError, LayoutError, MissingFileError, OversizedError, TruncatedError
from brand.formats.constants import CHUNKS_NAME, PLACE_NAME, ROW, SAMPLES_NAME
from brand.formats.header import Header, Schema
from brand.formats.index import IndexBuilder, array_dtypes, open_array, place_dtype, seal
from brand.formats.manifest import index_names, read_manifest
from brand.formats.publish import FolderTarget

HEADER = Header(5, 2, Schema.parse({"label": "int", "text": "str", "x": "float"}), None, "none", 0, {})
ORDER = [3, 0, 4, 2, 1]
COLUMNS = np.dtype([("label", "<i8"), ("x", "<f8")])


def add(builder: IndexBuilder, number: int, order: list[int] = ORDER) -> None:
    """Add one chunk of the data set whose places hold the indices of `order`."""
    indices = order[2 * number : 2 * number + 2]
    rows, columns = np.zeros(len(indices), ROW), np.zeros(len(indices), COLUMNS)
    rows["index"], rows["size"], rows["raw_size"] = indices, 10, 10 + number
    rows["offset"] = 100 + 10 * np.arange(len(indices))
    columns["label"], columns["x"] = [10 * i for i in indices], [i / 2 for i in indices]
    builder.add(number, rows, 77 + number, columns, {})


def build(folder: Path, numbers: list[int]) -> dict[str, bytes]:
    """Seal a data set whose chunks come in this order; its index files."""
    (folder / "chunks").mkdir(parents=True)
    builder = IndexBuilder(folder / "work", HEADER, folder)
    for number in numbers:
        add(builder, number)
    seal(FolderTarget(folder), builder, data_set_id=bytes(16), dictionary_size=0, companions={})
    return {name: (folder / name).read_bytes() for name in [*index_names(HEADER), "brand.json"]}


def npy(array: np.ndarray[Any, Any]) -> bytes:
    """Bytes of a .npy file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    """A data set without chunk files."""
    build(tmp_path / "set", [0, 1, 2])
    return tmp_path / "set"


def test_the_index_says_where_everything_is(sealed: Path) -> None:
    """Rows by place, places by index, columns by index, chunks by number; sums in the manifest."""
    place, samples = (open_array(sealed, name, HEADER).all() for name in (PLACE_NAME, SAMPLES_NAME))
    assert place.tolist() == [ORDER.index(i) for i in range(5)]
    assert samples["index"].tolist() == ORDER
    assert open_array(sealed, "columns/label.npy", HEADER).all().tolist() == [0, 10, 20, 30, 40]
    assert open_array(sealed, "columns/x.npy", HEADER).all().tolist() == [0, 0.5, 1, 1.5, 2]
    assert open_array(sealed, CHUNKS_NAME, HEADER).all().tolist() == [(120, 77), (120, 78), (110, 79)]
    manifest = read_manifest(sealed)
    assert (manifest.stored_bytes, manifest.raw_bytes, manifest.largest_sample) == (50, 54, 12)
    assert manifest.header == HEADER


@pytest.mark.parametrize("numbers", [[2, 1, 0], [1, 0, 2]])
def test_the_order_in_which_chunks_come_does_not_matter(tmp_path: Path, numbers: list[int]) -> None:
    """The files are the same, byte for byte."""
    assert build(tmp_path / "a", [0, 1, 2]) == build(tmp_path / "b", numbers)


def test_the_files_are_npy_version_1(sealed: Path) -> None:
    """C order, little-endian, as section 4 says."""
    for name, (dtype, length) in array_dtypes(HEADER).items():
        data = (sealed / name).read_bytes()
        assert data[:8] == b"\x93NUMPY\x01\x00"
        assert npy(np.load(sealed / name)) == data
        assert len(data) == 10 + int.from_bytes(data[8:10], "little") + dtype.itemsize * length


@pytest.mark.parametrize(("order", "at"), [([3, 0, 3, 2, 1], 1), ([3, 3, 4, 2, 1], 0), ([3, 0, 4, 2, 0], 2)])
def test_a_sample_in_two_places_is_refused(tmp_path: Path, order: list[int], at: int) -> None:
    """Across chunks and within one; the error names the sample and the chunk."""
    builder = IndexBuilder(tmp_path / "work", HEADER, tmp_path)
    for number in range(at):
        add(builder, number, order)
    add(builder, at, order)
    with pytest.raises(LayoutError, match="two places") as caught:
        builder.finish()
    assert (caught.value.chunk, caught.value.sample) == (at, max(order, key=order.count))


def test_a_sample_without_a_place_is_refused(tmp_path: Path) -> None:
    """An index is not sealed before every chunk is in it."""
    builder = IndexBuilder(tmp_path / "work", HEADER, tmp_path)
    add(builder, 0)
    with pytest.raises(LayoutError, match="no chunk has 3 of 5 samples"):
        seal(FolderTarget(tmp_path), builder, data_set_id=bytes(16), dictionary_size=0, companions={})
    assert not (tmp_path / "brand.json").exists()


def test_places_are_four_bytes_until_they_do_not_fit() -> None:
    """From 2^32 samples on they are eight."""
    assert place_dtype(1) == place_dtype(2**32 - 1) == np.dtype("<u4")
    assert place_dtype(2**32) == np.dtype("<u8")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda data: data[:-1], TruncatedError),
        (lambda data: data[:128], TruncatedError),
        (lambda data: data + b"x", OversizedError),
        (lambda data: npy(np.arange(4, dtype="<u4")), LayoutError),
        (lambda data: npy(np.arange(5, dtype="<u8")), LayoutError),
        (lambda data: npy(np.arange(5, dtype=">u4")), LayoutError),
        (lambda data: npy(np.arange(5, dtype="<f4")), LayoutError),
        (lambda data: npy(np.zeros((5, 1), "<u4")), LayoutError),
        (lambda data: npy(np.zeros((), "<u4")), LayoutError),
        (lambda data: npy(np.array(["a", "b"])), LayoutError),
        (lambda data: npy(np.zeros(5, [("index", "<u4")])), LayoutError),
        (lambda data: npy(np.array([{}, 1, 2, 3, 4], object)), LayoutError),
        (lambda data: data.replace(b"(5,)", b"(9,)"), LayoutError),
        (lambda data: data.replace(b"(5,), }   ", b"(-5,), }  "), LayoutError),
        (lambda data: data.replace(b"(5,), }           ", b"(99999999999,), } "), LayoutError),
    ],
    ids=range(15),
)  # fmt: skip
def test_a_file_that_is_not_the_array_is_one_clear_error(
    sealed: Path, change: Callable[[bytes], bytes], kind: type[FormatError]
) -> None:
    """Too short, too long, another shape or dtype: the error of that kind names file, both facts and the remedy."""
    path = sealed / PLACE_NAME
    before = path.read_bytes()
    path.write_bytes(change(before))
    assert path.read_bytes() != before
    with pytest.raises(kind, match="reindex") as caught:
        open_array(sealed, PLACE_NAME, HEADER)
    assert type(caught.value) is kind
    assert caught.value.path == path
    assert caught.value.expected != caught.value.found


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"", lambda data: data[:5], lambda data: data[:9], lambda data: data[:10], lambda data: data[:60],
        lambda data: b"\x93NUMPX" + data[6:], lambda data: data[:6] + b"\x09\x00" + data[8:],
        lambda data: data[:8] + b"\xff\xff" + data[10:], lambda data: data[:8] + b"\x00\x00" + data[10:],
        lambda data: data.replace(b"(5,)", b"(5("), lambda data: data.replace(b"(5,)", b"(5.)"),
        lambda data: data.replace(b"(5,), }   ", b"(5L,), }  "),
        lambda data: data.replace(b"'<u4'", b"'|O8'"), lambda data: data.replace(b"'<u4'", b"'<q9'"),
        lambda data: data.replace(b"'<u4'", b"'<\\4'"), lambda data: data.replace(b"'descr'", b"'desc\"'"),
        lambda data: data[:10] + b"-" * 110 + b"1" + data[121:], lambda data: data[:10] + b"(" * 110 + data[120:],
        lambda data: data[:10] + b"\x00" * 110 + data[120:], lambda data: pickle.dumps([1, 2]),
        lambda data: b"PK\x03\x04" + data, lambda data: b"PK\x05\x06" + bytes(18),
    ],
    ids=range(22),
)  # fmt: skip
def test_a_head_that_is_none_is_one_clear_error(sealed: Path, change: Callable[[bytes], bytes]) -> None:
    """Whatever NumPy's own reader would make of it: a pickle, a zip, no Python, no length."""
    path = sealed / PLACE_NAME
    before = path.read_bytes()
    path.write_bytes(change(before))
    assert path.read_bytes() != before
    with pytest.raises(FormatError, match="reindex") as caught:
        open_array(sealed, PLACE_NAME, HEADER)
    assert type(caught.value) in (LayoutError, TruncatedError)
    assert caught.value.path == path


@pytest.mark.slow
@given(st.integers(0, 127 * 8 - 1), st.sampled_from(["place", "samples"]), st.integers(0, 127), st.integers(0, 255))
def test_any_damage_to_the_head_is_the_array_or_a_format_error(
    sealed_once: Path, bit: int, name: str, at: int, byte: int
) -> None:
    """NumPy's reader of heads is not trusted to raise what it should."""
    path = sealed_once / f"index/{name}.npy"
    good = path.read_bytes()
    data = bytearray(good)
    data[bit // 8] ^= 1 << bit % 8
    if byte % 2:
        data[at] = byte
    try:
        path.write_bytes(data)
        array = open_array(sealed_once, f"index/{name}.npy", HEADER)
    except FormatError:
        return
    finally:
        path.write_bytes(good)
    assert len(array) == 5


@pytest.fixture(scope="module")
def sealed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, for all examples of a test that puts back what it changes."""
    folder = tmp_path_factory.mktemp("index") / "set"
    build(folder, [0, 1, 2])
    return folder


@pytest.mark.parametrize("name", index_names(HEADER))
def test_a_missing_file_is_named(sealed: Path, name: str) -> None:
    """With what to do about it."""
    (sealed / name).unlink()
    with pytest.raises(MissingFileError, match="reindex") as caught:
        open_array(sealed, name, HEADER)
    assert caught.value.path == sealed / name
