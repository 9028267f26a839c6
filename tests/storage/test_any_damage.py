"""Any bit flips, any file ends anywhere: a read gives the right value or a `FormatError`, and `verify` tells."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brand.chunker import convert_audio
from brand.errors import FormatError, MissingFileError
from brand.storage.dataset.dataset import StoredDataSet
from tests.golden.inputs import clip_files, lay
from tests.rounds import Chance, examples, rounds
from tests.storage.support import NOTES, SAMPLES, read_each, told_by_verify
from tests.support import options

pytestmark = pytest.mark.slow

Sets = list[tuple[Path, list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def sets(plain_set: Path, dense_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Sets:
    """Three data sets that the tests damage and mend: raw, compressed with a dictionary, a folder with extras."""
    folder = tmp_path_factory.mktemp("damaged")
    convert_audio(lay(folder / "source", clip_files()), folder / "clips", options(3))
    clips = StoredDataSet(folder / "clips")
    return [
        (Path(shutil.copytree(plain_set, folder / "plain")), SAMPLES),
        (Path(shutil.copytree(dense_set, folder / "dense")), NOTES),
        (folder / "clips", [clips.sample(i) for i in range(len(clips))]),
    ]


@contextmanager
def changed(path: Path, change: Callable[[bytes], bytes]) -> Iterator[None]:
    """A file with other bytes, for a while. A new file each time: the old one may still be mapped."""
    before = path.read_bytes()
    try:
        path.unlink()
        path.write_bytes(change(before))
        yield
    finally:
        path.unlink()
        path.write_bytes(before)


def check(folder: Path, samples: list[dict[str, Any]], *, told: bool = True) -> None:
    """Each sample is right or a `FormatError`, alone and in one batch; columns open or are one; `verify` tells."""
    for value, sample in zip(read_each(folder, len(samples)), samples, strict=True):
        assert isinstance(value, FormatError) or value == sample
    try:
        data_set = StoredDataSet(folder)
        for name, _ in data_set.header.schema.columns:
            assert data_set.stored_column(name).shape == (len(samples),)
    except FormatError:
        pass
    if told:
        assert told_by_verify(folder)


def files_of(folder: Path) -> list[Path]:
    """All files of a data set."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def flip(data: bytes, bit: int) -> bytes:
    """Bytes with one bit changed."""
    byte = bit // 8
    return data[:byte] + bytes([data[byte] ^ 1 << bit % 8]) + data[byte + 1 :]


@examples(250)
@given(which=st.integers(0, 2), data=st.data())
def test_any_flipped_bit_is_told(sets: Sets, which: int, data: st.DataObject) -> None:
    """There is no bit without meaning in a data set."""
    folder, samples = sets[which]
    path = data.draw(st.sampled_from(files_of(folder)))
    bit = data.draw(st.integers(0, 8 * path.stat().st_size - 1))
    with changed(path, lambda before: flip(before, bit)):
        check(folder, samples)


@examples(100)
@given(which=st.integers(0, 2), data=st.data())
def test_any_missing_end_is_told(sets: Sets, which: int, data: st.DataObject) -> None:
    """Only the line end of the manifest may be missing."""
    folder, samples = sets[which]
    path = data.draw(st.sampled_from(files_of(folder)))
    size = data.draw(st.integers(0, path.stat().st_size - (2 if path.name == "brand.json" else 1)))
    with changed(path, lambda before: before[:size]):
        check(folder, samples)


@examples(100)
@given(which=st.integers(0, 2), data=st.data(), more=st.binary(min_size=1, max_size=99))
def test_any_longer_file_is_told(sets: Sets, which: int, data: st.DataObject, more: bytes) -> None:
    """Only white space may follow the manifest."""
    folder, samples = sets[which]
    path = data.draw(st.sampled_from(files_of(folder)))
    with changed(path, lambda before: before + more):
        check(folder, samples, told=path.name != "brand.json" or bool(more.strip(b" \t\r\n")))


@examples(100)
@given(which=st.integers(0, 2), data=st.data())
def test_any_block_of_zeros_is_told(sets: Sets, which: int, data: st.DataObject) -> None:
    """What file systems leave of a file after a power cut."""
    folder, samples = sets[which]
    path = data.draw(st.sampled_from(files_of(folder)))
    start = data.draw(st.integers(0, path.stat().st_size - 1))
    end = data.draw(st.integers(start + 1, path.stat().st_size))
    before = path.read_bytes()
    if before[start:end].strip(b"\0"):
        with changed(path, lambda whole: whole[:start] + bytes(end - start) + whole[end:]):
            check(folder, samples)


def test_any_missing_file_is_told(sets: Sets) -> None:
    """Each file in turn; `verify` tells of it once, and of no other."""
    for folder, samples in sets:
        for path in files_of(folder):
            before = path.read_bytes()
            path.unlink()
            check(folder, samples, told=False)
            told = told_by_verify(folder)
            path.write_bytes(before)
            assert len({(type(error), error.path) for error in told}) == 1
            assert isinstance(told[0], MissingFileError) or path.name == "brand.json"


@rounds(1)
def test_no_byte_is_without_a_check(sets: Sets, chance: Chance) -> None:
    """One bit in every 23rd byte of every file of the raw data set, and in every 97th of the others."""
    for folder, samples in sets:
        step = 23 if samples is SAMPLES else 97
        for path in files_of(folder):
            for byte in range(chance.number % step, path.stat().st_size, step):
                bit = 8 * byte + chance.rng.randrange(8)
                with changed(path, lambda before, bit=bit: flip(before, bit)):  # type: ignore[misc]
                    assert told_by_verify(folder), (path.name, byte)
                    if "chunks" not in path.parts or samples is SAMPLES:
                        check(folder, samples, told=False)
