"""What a hostile writer does, with every checksum right: only the layout can tell, and it must."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from brand.errors import DecodeError, FormatError, LayoutError, OversizedError, VersionError
from brand.formats.header import canonical_json
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.maintenance.reindex import reindex
from tests.storage.support import NOTES, SAMPLES, chunk, read_each, told_by_verify
from tests.tools.forge import (
    Parts,
    edit_manifest,
    put_together,
    set_preamble,
    set_row,
    sign_files,
    sign_index,
    table,
    take_apart,
)

HUGE = 2**32 - 1
Change = Callable[[Parts], object]


def forge(folder: Path, number: int, change: Change) -> None:
    """Change the parts of a chunk; chunk, index and manifest are signed again."""
    path = chunk(folder, number)
    parts = take_apart(path)
    change(parts)
    put_together(path, parts)
    sign_index(folder)


def with_header(**values: Any) -> Change:
    """Change what a chunk's header says."""

    def change(parts: Parts) -> None:
        value = json.loads(zstandard.ZstdDecompressor().decompress(parts.header))
        parts.header = zstandard.ZstdCompressor().compress(canonical_json(value | values))

    return change


def with_sample(data: bytes, raw_size: int | None = None) -> Change:
    """Store other bytes for the second sample of a chunk."""

    def change(parts: Parts) -> None:
        parts.samples[1].data = data
        parts.samples[1].raw_size = len(data) if raw_size is None else raw_size

    return change


FRONTS: dict[str, tuple[dict[str, int] | tuple[int, dict[str, int]], type[FormatError]]] = {
    "more samples than a chunk may have": ({"samples": (1 << 24) + 1}, OversizedError),
    "more samples than the file holds": ({"samples": 1 << 24}, LayoutError),
    "one sample more": ({"samples": 5}, LayoutError),
    "one sample less": ({"samples": 3}, LayoutError),
    "no samples": ({"samples": 0}, LayoutError),
    "a header of 4 GiB": ({"header_size": HUGE}, OversizedError),
    "a header larger than the file": ({"header_size": 16 << 20}, LayoutError),
    "a header that is shorter": ({"header_size": 5}, LayoutError),
    "a dictionary of 4 GiB": ({"dictionary_size": HUGE}, OversizedError),
    "a dictionary larger than the file": ({"dictionary_size": 1 << 20}, LayoutError),
    "a dictionary that is the table": ({"dictionary_size": 32}, LayoutError),
    "overlapping samples": ((1, {"offset": 300}), LayoutError),
    "a gap": ((1, {"size": 1, "raw_size": 1}), LayoutError),
    "a sample of 4 GiB": ((3, {"size": HUGE, "raw_size": HUGE}), LayoutError),
    "a sample at the end of the address space": ((0, {"offset": 2**64 - 8}), LayoutError),
    "a sample larger than its record": ((2, {"raw_size": 1}), LayoutError),
    "an index that is none": ((2, {"index": 10}), LayoutError),
}


@pytest.mark.parametrize("what", FRONTS)
def test_a_signed_front_that_contradicts_itself_is_refused(plain: Path, what: str) -> None:
    """By `verify` with one error of the right class for that chunk, and by `reindex`, which changes nothing."""
    change, kind = FRONTS[what]
    if isinstance(change, dict):
        set_preamble(chunk(plain, 1), **change)
    else:
        set_row(chunk(plain, 1), change[0], **change[1])
    (error,) = told_by_verify(plain)
    assert type(error) is kind
    assert error.path == chunk(plain, 1)
    before = (plain / "brand.json").read_bytes()
    with pytest.raises(kind):
        reindex(plain)
    assert (plain / "brand.json").read_bytes() == before
    assert not (plain / ".brand-reindex").exists()


BOMB = zstandard.ZstdCompressor().compress(bytes((64 << 20) + 1))

PARTS: dict[str, tuple[Change, type[FormatError]]] = {
    "a header that is a bomb": (lambda p: setattr(p, "header", BOMB), OversizedError),
    "a header that is no frame": (lambda p: setattr(p, "header", b"{}"), LayoutError),
    "no header": (lambda p: setattr(p, "header", b""), LayoutError),
    "a header without samples": (with_header(samples=0), LayoutError),
    "a header of more samples": (with_header(samples=11), FormatError),
    "a header of other chunks": (with_header(samples=12, chunk_size=6), LayoutError),
    "a header of another schema": (with_header(schema=[["label", "float"]]), FormatError),
    "a header with an unknown codec": (with_header(schema=[["label", "pickle"]]), VersionError),
    "a header of other classes": (with_header(classes=["a", "b"]), FormatError),
    "a header with an endless seed": (with_header(seed=float("inf")), LayoutError),
    "another number": (lambda p: setattr(p, "number", 2), FormatError),
    "another id": (lambda p: setattr(p, "data_set_id", bytes(16)), FormatError),
    "the same index twice": (lambda p: setattr(p.samples[1], "index", p.samples[0].index), LayoutError),
    "samples in another order": (lambda p: p.samples.reverse(), LayoutError),
}


@pytest.mark.parametrize("what", PARTS)
def test_a_signed_chunk_that_does_not_belong_is_refused(plain: Path, what: str) -> None:
    """Index and manifest are made to agree with it, and still `verify` tells; reads give the right value or an error.

    The header must be the manifest's, and `place.npy` the inverse of what the tables say.
    """
    change, kind = PARTS[what]
    forge(plain, 1, change)
    told = told_by_verify(plain)
    assert told
    assert all(isinstance(error, kind) for error in told)
    for value, sample in zip(read_each(plain, 10), SAMPLES, strict=True):
        assert isinstance(value, FormatError) or value == sample


def test_an_index_that_no_chunk_and_one_that_two_chunks_hold_are_told(plain: Path) -> None:
    """Chunk 1 claims a sample of chunk 0 and leaves out its own; everything is signed."""
    stolen = int(table(chunk(plain, 0))["index"][0])
    forge(plain, 1, lambda parts: setattr(parts.samples[2], "index", stolen))
    assert any(isinstance(error, LayoutError) for error in told_by_verify(plain))
    with pytest.raises(LayoutError) as caught:
        reindex(plain)
    assert (caught.value.path, caught.value.chunk, caught.value.sample) == (chunk(plain, 1), 1, stolen)


def test_a_place_index_that_is_no_inverse_is_told(plain: Path) -> None:
    """Two places swapped in a signed `place.npy`: reads of both are errors, and so `verify` must tell."""
    place = np.load(plain / "index/place.npy")
    place[[2, 7]] = place[[7, 2]]
    np.save(plain / "index/place.npy", place)
    sign_files(plain)
    found = read_each(plain, 10)
    assert [i for i, value in enumerate(found) if isinstance(value, LayoutError)] == [2, 7]
    assert any(isinstance(error, LayoutError) for error in told_by_verify(plain))


RECORDS = {
    "nothing": b"",
    "half a head": bytes(11),
    "a head only": bytes(24),
    "a text longer than the record": struct.pack("<qdII", 1, 1.0, 100, 0) + b"x" * 50,
    "fields that leave a rest": struct.pack("<qdII", 1, 1.0, 1, 1) + b"abc",
    "a text of 4 GiB": struct.pack("<qdII", 1, 1.0, HUGE, HUGE),
    "a text that is no UTF-8": struct.pack("<qdII", 1, 1.0, 2, 1) + b"\xff\xfek",
}


@pytest.mark.parametrize("what", RECORDS)
def test_a_signed_record_that_does_not_decode_is_told(plain: Path, what: str) -> None:
    """A `DecodeError` of that sample, by its read and by `verify`; the others are read."""
    index = int(table(chunk(plain, 1))["index"][1])
    forge(plain, 1, with_sample(RECORDS[what]))
    if (
        what == "a head only"
    ):  # it is a record: of an empty text, an empty key, and numbers that the columns do not hold
        assert {type(error) for error in told_by_verify(plain)} == {LayoutError}
        return
    found = read_each(plain, 10)
    error = found.pop(index)
    told = told_by_verify(plain)
    assert found == SAMPLES[:index] + SAMPLES[index + 1 :]
    assert len(told) == 1
    for each in (error, *told):
        assert type(each) is DecodeError
        assert (each.path, each.chunk, each.sample) == (chunk(plain, 1), 1, index)


@pytest.mark.parametrize("what", ["nothing", "half a head"])
def test_reindex_refuses_a_record_without_its_numbers(plain: Path, what: str) -> None:
    """There are no columns to be made from it."""
    forge(plain, 1, with_sample(RECORDS[what]))
    with pytest.raises(DecodeError):
        reindex(plain)


def frame(data: bytes, dictionary: bytes = b"", *, sized: bool = True) -> bytes:
    """A zstd frame."""
    made = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
    return zstandard.ZstdCompressor(dict_data=made, write_content_size=sized).compress(data)


FRAMES: dict[str, tuple[bytes, int]] = {
    "no frame": (b"not a frame", 100),
    "nothing": (b"", 100),
    "a frame of another size": (frame(bytes(500)), 501),
    "a frame without a size": (frame(bytes(500), sized=False), 500),
    "two frames": (frame(bytes(250)) * 2, 500),
    "a frame and a rest": (frame(bytes(500)) + b"x", 500),
    "half a frame": (frame(bytes(range(256)) * 9)[:-9], 256 * 9),
    "a frame of another dictionary": (frame(b"The red note" * 9, b"The red note number" * 9), 108),
}


@pytest.mark.parametrize("what", FRAMES)
def test_a_signed_frame_that_does_not_unpack_is_told(dense: Path, what: str) -> None:
    """A `DecodeError` of that sample, by its read and by `verify`; the others are read."""
    index = int(table(chunk(dense, 1))["index"][1])
    forge(dense, 1, with_sample(*FRAMES[what]))
    found = read_each(dense, len(NOTES))
    error = found.pop(index)
    told = told_by_verify(dense)
    assert found == NOTES[:index] + NOTES[index + 1 :]
    assert len(told) == 1
    for each in (error, *told):
        assert type(each) is DecodeError
        assert (each.path, each.chunk, each.sample) == (chunk(dense, 1), 1, index)


DICTIONARIES: dict[str, Callable[[bytes], bytes]] = {
    "garbage after the magic": lambda d: b"\x37\xa4\x30\xec" + b"garbage" * 9,
    "a truncated one": lambda d: d[:40],
    "another": lambda d: bytes(reversed(d)),
    "none": lambda d: b"",
}


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("what", DICTIONARIES)
def test_a_signed_chunk_with_another_dictionary_is_told(dense: Path, number: int, what: str) -> None:
    """Each read gives the right value or a `FormatError`; where a sample cannot be read, `verify` tells."""
    forge(dense, number, lambda parts: setattr(parts, "dictionary", DICTIONARIES[what](parts.dictionary)))
    assert take_apart(chunk(dense, 0)).dictionary != take_apart(chunk(dense, 1)).dictionary
    for value, sample in zip(read_each(dense, len(NOTES)), NOTES, strict=True):
        assert isinstance(value, FormatError) or value == sample
    told = told_by_verify(dense)
    assert told
    assert {error.chunk for error in told} <= {0, 1}


@pytest.mark.parametrize(("name", "value"), [("label", 77), ("ratio", 0.25), ("ratio", float("nan"))])
def test_a_signed_column_that_differs_is_told(plain: Path, name: str, value: float) -> None:
    """`verify` compares each number with its sample."""
    column = np.load(plain / f"columns/{name}.npy")
    column[4] = value
    np.save(plain / f"columns/{name}.npy", column)
    sign_files(plain)
    (error,) = told_by_verify(plain)
    assert type(error) is LayoutError
    assert error.sample == 4
    assert name in error.what


@pytest.mark.parametrize("key", ["stored_bytes", "raw_bytes", "largest_sample", "chunks", "dictionary_size"])
def test_a_signed_manifest_with_a_wrong_sum_is_told(plain: Path, key: str) -> None:
    """The manifest follows from the chunks, and `verify` follows it."""
    edit_manifest(plain, lambda value: value.update({key: value[key] + 1}))
    assert any(isinstance(error, FormatError) for error in told_by_verify(plain))


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"samples": 11}, FormatError), ({"samples": 9}, FormatError), ({"chunk_size": 5}, FormatError),
        ({"samples": 2**48, "chunk_size": 1 << 24}, FormatError), ({"samples": 2**60}, OversizedError),
        ({"schema": [["label", "int"]]}, FormatError), ({"classes": ["x"]}, FormatError),
        ({"samples": "10"}, LayoutError),
    ],
    ids=str,
)  # fmt: skip
def test_a_signed_manifest_with_another_header_is_told(
    plain: Path, change: dict[str, Any], kind: type[FormatError]
) -> None:
    """Reads give right values or errors, and `verify` tells."""
    edit_manifest(plain, lambda value: value["header"].update(change))
    for value, sample in zip(read_each(plain, 9), SAMPLES, strict=False):
        assert isinstance(value, FormatError) or value == sample
    told = told_by_verify(plain)
    assert told
    assert all(isinstance(error, kind) for error in told)


def test_a_row_that_wraps_around_is_told(plain: Path) -> None:
    """An offset so large that offset and size add up to little."""
    samples = np.load(plain / "index/samples.npy")
    samples["offset"][0] = 2**64 - 4
    samples["size"][0] = 8
    np.save(plain / "index/samples.npy", samples)
    sign_files(plain)
    with pytest.raises(OversizedError):
        StoredDataSet(plain).sample(int(samples["index"][0]))


def test_unsigned_edits_of_the_manifest_are_told(plain: Path) -> None:
    """A data set whose manifest was edited by hand does not open, and says how to mend it."""
    edit_manifest(plain, lambda value: value["header"].update(seed=5), sign=False)
    (error,) = told_by_verify(plain)
    assert "reindex" in str(error)
    assert reindex(plain).header.seed == 0
    assert told_by_verify(plain) == []


NO_NUMBERS: list[Any] = [
    float("inf"), float("-inf"), float("nan"), -1, 1.5, True, None, "12", [], {}, 10**30, 10**400, 1e300, [[[]]],
]  # fmt: skip


@pytest.mark.parametrize("value", NO_NUMBERS, ids=range(14))
def test_numbers_of_a_signed_manifest_that_are_none_are_refused(plain: Path, value: Any) -> None:
    """Infinite, negative, fractional, true, far too large: a `FormatError` wherever one stands, and never another."""
    path = plain / "brand.json"
    before = path.read_bytes()
    numbers = ["chunks", "dictionary_size", "stored_bytes", "raw_bytes", "largest_sample"]
    changes: list[Callable[[dict[str, Any]], Any]] = [
        *(lambda manifest, name=name: manifest.update({name: value}) for name in numbers),
        lambda manifest: manifest["files"].update({"index/place.npy": [value, "0" * 32]}),
        lambda manifest: manifest["header"].update({"samples": value}),
        lambda manifest: manifest["header"].update({"chunk_size": value}),
    ]
    for change in changes:
        path.write_bytes(before)
        edit_manifest(plain, change)
        try:
            data = StoredDataSet(plain)
        except FormatError as error:
            assert error.path == path  # noqa: PT017 - what is not refused is looked at below
            continue
        assert value >= 10**30  # a size of a file, which `verify` compares
        assert told_by_verify(plain)
        assert data.sample(3) == SAMPLES[3]


@pytest.mark.parametrize("text", ["1e400", "-1e400", "Infinity", "NaN", "9" * 5000, "[" * 900], ids=range(6))
def test_texts_that_are_no_number_are_refused(plain: Path, text: str) -> None:
    """As they stand in the file: what Python's reader takes for a number is not always one."""
    path = plain / "brand.json"
    path.write_bytes(path.read_bytes().replace(b'"stored_bytes": ', b'"stored_bytes": ' + text.encode() + b', "x": '))
    with pytest.raises(FormatError):
        StoredDataSet(plain)
