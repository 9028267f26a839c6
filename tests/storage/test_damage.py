"""What storage does to a data set: each kind of damage is one clear error of its own, told by reads and by `verify`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import brand
from brand.errors import (
    ChecksumError,
    ForeignFileError,
    FormatError,
    LayoutError,
    MissingFileError,
    OversizedError,
    TruncatedError,
    VersionError,
)
from brand.storage.dataset.dataset import StoredDataSet
from tests.storage.support import SAMPLES, SCHEMA, chunk, read_each, told_by_verify
from tests.tools.damage import extend, flip_bit, overwrite, truncate
from tests.tools.forge import set_preamble, sign_index, table

Damage = Callable[[Path], object]

CHUNK = "chunks/00000001.brand"
INDEX_FILES = ("index/samples.npy", "index/place.npy", "index/chunks.npy")


def in_chunk(folder: Path, number: int = 1) -> list[int]:
    """Indices of a chunk's samples."""
    found: list[int] = table(chunk(folder, number))["index"].tolist()
    return found


def size(folder: Path) -> int:
    """Size of the chunk that is damaged."""
    return chunk(folder, 1).stat().st_size


def other_data_set(folder: Path) -> None:
    """Put a chunk of another conversion of the same samples in the place of chunk 1."""
    brand.pack(SAMPLES, folder / "other", SCHEMA, chunk_size=4, compression="none", seed=9, jobs=1)
    shutil.copyfile(chunk(folder / "other", 1), chunk(folder, 1))
    shutil.rmtree(folder / "other")


DAMAGE: dict[str, tuple[Damage, type[FormatError] | None, type[FormatError]]] = {
    "its last byte is missing": (lambda f: truncate(chunk(f, 1), size(f) - 1), TruncatedError, TruncatedError),
    "its samples are missing": (lambda f: truncate(chunk(f, 1), 250), TruncatedError, TruncatedError),
    "its preamble is cut": (lambda f: truncate(chunk(f, 1), 30), TruncatedError, TruncatedError),
    "it is empty": (lambda f: truncate(chunk(f, 1), 0), TruncatedError, TruncatedError),
    "it is missing": (lambda f: chunk(f, 1).unlink(), MissingFileError, MissingFileError),
    "a byte is appended": (lambda f: extend(chunk(f, 1), b"x"), None, OversizedError),
    "zeros are appended": (lambda f: extend(chunk(f, 1), bytes(5000)), None, OversizedError),
    "its table is damaged": (lambda f: flip_bit(chunk(f, 1), 8 * 230), None, ChecksumError),
    "its header is damaged": (lambda f: flip_bit(chunk(f, 1), 8 * 80), None, ChecksumError),
    "its checksum is damaged": (lambda f: flip_bit(chunk(f, 1), 8 * 60), None, ChecksumError),
    "its id is damaged": (lambda f: flip_bit(chunk(f, 1), 8 * 45), None, ChecksumError),
    "its magic is damaged": (lambda f: flip_bit(chunk(f, 1), 3), None, ForeignFileError),
    "it is of a newer version": (lambda f: set_preamble(chunk(f, 1), major=2), None, VersionError),
    "all of it is zeros": (lambda f: chunk(f, 1).write_bytes(bytes(size(f))), ForeignFileError, ForeignFileError),
    "it is of another data set": (other_data_set, ForeignFileError, ForeignFileError),
    "it is another chunk": (lambda f: shutil.copyfile(chunk(f, 0), chunk(f, 1)), ForeignFileError, ForeignFileError),
}
"""What happened to chunk 1 -> damage, error of reads (None where samples are as they were), error of `verify`."""


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_to_a_chunk_is_told_by_reads(plain: Path, what: str) -> None:
    """Samples of the chunk are right or the one error that fits; it names file, chunk and sample; others are right."""
    damage, kind, _ = DAMAGE[what]
    inside = in_chunk(plain)
    damage(plain)
    found = read_each(plain, 10)
    errors = 0
    for index, (value, sample) in enumerate(zip(found, SAMPLES, strict=True)):
        if isinstance(value, FormatError):
            assert type(value) is kind
            assert (value.path, value.chunk, value.sample) == (plain / CHUNK, 1, index)
            assert index in inside
            assert CHUNK in str(value)
            errors += 1
        else:
            assert value == sample
    assert (errors > 0) is (kind is not None)


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_to_a_chunk_is_told_by_verify(plain: Path, what: str) -> None:
    """As exactly one error, which names the chunk, and says what was expected and found."""
    damage, _, kind = DAMAGE[what]
    damage(plain)
    (error,) = told_by_verify(plain)
    assert type(error) is kind
    assert (error.path, error.chunk) == (plain / CHUNK, 1)
    if kind is not MissingFileError:
        assert error.expected is not None
        assert error.found is not None


def test_a_missing_sample_is_an_error_of_that_sample_only(plain: Path) -> None:
    """Cut within the last sample of a chunk, the others are still read."""
    truncate(chunk(plain, 1), size(plain) - 1)
    errors = [i for i, value in enumerate(read_each(plain, 10)) if isinstance(value, FormatError)]
    assert errors == [in_chunk_last(plain)]


def in_chunk_last(folder: Path) -> int:
    """Index of the last sample of chunk 1, as the index knows it."""
    return int(StoredDataSet(folder).rows(4, 8)["index"][-1])


@pytest.mark.parametrize("slot", range(4))
def test_a_flipped_bit_in_a_sample_is_told(plain: Path, slot: int) -> None:
    """A `ChecksumError` that names sample, both sums, and what to do; reads and `verify` agree."""
    row = table(chunk(plain, 1))[slot]
    flip_bit(chunk(plain, 1), 8 * (int(row["offset"]) + int(row["size"]) // 2) + 5)
    found = read_each(plain, 10)
    errors = [value for value in found if isinstance(value, FormatError)]
    told = told_by_verify(plain)
    for error in (*errors, *told):
        assert type(error) is ChecksumError
        assert (error.path, error.chunk, error.sample) == (plain / CHUNK, 1, int(row["index"]))
        assert error.expected == f"{int(row['checksum']):016x}"
        assert error.found != error.expected
    assert (len(errors), len(told)) == (1, 1)


@pytest.mark.parametrize("name", INDEX_FILES)
def test_a_missing_index_file_is_told(plain: Path, name: str) -> None:
    """By every read and by `verify`, with how to make it again; nothing else is wrong, and `verify` says so once."""
    (plain / name).unlink()
    found = read_each(plain, 10)
    for value in found:
        assert type(value) is MissingFileError
        assert value.path == plain / name
        assert "reindex" in str(value)
    told = told_by_verify(plain)
    assert {(type(error), error.path) for error in told} == {(MissingFileError, plain / name)}


def test_a_missing_column_is_told(plain: Path) -> None:
    """Samples are read without it; `column` and `verify` tell, and `verify` goes on to the chunks."""
    (plain / "columns/label.npy").unlink()
    flip_bit(chunk(plain, 2), 8 * (chunk(plain, 2).stat().st_size - 1))
    assert sum(isinstance(value, FormatError) for value in read_each(plain, 10)) == 1
    with pytest.raises(MissingFileError, match="reindex"):
        StoredDataSet(plain).column("label")
    assert {type(error) for error in told_by_verify(plain)} == {MissingFileError, ChecksumError}


@pytest.mark.parametrize("name", [*INDEX_FILES, "columns/label.npy"])
@pytest.mark.parametrize("cut", [0, 5, 100, -17, -1])
def test_an_index_file_cut_short_is_told(plain: Path, name: str, cut: int) -> None:
    """Nothing is read through a mapping that is too short."""
    path = plain / name
    truncate(path, cut if cut >= 0 else path.stat().st_size + cut)
    for value in read_each(plain, 10):
        if "columns" not in name:
            assert isinstance(value, TruncatedError if cut < 0 else (TruncatedError, LayoutError))
            assert value.path == path
    told = told_by_verify(plain)
    assert {error.path for error in told} == {path}
    assert ChecksumError in [type(error) for error in told]


@pytest.mark.parametrize("name", [*INDEX_FILES, "columns/label.npy"])
def test_an_index_file_that_is_too_long_is_told(plain: Path, name: str) -> None:
    """By whatever needs it, and by `verify`."""
    extend(plain / name, b"more")
    for value, sample in zip(read_each(plain, 10), SAMPLES, strict=True):
        if "columns" in name:
            assert value == sample
        else:
            assert type(value) is OversizedError
            assert value.path == plain / name
    if "columns" in name:
        with pytest.raises(OversizedError):
            StoredDataSet(plain).column("label")
    told = told_by_verify(plain)
    assert {error.path for error in told} == {plain / name}
    assert ChecksumError in [type(error) for error in told]


def test_the_two_halves_of_the_index_must_agree(plain: Path) -> None:
    """A place that holds another sample is an error of the sample asked for, never the other sample."""
    place = (plain / "index/place.npy").read_bytes()
    overwrite(plain / "index/place.npy", 128, place[132:136])
    first, *others = read_each(plain, 10)
    assert type(first) is LayoutError
    assert (first.path, first.sample, first.expected, first.found) == (plain / "index/place.npy", 0, 0, 1)
    assert others == SAMPLES[1:]


@pytest.mark.parametrize("index", [2**64 - 1, 11, 0])
def test_a_subset_whose_places_are_wrong_is_refused(plain: Path, index: int) -> None:
    """A row of the index names no sample, or another sample."""
    samples, place = plain / "index/samples.npy", int(StoredDataSet(plain).places(np.array([5]))[0])
    overwrite(samples, samples.stat().st_size - 320 + 32 * place + 24, index.to_bytes(8, "little"))
    with pytest.raises(LayoutError) as caught:
        StoredDataSet(plain).places_of(np.arange(1, 9))
    assert caught.value.sample == 5


@pytest.mark.parametrize("place", [10, 2**31, 2**32 - 1])
def test_a_place_out_of_range_is_told(plain: Path, place: int) -> None:
    """With the sample that was asked for."""
    overwrite(plain / "index/place.npy", 128 + 4 * 3, place.to_bytes(4, "little"))
    error = read_each(plain, 10)[3]
    assert type(error) is LayoutError
    assert (error.path, error.sample) == (plain / "index/place.npy", 3)


@pytest.mark.parametrize(
    ("at", "value", "kind"),
    [
        (0, (2**63).to_bytes(8, "little"), OversizedError),
        (0, (2**64 - 1).to_bytes(8, "little"), FormatError),
        (0, (0).to_bytes(8, "little"), FormatError),
        (8, (2**32 - 1).to_bytes(4, "little") * 2, OversizedError),
        (8, (1).to_bytes(4, "little"), FormatError),
        (8, (0).to_bytes(4, "little"), FormatError),
        (12, (0).to_bytes(4, "little"), FormatError),
        (12, (2**32 - 1).to_bytes(4, "little"), FormatError),
        (16, bytes(8), ChecksumError),
        (24, (2**64 - 1).to_bytes(8, "little"), LayoutError),
    ],
)
def test_a_wrong_row_of_the_index_is_told(plain: Path, at: int, value: bytes, kind: type[FormatError]) -> None:
    """Offset, size, raw size, checksum, index: one error for the sample, which it names, and the others are read."""
    samples = plain / "index/samples.npy"
    start = samples.stat().st_size - 320
    index = int(StoredDataSet(plain).rows(5, 6)["index"][0])
    overwrite(samples, start + 5 * 32 + at, value)
    found = read_each(plain, 10)
    error = found.pop(index)
    assert isinstance(error, FormatError)
    assert issubclass(type(error), kind)
    assert error.sample == index
    assert found == SAMPLES[:index] + SAMPLES[index + 1 :]
    assert (ChecksumError, samples) in [(type(error), error.path) for error in told_by_verify(plain)]


def test_a_newer_minor_version_is_read(plain: Path) -> None:
    """A chunk of version 1.7 that the index knows is as good as any."""
    set_preamble(chunk(plain, 1), minor=7)
    sign_index(plain)
    assert read_each(plain, 10) == SAMPLES
    assert told_by_verify(plain) == []


def test_verify_counts_all_that_is_damaged(plain: Path) -> None:
    """Every damaged sample, every damaged file: each once."""
    for number in range(3):
        for row in table(chunk(plain, number)):
            flip_bit(chunk(plain, number), 8 * int(row["offset"]))
    flip_bit(plain / "columns/label.npy", 8 * 130)
    flip_bit(plain / "index/chunks.npy", 8 * 10)
    told = told_by_verify(plain)
    changed = [error for error in told if type(error) is ChecksumError]
    assert sorted(error.sample for error in changed if error.sample is not None) == list(range(10))
    assert {error.path for error in changed if error.sample is None} == {
        plain / "columns/label.npy", plain / "index/chunks.npy",
    }  # fmt: skip
    assert len(changed) == 12


def test_a_sample_that_the_index_says_is_empty_is_told(plain: Path) -> None:
    """Also where it is the first that is ever read."""
    samples = plain / "index/samples.npy"
    overwrite(samples, samples.stat().st_size - 320 + 5 * 32 + 8, bytes(4))
    data_set = StoredDataSet(plain)
    index = int(data_set.rows(5, 6)["index"][0])
    with pytest.raises(FormatError) as caught:
        data_set.sample(index)
    assert caught.value.sample == index


def test_verify_counts_all_chunks_that_are_missing(plain: Path) -> None:
    """One error a chunk."""
    shutil.rmtree(plain / "chunks")
    told = told_by_verify(plain)
    assert [(type(error), error.chunk) for error in told] == [(MissingFileError, number) for number in range(3)]
