"""A converted folder back as it was, and never a file outside of the target."""

from __future__ import annotations

import io
import json
import random
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from brand.chunker import convert_audio
from brand.errors import (
    BrandError,
    ChecksumError,
    FormatError,
    LayoutError,
    MissingFileError,
    OversizedError,
    TargetExistsError,
    UsageError,
)
from brand.formats.header import canonical_json
from brand.storage.maintenance.unpack import unpack
from tests.golden.inputs import clip_files, lay, wav
from tests.rounds import examples
from tests.storage.support import chunk, told_by_verify
from tests.support import files_below, options
from tests.tools.damage import flip_bit
from tests.tools.forge import edit_manifest, put_together, sign_files, sign_index, take_apart

OUTSIDE = ["../x", "/x", "a/../../x", "..", "a/..", "../out/x", "a\0b", "\0", "", ".", "/", "a/../b"]


@pytest.fixture
def clips(tmp_path: Path) -> Path:
    """Four clips with two sidecars and an empty folder, converted in chunks of three."""
    folder = tmp_path / "source"
    (lay(folder, clip_files()) / "ada" / "nothing").mkdir()
    convert_audio(folder, tmp_path / "clips", options(3, compression="none"))
    return tmp_path / "clips"


def record(data: bytes, label: int, text: bytes, key: bytes) -> bytes:
    """A record of a clip, its fields in the order audio, label, duration, text, key."""
    return struct.pack("<qdIII", label, 0.0, len(data), len(text), len(key)) + data + text + key


def with_keys(folder: Path, *keys: str) -> None:
    """Give the first samples of the first chunk other keys; all is signed."""
    parts = take_apart(chunk(folder, 0))
    for sample, key in zip(parts.samples, keys, strict=False):
        sample.data = record(wav(2), 0, b"", key.encode())
        sample.raw_size = len(sample.data)
    put_together(chunk(folder, 0), parts)
    sign_index(folder)


def zipped(*entries: tuple[str, bytes]) -> bytes:
    """A zip file with entries of any name."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in entries:
            archive.writestr(zipfile.ZipInfo(name), data)
    return file.getvalue()


def with_extras(folder: Path, data: bytes) -> None:
    """Another `extras.zip`; the manifest is signed."""
    (folder / "extras.zip").write_bytes(data)
    sign_files(folder)


def inside(tmp_path: Path) -> set[str]:
    """Everything below the test's folder but for the data set, its source and what was unpacked."""
    return {path.name for path in tmp_path.iterdir()} - {"clips", "source", "out"}


def test_the_folder_is_as_it_was(clips: Path, tmp_path: Path) -> None:
    """Clips, sidecars and empty folders; the number of files is told, and progress after each chunk."""
    steps: list[tuple[int, int, int]] = []
    assert unpack(clips, tmp_path / "deep" / "out", lambda *step: steps.append(step)) == 6
    assert files_below(tmp_path / "deep" / "out") == files_below(tmp_path / "source")
    assert steps == [(1, 2, 3), (2, 2, 4)]


def test_an_empty_target_is_fine(clips: Path, tmp_path: Path) -> None:
    """It may exist."""
    (tmp_path / "out").mkdir()
    assert unpack(clips, tmp_path / "out") == 6


def _file(path: Path) -> None:
    path.write_text("x")


def _full(path: Path) -> None:
    path.mkdir()
    (path / "mine").write_text("x")


@pytest.mark.parametrize("prepare", [_file, _full])
def test_a_target_that_is_taken_is_left_alone(clips: Path, tmp_path: Path, prepare: Callable[[Path], None]) -> None:
    """A file, or a folder with something in it."""
    prepare(tmp_path / "out")
    before = files_below(tmp_path)
    with pytest.raises(TargetExistsError):
        unpack(clips, tmp_path / "out")
    assert files_below(tmp_path) == before


def test_samples_that_were_no_files_cannot_be_unpacked(plain_set: Path, tmp_path: Path) -> None:
    """The message says what to do instead."""
    with pytest.raises(UsageError, match="brand cat"):
        unpack(plain_set, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("key", OUTSIDE)
def test_a_key_that_leads_elsewhere_is_refused(clips: Path, tmp_path: Path, key: str) -> None:
    """Though everything is signed; the error shows the key, and nothing is written outside of the target."""
    with_keys(clips, key)
    with pytest.raises(LayoutError) as caught:
        unpack(clips, tmp_path / "out")
    assert caught.value.path == chunk(clips, 0)
    assert caught.value.found == repr(key)
    assert inside(tmp_path) == set()


@pytest.fixture(scope="module")
def two_clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clips without label and text, whose keys are changed again and again."""
    folder = tmp_path_factory.mktemp("keys")
    convert_audio(lay(folder / "source", {"a.wav": wav(1), "b.wav": wav(2)}), folder / "clips", options(2))
    return folder / "clips"


@pytest.mark.slow
@given(key=st.lists(st.sampled_from(["..", ".", "/", "a", "\0", "\\", " ", "\n", "~", "x/"]), max_size=6).map("".join))
def test_no_key_leads_elsewhere(two_clips: Path, tmp_path_factory: pytest.TempPathFactory, key: str) -> None:
    """Any mixture of what paths are made of stays below the target, or is a `BrandError`."""
    parts = take_apart(chunk(two_clips, 0))
    for sample, name in zip(parts.samples, (key, "fine"), strict=True):
        sample.data = struct.pack("<dII", 0.0, 5, len(name)) + b"bytes" + name.encode()
        sample.raw_size = len(sample.data)
    put_together(chunk(two_clips, 0), parts)
    sign_index(two_clips)
    before = files_below(two_clips)
    folder = tmp_path_factory.mktemp("unpacked")
    refused: object = None
    try:
        unpack(two_clips, folder / "out")
    except LayoutError as error:
        refused = error.found
    assert refused == repr(key) or len(files_below(folder / "out")) == 2
    assert [path.name for path in folder.iterdir()] == ["out"]
    assert files_below(two_clips) == before


@pytest.mark.parametrize("name", [name for name in OUTSIDE if "\0" not in name and name not in ("", ".")])
def test_a_name_in_the_extras_that_leads_elsewhere_is_refused(clips: Path, tmp_path: Path, name: str) -> None:
    """The same for `extras.zip`, for files and for folders."""
    for number, entry in enumerate((name, name.rstrip("/") + "/")):
        with_extras(clips, zipped((entry, b"")))
        with pytest.raises(LayoutError) as caught:
            unpack(clips, tmp_path / f"out{number}" / "out")
        assert caught.value.path == clips / "extras.zip"
    assert all(path.name == "out" for folder in tmp_path.glob("out*") for path in folder.iterdir())


def test_a_name_with_a_nul_in_the_extras_stays_inside(clips: Path, tmp_path: Path) -> None:
    """zipfile cuts names at a NUL; whatever comes of it, it is below the target or refused."""
    data = zipped(("ada/x", b"1")).replace(b"ada/x", b"../\0x")
    with_extras(clips, data)
    with pytest.raises(LayoutError):
        unpack(clips, tmp_path / "out")
    assert inside(tmp_path) == set()


@pytest.mark.parametrize("keys", [("same", "same"), ("a", "a/b"), ("a/b", "a"), ("x" * 300,)])
def test_keys_that_cannot_be_files_together_are_an_error(clips: Path, tmp_path: Path, keys: tuple[str, ...]) -> None:
    """Two samples of one key, a file where a folder is needed, a name that is too long: a `BrandError`."""
    with_keys(clips, *keys)
    with pytest.raises(BrandError):
        unpack(clips, tmp_path / "out")


def test_a_damaged_sample_stops_it(clips: Path, tmp_path: Path) -> None:
    """The error names the sample; nothing damaged is written."""
    flip_bit(chunk(clips, 1), 8 * (chunk(clips, 1).stat().st_size - 1))
    with pytest.raises(ChecksumError) as caught:
        unpack(clips, tmp_path / "out")
    assert caught.value.sample is not None
    assert set(files_below(tmp_path / "out").values()) <= set(clip_files().values()) | {b"/"}


@pytest.mark.parametrize("file_field", ["nope", "label", "text", ""])
def test_a_file_field_that_is_none_is_an_error(clips: Path, tmp_path: Path, file_field: str) -> None:
    """A header that names a field that is not there, or holds no bytes: a `BrandError`, never a KeyError."""

    def change(value: dict[str, Any]) -> None:
        value["header"]["source"]["file_field"] = file_field

    for number in range(2):
        parts = take_apart(chunk(clips, number))
        header = json.loads(zstandard.ZstdDecompressor().decompress(parts.header))
        header["source"]["file_field"] = file_field
        parts.header = zstandard.ZstdCompressor().compress(canonical_json(header))
        put_together(chunk(clips, number), parts)
    sign_index(clips)
    edit_manifest(clips, change)
    with pytest.raises(BrandError):
        unpack(clips, tmp_path / "out")


def test_missing_extras_are_told(clips: Path, tmp_path: Path) -> None:
    """By `unpack` and by `verify`."""
    (clips / "extras.zip").unlink()
    assert [type(error) for error in told_by_verify(clips)] == [MissingFileError]
    with pytest.raises(FormatError, match=r"extras\.zip"):
        unpack(clips, tmp_path / "out")


@pytest.mark.parametrize(
    "data", [b"", b"garbage", b"PK\x03\x04", zipped(("a", b"1"))[:-5], zipped(("a", b"1"))[5:]], ids=range(5)
)
def test_extras_that_are_no_zip_are_told(clips: Path, tmp_path: Path, data: bytes) -> None:
    """Though they are signed."""
    with_extras(clips, data)
    with pytest.raises(FormatError, match=r"extras\.zip"):
        unpack(clips, tmp_path / "out")


@pytest.mark.slow
@examples(150)
@given(data=st.data())
def test_any_damage_to_the_extras_is_a_brand_error(
    damaged_extras: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A flipped bit in a zip file, signed or not, gives the right files or an error, nothing else."""
    path = damaged_extras / "extras.zip"
    good, manifest = path.read_bytes(), (damaged_extras / "brand.json").read_bytes()
    bit = data.draw(st.integers(0, 8 * len(good) - 1))
    out = tmp_path_factory.mktemp("unpacked") / "out"
    try:
        flip_bit(path, bit)
        if data.draw(st.booleans()):
            sign_files(damaged_extras)
        unpack(damaged_extras, out)
    except BrandError:
        pass
    finally:
        path.write_bytes(good)
        (damaged_extras / "brand.json").write_bytes(manifest)
    assert [p.name for p in out.parent.iterdir()] in ([], ["out"])


@pytest.fixture(scope="module")
def damaged_extras(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set whose extras are damaged and mended."""
    folder = tmp_path_factory.mktemp("extras")
    files = {"a/1.wav": wav(3), "a/1.txt": b"a long text " * 20, "b/2.wav": wav(4), "b/2.txt": b"another text " * 30}
    convert_audio(lay(folder / "source", files), folder / "clips", options(4))
    return folder / "clips"


def test_extras_that_are_not_those_of_the_manifest_are_not_unpacked(clips: Path, tmp_path: Path) -> None:
    """They are compared with its checksum before anything of them is laid down."""
    (clips / "extras.zip").write_bytes(zipped(("ada/evil.txt", b"not ours")))
    with pytest.raises(FormatError, match=r"extras\.zip"):
        unpack(clips, tmp_path / "out")
    assert not (tmp_path / "out" / "ada" / "evil.txt").exists()


def packed(data: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A zip file of one file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr(zipfile.ZipInfo("ada/notes.txt"), data, method)
    return file.getvalue()


@pytest.mark.slow
def test_extras_that_unpack_to_a_thousand_times_their_size_are_refused(clips: Path, tmp_path: Path) -> None:
    """Though they are signed: before anything of them is laid down, with both sizes."""
    with_extras(clips, packed(bytes(1 << 26)))
    with pytest.raises(OversizedError, match=r"extras\.zip.*unpack") as caught:
        unpack(clips, tmp_path / "out")
    assert caught.value.found == 1 << 26
    assert not (tmp_path / "out" / "ada" / "notes.txt").exists()


@pytest.mark.slow
def test_extras_that_say_less_than_they_hold_are_refused(clips: Path, tmp_path: Path) -> None:
    """A size in the directory of the archive that is not that of the file."""
    data = packed(bytes(1 << 26))
    with_extras(clips, data.replace(struct.pack("<I", 1 << 26), struct.pack("<I", 5)))
    with pytest.raises(LayoutError, match=r"extras\.zip"):
        unpack(clips, tmp_path / "out")
    found = tmp_path / "out" / "ada" / "notes.txt"
    assert not found.exists() or found.stat().st_size <= 5


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_extras_packed_in_another_way_are_refused(clips: Path, tmp_path: Path, method: int) -> None:
    """Unpacking them may take any memory."""
    with_extras(clips, packed(b"text", method))
    with pytest.raises(LayoutError, match="packed"):
        unpack(clips, tmp_path / "out")


@pytest.mark.slow
def test_large_extras_are_unpacked_a_step_at_a_time(clips: Path, tmp_path: Path) -> None:
    """Files larger than the memory that is used."""
    with_extras(clips, packed(random.Random(0).randbytes(1 << 20) * 48, zipfile.ZIP_STORED))
    tracemalloc.start()
    try:
        unpack(clips, tmp_path / "out", lambda *_: tracemalloc.reset_peak())
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert (tmp_path / "out" / "ada" / "notes.txt").stat().st_size == 48 << 20


def test_transcripts_that_are_nothing_but_repetition_come_back(tmp_path: Path) -> None:
    """They would be refused if they were packed well, so they are stored as they are."""
    files = {"a/1.wav": wav(3), "a/1.txt": b"no " * (1 << 20)}
    convert_audio(lay(tmp_path / "source", files), tmp_path / "clips", options(4))
    unpack(tmp_path / "clips", tmp_path / "out")
    assert files_below(tmp_path / "out") == files_below(tmp_path / "source")
