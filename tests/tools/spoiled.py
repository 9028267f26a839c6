"""Files of many kinds that are damaged by chance, and what becomes of them on the ways into a training.

`media_kinds` and `container_kinds` have one whole file of each kind, `spoiled` damages one. `folder`, `tar`, `parquet`,
`training` and `container` each take the damaged files of a kind along one way, and return how many ended as a sample,
as a skip with its name, and as an error that names the file. Anything else is an `AssertionError`.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import random
import re
import shutil
import struct
import tarfile
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow
import pyarrow.parquet
import soundfile
import zstandard
from PIL import Image

from brand import pack
from brand.chunker import Options, Report, convert_audio, convert_from, convert_images
from brand.chunker.convert import convert_tokens
from brand.chunker.importers.fields import FieldMapping
from brand.chunker.importers.tokens import TokenOptions
from brand.errors import BrandError, DecodeError
from brand.torch import BrandDataset, BrandLoader, BrandSampler

_NOTHING_LEFT: Final = re.compile("there are none|no samples|there are no rows")
Ended = Counter[str]
"""How many files ended as `sample`, `skip` or `error`."""
GOOD: Final = 3
"""Whole files next to the damaged ones, so that something is left."""


def _picture(form: str, mode: str = "RGB", **options: Any) -> bytes:
    rng = np.random.default_rng(0)
    pixels = np.kron(rng.integers(0, 255, (8, 8, 3), np.uint8), np.ones((5, 6, 1), np.uint8))
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, form, **options)
    return file.getvalue()


def _photoshop() -> bytes:
    head = b"8BPS" + struct.pack(">H6xHIIHH", 1, 3, 20, 30, 8, 3)
    return head + struct.pack(">IIIH", 0, 0, 0, 0) + np.random.default_rng(0).bytes(1800)


def _sound(form: str, subtype: str | None = None) -> bytes:
    file = io.BytesIO()
    tone = np.sin(np.arange(4000) * 0.3).astype(np.float32) / 2
    soundfile.write(file, tone, 8000, format=form, subtype=subtype)
    return file.getvalue()


def media_kinds() -> dict[str, tuple[str, bytes]]:
    """Name of a kind -> field, and a whole file."""
    pictures = {
        "png": _picture("PNG"), "jpeg": _picture("JPEG"), "webp": _picture("WEBP"), "avif": _picture("AVIF"),
        "tiff": _picture("TIFF"), "tiff-lzw": _picture("TIFF", compression="tiff_lzw"), "gif": _picture("GIF"),
        "bmp": _picture("BMP"), "pnm": _picture("PPM"), "jp2": _picture("JPEG2000"), "ico": _picture("ICO"),
        "dds": _picture("DDS", "RGBA", pixel_format="DXT1"), "tga": _picture("TGA", compression="tga_rle"),
        "psd": _photoshop(), "qoi": _picture("QOI"), "sgi": _picture("SGI"), "pcx": _picture("PCX"),
        "icns": _picture("ICNS"), "blp": _picture("BLP", "P"),
    }  # fmt: skip
    sounds = {
        "wav": _sound("WAV"), "adpcm": _sound("WAV", "MS_ADPCM"), "flac": _sound("FLAC"), "mp3": _sound("MP3"),
        "vorbis": _sound("OGG", "VORBIS"), "opus": _sound("OGG", "OPUS"), "aiff": _sound("AIFF"), "au": _sound("AU"),
        "caf": _sound("CAF"),
    }  # fmt: skip
    return {name: ("image", data) for name, data in pictures.items()} | {
        name: ("audio", data) for name, data in sounds.items()
    }


def spoiled(data: bytes, rng: random.Random) -> bytes:
    """Return a file with flipped bits, mostly in its head, with zeros in it, or cut short."""
    made, how = bytearray(data), rng.randrange(5)
    if how == 0:
        return data[: rng.randrange(len(data))]
    if how == 1:
        at = rng.randrange(len(made))
        made[at : at + 64] = bytes(len(made[at : at + 64]))
    elif how == 2:
        made[: rng.randrange(1, 64)] = bytes(rng.randrange(1, 64))
    else:
        for _ in range(rng.randint(1, 8)):
            bit = rng.randrange(8 * (len(made) if how == 3 else min(64, len(made))))
            made[bit // 8] ^= 1 << bit % 8
    return bytes(made)


def files_of(name: str, count: int) -> dict[str, bytes]:
    """Return damaged files of a kind of `media_kinds`, by name."""
    rng, (_, whole) = random.Random(name), media_kinds()[name]
    return {f"bad{number:04d}.{name}": spoiled(whole, rng) for number in range(count)}


def folder(name: str, files: Mapping[str, bytes], place: Path) -> Ended:
    """Convert a folder of the files with `--on-error skip --validate`."""
    field, whole = media_kinds()[name]
    source = place / "folder"
    source.mkdir()
    for number in range(GOOD):
        (source / f"good{number}.{name}").write_bytes(whole)
    for called, data in files.items():
        (source / called).write_bytes(data)
    convert = convert_images if field == "image" else convert_audio
    report = convert(source, place / "folder.brand", Options(validate=True, skip_errors=True, jobs=1))
    return _told(report.samples, _skipped(report), files)


def tar(name: str, files: Mapping[str, bytes], place: Path) -> Ended:
    """Convert a tar file of them with `--on-error skip`."""
    field, whole = media_kinds()[name]
    with tarfile.open(place / "x.tar", "w") as archive:
        for called, data in [*((f"good{n}.{name}", whole) for n in range(GOOD)), *files.items()]:
            member = tarfile.TarInfo(called)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    report = convert_from(
        "webdataset",
        place / "x.tar",
        place / "tar.brand",
        Options(skip_errors=True, jobs=1),
        choice=FieldMapping(codecs={field if field in _USUAL.get(name, "") else name: field}),
    )
    return _told(report.samples, _skipped(report), [f"sample {name[: name.index('.')]!r}" for name in files])


def parquet(name: str, files: Mapping[str, bytes], place: Path) -> Ended:
    """Convert a Parquet file of them with `--on-error skip`."""
    field, whole = media_kinds()[name]
    table = pyarrow.table({"file": [*[whole] * GOOD, *files.values()]})
    pyarrow.parquet.write_table(table, place / "x.parquet")
    options = Options(skip_errors=True, jobs=1)
    choice = FieldMapping(codecs={"file": field})
    report = convert_from("parquet", place / "x.parquet", place / "parquet.brand", options, choice=choice)
    return _told(report.samples, _skipped(report), [f"row {GOOD + number}" for number in range(len(files))])


def training(name: str, files: Mapping[str, bytes], place: Path) -> Ended:
    """Train on them: an epoch with `on_error="skip"`, then each by its index, where it decodes or is named.

    Half of the samples are whole, because a damaged sample is replaced by one of its group.
    """
    field, whole = media_kinds()[name]
    samples = [{field: data} for bad in files.values() for data in (bad, whole)]
    pack(samples, place / "train.brand", {field: field}, chunk_size=16, jobs=1)
    ended: Ended = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = BrandDataset(place / "train.brand", decode=True, on_error="skip")
        loader = BrandLoader(dataset, 1, sampler=BrandSampler(dataset), num_workers=1, collate_fn=list)
        assert sum(map(len, loader)) == len(samples)
        plain = BrandDataset(place / "train.brand", decode=True)
        for index in range(0, len(samples), 2):
            try:
                plain[index]
                ended["sample"] += 1
            except DecodeError as error:
                named = error.sample == index and error.path is not None
                ended["error" if named else f"without a name: {error}"] += 1
    return ended


_PICTURES: Final = ("png", "jpeg", "webp", "avif", "tiff", "gif", "bmp", "jp2")
_SOUNDS: Final = ("wav", "flac", "mp3", "opus", "aiff", "au", "caf")
_USUAL: Final = dict.fromkeys(_PICTURES, "image") | dict.fromkeys(_SOUNDS, "audio")
WAYS: Final[dict[str, Callable[[str, Mapping[str, bytes], Path], Ended]]] = {
    "folder": folder,
    "tar": tar,
    "parquet": parquet,
    "training": training,
}


def _skipped(report: Report) -> list[str]:
    return [problem.path for problem in report.skipped]


def _told(samples: int, skipped: list[str], files: Collection[str]) -> Ended:
    """Return the counts, if each damaged file is a sample, or is named among those that were left out."""
    ends = {path.rpartition(", ")[2] for path in skipped}
    assert len(ends) == len(skipped)
    assert ends <= set(files), ends - set(files)
    assert samples - GOOD + len(skipped) == len(files), (samples, len(skipped), len(files))
    return Counter(sample=samples - GOOD, skip=len(skipped))


def container_kinds(sources: Path) -> dict[str, tuple[str, dict[str, bytes], str]]:
    """Name of a kind -> importer, the files of a whole source, and the file to damage. `sources` has those of tools."""
    rows = [{"a": number, "b": f"text {number}", "c": [number, 2.5]} for number in range(30)]
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    table = b"a,b\n" + b"".join(b'%d,"text %d"\n' % (number, number) for number in range(30))
    archive, array, arrays = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(array, np.arange(4))
    np.savez(arrays, a=np.arange(4))
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for number in range(10):
            files = {"txt": b"text", "json": b'{"a": 1}', "npy": array.getvalue(), "npz": arrays.getvalue()}
            for ending, data in files.items():
                member = tarfile.TarInfo(f"{number}.{ending}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    tars, buffer, packed = archive.getvalue(), io.BytesIO(), io.BytesIO()
    data = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(data, buffer, row_group_size=10, compression="none")
    pyarrow.parquet.write_table(data, packed, row_group_size=10, compression="zstd")
    found: dict[str, tuple[str, dict[str, bytes], str]] = {}
    for kind, name, contents in (
        ("webdataset", "tar", tars), ("webdataset", "tar.gz", gzip.compress(tars)),
        ("webdataset", "tar.bz2", bz2.compress(tars)), ("webdataset", "tar.xz", lzma.compress(tars)),
        ("webdataset", "tar.zst", zstandard.compress(tars)), ("parquet", "parquet", buffer.getvalue()),
        ("parquet", "pq", packed.getvalue()), ("jsonl", "jsonl", lines), ("jsonl", "jsonl.gz", gzip.compress(lines)),
        ("jsonl", "jsonl.zst", zstandard.compress(lines)), ("csv", "csv", table),
        ("csv", "tsv", table.replace(b",", b"\t")), ("csv", "csv.xz", lzma.compress(table)),
    ):  # fmt: skip
        found[name] = (kind, {f"x.{name}": contents}, f"x.{name}")
    for ending, save in (("npy", np.save), ("npz", lambda to, tokens: np.savez(to, tokens=tokens))):
        tokens = io.BytesIO()
        save(tokens, np.arange(4000, dtype=np.uint16))
        found[ending] = ("tokens", {f"x.{ending}": tokens.getvalue()}, f"x.{ending}")
    for name in ("mds", "mds-zstd", "litdata", "litdata-zstd", "litdata-rows", "hf"):
        files = {path.name: path.read_bytes() for path in sorted((sources / name).iterdir())}
        found[name] = (name.partition("-")[0], files, next(file for file in files if not file.endswith("json")))
        index = next(file for file in files if file in ("index.json", "state.json"))
        found[f"{name}, {index}"] = (name.partition("-")[0], files, index)
    return found


def container(kind: tuple[str, dict[str, bytes], str], count: int, place: Path) -> Ended:
    """Convert sources with a damaged file, with `--on-error skip`: samples are left, or an error names the file."""
    importer, files, victim = kind
    rng, ended = random.Random(victim + importer), Counter[str]()
    for _ in range(count):
        source = place / "source"
        source.mkdir()
        for name, data in files.items():
            (source / name).write_bytes(spoiled(data, rng) if name == victim else data)
        try:
            if importer == "tokens":
                tokens = TokenOptions(block=64)
                report = convert_tokens(source / victim, place / "made.brand", Options(jobs=1), tokens=tokens)
            else:
                report = convert_from(importer, source, place / "made.brand", Options(skip_errors=True, jobs=1))
            ended["skip" if report.skipped else "sample"] += 1
        except BrandError as error:
            # A damaged index may name any file, and a source of which nothing is left is named as a whole.
            named = victim in str(error) or victim.endswith(".json") or _NOTHING_LEFT.search(str(error))
            ended["error" if named else f"without a name: {error}"] += 1
        shutil.rmtree(source)
        shutil.rmtree(place / "made.brand", ignore_errors=True)
    return ended
