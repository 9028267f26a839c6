"""Large values are read into memory once, and passed on as views: they are stored as the small ones are."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

import brand
from brand.chunker import Options, convert_from
from brand.chunker.importers import files, webdataset
from brand.chunker.importers.fields import FieldMapping
from brand.errors import SourceError
from brand.formats.header import Schema
from brand.formats.record import encode_records

LARGE_FILE = 300 << 10
LARGE = LARGE_FILE + 1
NOISE = np.random.default_rng(0).integers(32, 127, 2 * LARGE, np.uint8)
SIZES = (0, 5, LARGE_FILE - 1, LARGE_FILE, LARGE_FILE + 511, LARGE_FILE + 512, LARGE_FILE + 1537)
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lambda data: lzma.compress(data, preset=0),
    ".zst": zstandard.compress,
}


@pytest.fixture(autouse=True)
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of 300 kB are large ones here."""
    monkeypatch.setattr(files, "LARGE_FILE", LARGE_FILE)
    monkeypatch.setattr(webdataset, "LARGE_FILE", LARGE_FILE)


def text(size: int, shift: int = 0) -> bytes:
    """Bytes that are also text."""
    return NOISE[shift : shift + size].tobytes()


def bitmap(size: int) -> bytes:
    """A BMP file of about this size."""
    height = (size - 54) // 3000
    return struct.pack("<2sIIIIiiHHIIiiII", b"BM", 54 + 3000 * height, 0, 54, 40, 1000, height, 1, 24, *[0] * 6) + text(
        3000 * height
    )


def array() -> bytes:
    """A file of NumPy."""
    buffer = io.BytesIO()
    np.save(buffer, np.arange(LARGE // 4, dtype=np.int32))
    return buffer.getvalue()


def tar_of(entries: dict[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for name, data in entries.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def converted(kind: str, source: Path, target: Path, choice: FieldMapping | None = None) -> list[dict[str, Any]]:
    """The samples of a conversion, in the order of the source."""
    convert_from(kind, source, target, Options(jobs=1, compression="none"), choice=choice)
    reader = brand.open(target)
    return [reader.sample(index) for index in range(len(reader))]


@pytest.mark.parametrize("ending", PACKED)
def test_large_files_of_tars(ending: str, tmp_path: Path) -> None:
    """Sizes at and around the limit and a block, in archives that are compressed or not, with long names."""
    entries = {f"{'long/' * 40}{number}.bin": text(size, number) for number, size in enumerate(SIZES)}
    (tmp_path / f"a.tar{ending}").write_bytes(PACKED[ending](tar_of(entries)))
    samples = converted("webdataset", tmp_path / f"a.tar{ending}", tmp_path / "out")
    assert [sample["bin"] for sample in samples] == list(entries.values())


def test_large_files_of_every_codec_in_a_tar(tmp_path: Path) -> None:
    """Contents are views; what is parsed is what it was."""
    whole = {"text": text(LARGE).decode()}
    entries = {
        "a.bmp": bitmap(LARGE),
        "a.txt": text(LARGE),
        "a.json": json.dumps(whole).encode(),
        "a.npy": array(),
        "a.bin": text(LARGE, 7),
    }
    (tmp_path / "a.tar").write_bytes(tar_of(entries))
    (sample,) = converted("webdataset", tmp_path / "a.tar", tmp_path / "out")
    assert sample["text"] == text(LARGE).decode()
    assert sample["json"] == whole
    assert sample["bin"] == entries["a.bin"]
    assert sample["image"] == entries["a.bmp"]
    assert np.array_equal(sample["npy"], np.arange(LARGE // 4))
    (sample,) = converted("webdataset", tmp_path / "a.tar", tmp_path / "as-text", FieldMapping(codecs={"bin": "str"}))
    assert sample["bin"] == entries["a.bin"].decode()


def test_lists_of_large_files_in_a_tar(tmp_path: Path) -> None:
    """Each image of a list may be large."""
    entries = {"a.0.bmp": bitmap(LARGE), "a.1.bmp": bitmap(2 * LARGE), "b.0.bmp": bitmap(5000)}
    (tmp_path / "a.tar").write_bytes(tar_of(entries))
    first, second = converted("webdataset", tmp_path / "a.tar", tmp_path / "out")
    assert list(first["images"]) == [entries["a.0.bmp"], entries["a.1.bmp"]]
    assert list(second["images"]) == [entries["b.0.bmp"]]


def test_a_large_file_that_is_no_image_is_named(tmp_path: Path) -> None:
    """Views are checked as bytes are."""
    (tmp_path / "a.tar").write_bytes(tar_of({"a.bmp": bitmap(LARGE), "b.bmp": text(LARGE)}))
    with pytest.raises(SourceError, match=r"sample 'b'.*not an image file"):
        converted("webdataset", tmp_path / "a.tar", tmp_path / "out")


@pytest.mark.parametrize("cut", [1, 100, 600, LARGE // 2, LARGE])
def test_a_large_file_that_is_cut_short_is_an_error(cut: int, tmp_path: Path) -> None:
    """Wherever it ends, also in the zeros behind its contents."""
    whole = tar_of({"a.bin": b"1", "b.bin": text(LARGE)}).rstrip(b"\0")
    (tmp_path / "a.tar").write_bytes(whole[:-cut])
    with pytest.raises(SourceError, match=r"truncated within 'b\.bin'"):
        converted("webdataset", tmp_path / "a.tar", tmp_path / "out")


def test_large_columns_of_mds(tmp_path: Path) -> None:
    """One large column makes the whole sample a view."""
    columns = {"b": "bytes", "s": "str", "j": "json", "n": "ndarray:int32", "i": "int", "p": "png", "t": "str_int"}
    made = []
    for number, size in enumerate((3, LARGE, LARGE_FILE, 10)):
        values = [text(size, number), text(size, 3), json.dumps("x" * size).encode()]
        numbers = np.arange(size, dtype="<i4")
        values += [bytes([1 << 2 | 2]) + struct.pack("<I", size) + numbers.tobytes(), struct.pack("<q", -number)]
        values += [bitmap(max(size, 4000)), str(number).encode()]
        sizes = [len(value) for value, kind in zip(values, columns.values(), strict=True) if kind != "int"]
        made.append(struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(values))
    head = json.dumps({}).encode()
    first = 4 * (len(made) + 2) + len(head)
    ends = np.cumsum([first, *map(len, made)]).tolist()
    shard = struct.pack(f"<{len(made) + 2}I", len(made), *ends) + head + b"".join(made)
    (tmp_path / "mds").mkdir()
    (tmp_path / "mds" / "shard.00000.mds").write_bytes(shard)
    told = {
        "column_encodings": list(columns.values()),
        "column_names": list(columns),
        "column_sizes": [8 if kind == "int" else None for kind in columns.values()],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "raw_data": {"basename": "shard.00000.mds", "bytes": len(shard), "hashes": {}},
        "samples": len(made),
        "size_limit": None,
        "version": 2,
        "zip_data": None,
    }
    (tmp_path / "mds" / "index.json").write_text(json.dumps({"shards": [told], "version": 2}))
    samples = converted("mds", tmp_path / "mds", tmp_path / "out")
    for number, (sample, size) in enumerate(zip(samples, (3, LARGE, LARGE_FILE, 10), strict=True)):
        assert (sample["b"], sample["s"]) == (text(size, number), text(size, 3).decode())
        assert (sample["j"], sample["i"], sample["t"]) == ("x" * size, -number, number)
        assert sample["p"] == bitmap(max(size, 4000))
        assert np.array_equal(sample["n"], np.arange(size))


@pytest.mark.parametrize("kind", ["binary", "large_binary", "binary_view", "dictionary", "file"])
def test_large_values_of_arrow(kind: str, tmp_path: Path) -> None:
    """Whatever the type, the row group and the batch; missing ones are replaced."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    values = [text(LARGE, number) if number % 3 else text(number) for number in range(1, 9)]
    if kind == "file":
        column = pa.array([{"bytes": value, "path": "a"} for value in values])
    elif kind == "dictionary":
        column = pa.array(values, pa.binary()).dictionary_encode()
    else:
        column = pa.array(values, getattr(pa, kind)())
    pq.write_table(pa.table({"x": column, "i": range(len(values))}), tmp_path / "a.parquet", row_group_size=3)
    samples = converted("parquet", tmp_path / "a.parquet", tmp_path / "out")
    assert [(sample["x"], sample["i"]) for sample in samples] == list(zip(values, range(len(values)), strict=True))
    brand.pack(pa.table({"x": column}).slice(2, 5), tmp_path / "table", jobs=1)
    reader = brand.open(tmp_path / "table")
    assert [reader.sample(index)["x"] for index in range(5)] == values[2:7]


def test_large_values_of_arrow_with_missing_ones(tmp_path: Path) -> None:
    """A column with nulls is read as before."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    values = [text(LARGE), None, text(LARGE, 3)]
    pq.write_table(pa.table({"x": pa.array(values, pa.binary())}), tmp_path / "a.parquet")
    with_null = converted("parquet", tmp_path / "a.parquet", tmp_path / "out", FieldMapping(nulls={"x": ""}))
    assert [sample["x"] for sample in with_null] == [value or b"" for value in values]


@pytest.mark.parametrize(
    "value",
    [
        memoryview(text(LARGE)),
        memoryview(bytearray(text(LARGE))),
        NOISE.data[::2],
        NOISE.view(np.int8).data,
        NOISE[: 2 * LARGE // 8 * 8].view(np.float64).data,
        NOISE[: LARGE // 2 * 2].reshape(2, -1).data,
        bytearray(text(LARGE)),
    ],
)
@pytest.mark.parametrize("codec", ["bytes", "audio", "image", "list[audio]"])
def test_views_of_any_form_are_stored_as_their_bytes(value: Any, codec: str) -> None:
    """Strided, signed, of several dimensions, writable."""
    given = [value] if codec.startswith("list") else value
    plain = [bytes(value)] if codec.startswith("list") else bytes(value)
    schema = Schema.parse({"x": codec})
    assert list(encode_records(schema, [{"x": given}], [0])) == list(encode_records(schema, [{"x": plain}], [0]))


def test_a_view_that_changes_after_its_sample_is_stored_as_it_was(tmp_path: Path) -> None:
    """A generator may use one memory for all of its samples."""
    memory = bytearray(LARGE)

    def samples() -> Any:
        for number in range(12):
            memory[:] = bytes([number]) * LARGE
            yield {"x": memoryview(memory), "n": number}

    brand.pack(samples(), tmp_path / "out", {"x": "bytes", "n": "int"}, jobs=1)
    reader = brand.open(tmp_path / "out")
    assert [reader.sample(index)["x"] for index in range(12)] == [bytes([number]) * LARGE for number in range(12)]
