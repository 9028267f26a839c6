"""Tar files: does Brand yield the samples of the library webdataset?"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import webdataset

import brand
from bench.values import media
from bench.values.compare import WHOLE, Case, Sample

TOOL: Final = "webdataset"
_FIELDS: Final = {"__key__": "key", "cls": "label", "txt": "text"}
_IMAGES: Final = ("jpg", "jpeg", "png", "webp", "tif", "tiff", "bmp", "ppm", "pgm")


def cases(root: Path) -> Iterator[Case]:
    """Yield the cases; their sources are made below `root`."""
    root.mkdir(parents=True, exist_ok=True)
    files = media.image_files()
    images = [(f"{n:04}", name.rpartition(".")[2], data) for n, (name, data) in enumerate(files.items())]
    plain = [(f"{key}.{end}", data) for key, end, data in images]
    labelled = [
        part
        for n, (key, end, data) in enumerate(images)
        for part in ((f"{key}.{end}", data), (f"{key}.cls", f"{n % 5}\n".encode()))
    ]
    shards = _tar(root / "labelled.tar", labelled)
    yield _case("images and classes, decode('pil')", shards, "pil")
    for spec, mode in {"rgb8": "RGB", "l8": "L", "rgba8": "RGBA"}.items():
        how = {"image": brand.DecodeImage(mode=mode)}  # type: ignore[arg-type]
        flat = {"image": np.squeeze} if mode == "L" else None  # webdataset's grey images have two axes
        yield _case(f"images, decode('{spec}')", _tar(root / f"{spec}.tar", plain), spec, decode=how, transform=flat)
    torch_rgb = _tar(root / "torch.tar", plain)
    floats = {"image": lambda image: np.asarray(image, np.float32).transpose(2, 0, 1) / np.float32(255)}
    eights = {"image": lambda image: np.asarray(image).transpose(2, 0, 1)}
    yield _case("images, decode('torchrgb'), /255 in a transform", torch_rgb, "torchrgb", transform=floats)
    yield _case("images, decode('torchrgb8')", torch_rgb, "torchrgb8", transform=eights)
    jpeg, png, mask = files["a1.jpg"], files["c-rgb.PNG"], files["d-palette.png"]
    parts = [
        part
        for n in range(6)
        for part in (
            (f"train/a.{n}.b/{n:03}.jpg", jpeg),
            (f"train/a.{n}.b/{n:03}.seg.png", mask),
            (f"train/a.{n}.b/{n:03}.json", json.dumps({"a": [n, None], "é": 0.1 * n, "big": 2**70}).encode()),
            (f"train/a.{n}.b/{n:03}.npy", _npy(np.arange(n, dtype=np.float16))),
            (f"train/a.{n}.b/{n:03}.box.npy", _npy(np.full((2, n), n, np.int32))),
            (f"train/a.{n}.b/{n:03}.txt", f"é {n}\r\n ".encode()),
            (f"train/a.{n}.b/{n:03}.score.txt", b"1e3"),
            (f"train/a.{n}.b/{n:03}.id", str(n).encode()),
            (f"train/a.{n}.b/{n:03}.left.{('jpg', 'JPG')[n % 2]}", jpeg),
        )
    ]
    fields = {
        "seg.png": "seg_png",
        "npy": "npy",
        "box.npy": "box_npy",
        "score.txt": "score_txt",
        "left.jpg": "left_jpg",
    }
    yield _case(
        "parts of several endings, folders with dots",
        _tar(root / "parts.tar", parts),
        "pil",
        fields,
        said={"seg_png": "palette"},
    )
    several = [_tar(root / f"shards/{n:02}.tar", parts[9 * n : 9 * n + 9]) for n in range(3)]
    yield _case("three shards", several[0].parent, "pil", fields, shards=several)
    yield _case("compressed with gzip", _gz(_tar(root / "zipped.tar", parts)), "pil", fields)
    missing = _tar(
        root / "missing.tar", [("1.jpg", jpeg), ("1.json", b"{}"), ("2.jpg", jpeg), ("3.jpg", jpeg), ("3.json", b"[1]")]
    )
    yield _case("a sample without a part", missing, "pil", said={WHOLE: "it has no file for the field 'json'"})
    yield _case("a sample without a part, --null", missing, "pil", options=["--null", "json=null"], fill={"json": None})
    twice = _tar(
        root / "twice.tar", [("1.jpg", jpeg), ("1.cls", b"1"), ("1.jpg", png), ("2.jpg", jpeg), ("2.cls", b"3")]
    )
    yield Case(
        TOOL, "a file twice in a sample", lambda: [{}, {}], ["webdataset", str(twice)], said={WHOLE: "two files|twice"}
    )
    apart = _tar(root / "apart.tar", [("1.jpg", jpeg), ("2.jpg", png), ("1.cls", b"1"), ("2.cls", b"3")])
    yield _case("parts that are apart", apart, "pil", said={WHOLE: "it has no file for the field"})
    dots = _tar(
        root / "dots.tar",
        [(f"photo.{day}.jpg", jpeg) for day in ("mon", "tue")] + [("other.mon.jpg", png), ("other.tue.jpg", jpeg)],
    )
    yield _case("names with dots", dots, "pil", {"mon.jpg": "mon_jpg", "tue.jpg": "tue_jpg"})
    numbers = _tar(
        root / "numbers.tar",
        [
            part
            for n in range(4)
            for part in ((f"{n}.cls", f" {n} ".encode()), (f"{n}.index", str(10**n).encode()), (f"{n}.jpg", jpeg))
        ],
    )
    yield _case("numbers", numbers, "pil", {"index": "index_"}, said={"index_": "index"})
    arrays = {
        "bool": np.array([True, False]),
        "f8": np.array(np.nan),
        "c8": np.zeros((2, 0), np.uint8),
        "f": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "be": np.arange(3, dtype=">i4"),
    }
    npys = _tar(root / "npys.tar", [(f"{name}.npy", _npy(array)) for name, array in arrays.items()])
    yield _case("arrays of NumPy", npys, "pil")
    texts = _tar(
        root / "texts.tar",
        [("1.txt", b""), ("2.txt", "é\u2028x".encode()), ("3.txt", b"\xef\xbb\xbfbom"), ("4.txt", b" a\n")],
    )
    yield _case("texts", texts, "pil")
    raw = _tar(root / "raw.tar", [("1.bin", b"\0\1"), ("1.x.y", b""), ("2.bin", b"abc"), ("2.x.y", b"z")])
    yield _case("unknown endings", raw, "pil", {"x.y": "x_y"})
    lists = _tar(root / "lists.tar", [(f"{n}.{m}.jpg", (jpeg, png)[m % 2]) for n in range(3) for m in range(2 + n)])
    yield _case("numbered images", lists, "pil", gather=True)
    pax = _tar(root / "pax.tar", [(f"{'x' * 150}/{'é' * 60}{n}.jpg", jpeg) for n in range(3)], tarfile.PAX_FORMAT)
    yield _case("long names, pax", pax, "pil")
    gnu = _tar(root / "gnu.tar", [(f"{'x' * 150}/{'é' * 60}{n}.jpg", jpeg) for n in range(3)], tarfile.GNU_FORMAT)
    yield _case("long names, GNU", gnu, "pil")


def _case(
    source: str,
    src: Path,
    spec: str,
    names: Mapping[str, str] | None = None,
    *,
    shards: Sequence[Path] = (),
    options: Sequence[str] = (),
    fill: Mapping[str, Any] | None = None,
    gather: bool = False,
    **more: Any,
) -> Case:
    def read() -> list[Sample]:
        urls = [str(path) for path in shards or [src]]
        return [
            _named(sample, names or {}, fill or {}, gather=gather)
            for sample in webdataset.WebDataset(urls, shardshuffle=False).decode(spec)
        ]

    return Case(TOOL, source, read, ["webdataset", str(src), *options], **more)


def _named(sample: Mapping[str, Any], names: Mapping[str, str], fill: Mapping[str, Any], *, gather: bool) -> Sample:
    named: dict[str, Any] = dict(fill)
    for ending, value in sample.items():
        name = names.get(ending) or ("image" if ending in _IMAGES else _FIELDS.get(ending, ending))
        if gather and ending[0].isdigit():
            named.setdefault("images", []).append(value)
        elif ending not in ("__url__", "__local_path__"):
            named[name] = np.asarray(value) if type(value).__module__ == "torch" else value
    return named


def _tar(path: Path, files: Sequence[tuple[str, bytes]], form: int = tarfile.USTAR_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as archive:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def _gz(path: Path) -> Path:
    zipped = path.with_suffix(".tar.gz")
    zipped.write_bytes(gzip.compress(path.read_bytes()))
    return zipped


def _npy(array: np.ndarray[Any, Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()
