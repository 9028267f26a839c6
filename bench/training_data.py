"""Which data do the training benchmarks read, and how does each library store them?

    python -m bench.training_data --data DATA --work SCRATCH

makes two data sets out of the real images and texts, deterministically, and writes each in the form of every library:

- `images`: 14,336 JPEG files of 105 KB on average, about the size of ImageNet's. Each is a part of a photograph with
  four drawings pasted on it, and no two are alike.
- `records`: 1,000,000 texts of about 500 bytes. Each joins one to five real texts.
- `small-images`, `small-records`: the beginnings of the two, for loading libraries and for measuring the memory of an
  idle process.

A sample is `{"image": bytes, "label": int}` or `{"text": str, "label": int}`, and its label is its own number. So the
labels alone tell a benchmark whether each sample was delivered once, and how well samples were mixed.

SCRATCH/training/NAME/FORM/ holds:

- `plain`: one file for each image; all records in one JSONL file, with a table of offsets;
- `sequential`: one file of the same bytes (for records, the file of `plain`);
- `brand`: stored without compression, like the other forms; `brand-zstd`: records compressed, as by default;
- `mosaicml`, `litdata`, `webdataset`: as converters.py writes them, in shards of 64 MiB;
- `mosaicml-store`, `litdata-store`: in the smaller shards with which they are fastest from an object store (stores.py);
- `ffcv`: raw bytes, in the smallest pages that FFCV takes, so that its shuffling needs the least memory. Run with
  `--only ffcv` and the interpreter of an environment that has FFCV.

All take about 20 GB. Forms that exist are not made again, and a library that is not installed is omitted.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from bench import converters, harness
from bench.sources import FILES_PER_FOLDER, list_images, load_records

if TYPE_CHECKING:
    from PIL.Image import Image

SAMPLES: Final = {"images": 14_336, "records": 1_000_000, "small-images": 1_024, "small-records": 65_536}
KINDS: Final = ("images", "records")
PAYLOAD: Final = {"images": "image", "records": "text"}
CODECS: Final = {"images": {"image": "image", "label": "int"}, "records": {"text": "str", "label": "int"}}
MDS_COLUMNS: Final = {"images": {"image": "bytes", "label": "int"}, "records": {"text": "str", "label": "int"}}
LOCAL_SHARD_BYTES: Final = dict.fromkeys(("images", "records"), converters.SHARD_BYTES)
STORE_SHARD_BYTES: Final = {"images": 16 << 20, "records": 4 << 20}
"""Shards for an object store: the fastest in litdata's first epoch, of 4, 16 and 64 MiB, and of 1, 4 and 64 MiB."""
FFCV_PAGE_BYTES: Final = 1 << 21
"""The smallest page that FFCV takes; its shuffling holds two batches of pages."""

_PHOTO_SIDE: Final = 1_000
"""Photographs are first scaled down to this size, so that a part of a photograph is recognisable."""
_DRAWINGS: Final = 4
_QUALITIES: Final = (89, 98)

Sample = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Store:
    """All forms of one data set."""

    work: Path
    name: str

    @property
    def kind(self) -> str:
        """`images` or `records`."""
        return self.name.removeprefix("small-")

    @property
    def small(self) -> Store:
        """The small data set, which is the beginning of this one."""
        return Store(self.work, f"small-{self.kind}")

    @property
    def samples(self) -> int:
        """Number of samples."""
        return SAMPLES[self.name]

    @property
    def folder(self) -> Path:
        """Folder of the data set."""
        return self.work / "training" / self.name

    @property
    def payload_bytes(self) -> int:
        """Bytes of all images, or of all texts in UTF-8, without labels."""
        return int((self.folder / "plain.bytes").read_text())

    @property
    def sequential_file(self) -> Path:
        """One file with the bytes of all samples."""
        return self.folder / "sequential" / "all" if self.kind == "images" else self.lines_file

    @property
    def lines_file(self) -> Path:
        """The JSONL file of the records."""
        return self.folder / "plain" / "records.jsonl"

    def image_file(self, i: int) -> str:
        """Return the file of one image."""
        return f"{self.folder}/plain/{i // FILES_PER_FOLDER:04d}/{i:07d}.jpg"

    def source(self) -> Images | Records:
        """Return all samples, by number."""
        return Images(self) if self.kind == "images" else Records(self)


class Images:
    """The image files, by number."""

    def __init__(self, store: Store) -> None:
        self.paths = [store.image_file(i) for i in range(store.samples)]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> Sample:
        with open(self.paths[i], "rb", buffering=0) as file:  # faster than Path.read_bytes
            return {"image": file.read(), "label": i}


class Records:
    """The lines of the JSONL file, by number. Forked and unpickled copies open it for themselves."""

    def __init__(self, store: Store) -> None:
        self.file = store.lines_file
        self.offsets = np.load(store.folder / "plain" / "offsets.npy")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> Sample:
        start, end = self.offsets[i : i + 2].tolist()
        sample: Sample = json.loads(os.pread(self._descriptor, end - start, start))
        return sample

    def __getstate__(self) -> dict[str, Any]:
        return {"file": self.file, "offsets": self.offsets}

    @cached_property
    def _descriptor(self) -> int:
        descriptor = os.open(self.file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        return descriptor


def make_images(data: Path, store: Store) -> int:
    """Write the image files. Return their bytes."""
    for start in range(0, store.samples, FILES_PER_FOLDER):
        Path(store.image_file(start)).parent.mkdir(parents=True)
    with multiprocessing.get_context("fork").Pool(converters.JOBS) as pool:
        return sum(pool.imap_unordered(partial(_make_image, data, store), range(store.samples), chunksize=64))


def make_records(data: Path, store: Store) -> int:
    """Write the JSONL file and its table of offsets. Return the bytes of the texts, in UTF-8."""
    texts = [record["text"] for record in load_records(data / "text")]
    rng = np.random.default_rng(0)
    order, place, total, offsets = rng.permutation(len(texts)).tolist(), 0, 0, [0]
    store.lines_file.parent.mkdir(parents=True)
    with store.lines_file.open("wb") as file:
        for i, count in enumerate(rng.integers(1, 6, store.samples).tolist()):
            if place + count > len(order):
                order, place = rng.permutation(len(texts)).tolist(), 0
            text = "\n".join(texts[j] for j in order[place : place + count])
            place, total = place + count, total + len(text.encode())
            line = json.dumps({"text": text, "label": i}, ensure_ascii=False) + "\n"
            offsets.append(offsets[-1] + file.write(line.encode()))
    np.save(store.folder / "plain" / "offsets.npy", np.array(offsets))
    return total


def _make_image(data: Path, store: Store, i: int) -> int:
    from PIL import Image

    rng = np.random.default_rng([0, i])
    drawings, photos = _drawings(data), _photographs(data)
    photo = photos[rng.integers(len(photos))]
    width, height = int(rng.integers(480, 800)), int(rng.integers(360, 600))
    left, top = int(rng.integers(photo.width - width)), int(rng.integers(photo.height - height))
    picture = photo.crop((left, top, left + width, top + height))
    for chosen in rng.integers(len(drawings), size=_DRAWINGS):
        drawing = Image.open(drawings[chosen]).convert("RGBA")
        drawing.thumbnail((width * 2 // 3, height * 2 // 3))
        place = int(rng.integers(width - drawing.width)), int(rng.integers(height - drawing.height))
        picture.paste(drawing, place, drawing)
    content = io.BytesIO()
    picture.save(content, "JPEG", quality=int(rng.integers(*_QUALITIES)), subsampling=0)
    return Path(store.image_file(i)).write_bytes(content.getvalue())


@cache
def _drawings(data: Path) -> list[Path]:
    return [file.path for file in list_images(data / "images")]


@cache
def _photographs(data: Path) -> list[Image]:
    from PIL import Image

    photos = [Image.open(path).convert("RGB") for path in sorted((data / "images" / "photos_scenery").glob("*.jpg"))]
    scales = [_PHOTO_SIDE / min(photo.size) for photo in photos]
    return [p.resize((round(p.width * s), round(p.height * s))) for p, s in zip(photos, scales, strict=True)]


def _write_plain(store: Store, out: Path, data: Path) -> None:
    total = make_images(data, store) if store.kind == "images" else make_records(data, store)
    out.with_suffix(".bytes").write_text(str(total))


def _write_sequential(store: Store, out: Path, _: Path) -> None:
    out.mkdir()
    if store.kind == "images":
        source = store.source()
        with store.sequential_file.open("wb") as file:
            for i in range(len(source)):
                file.write(source[i]["image"])


def _write_brand(store: Store, out: Path, _: Path, compression: Literal["none", "zstd"] = "none") -> None:
    from brand import pack

    pack(store.source(), out, CODECS[store.kind], compression=compression, jobs=converters.JOBS)


def _write_mosaicml(store: Store, out: Path, _: Path, shards: Mapping[str, int] = LOCAL_SHARD_BYTES) -> None:
    source, columns, size = store.source(), MDS_COLUMNS[store.kind], shards[store.kind]
    converters._mosaicml(lambda: list(range(len(source))), source.__getitem__, columns, out, size)()


def _write_litdata(store: Store, out: Path, _: Path, shards: Mapping[str, int] = LOCAL_SHARD_BYTES) -> None:
    source = store.source()
    converters._litdata(lambda: list(range(len(source))), source.__getitem__, out, shards[store.kind])()


def _write_webdataset(store: Store, out: Path, _: Path) -> None:
    source, images = store.source(), store.kind == "images"

    def encode(_: int, i: int) -> Sample:
        return {"__key__": f"{i:07d}", **({"jpg": source[i]["image"], "cls": i} if images else {"json": source[i]})}

    converters._webdataset(lambda: list(range(len(source))), encode, out)()


def _write_ffcv(store: Store, out: Path, _: Path) -> None:
    writer, fields = importlib.import_module("ffcv.writer"), importlib.import_module("ffcv.fields")
    out.mkdir()
    columns = {"payload": fields.BytesField(), "size": fields.IntField(), "label": fields.IntField()}
    options = {"page_size": FFCV_PAGE_BYTES, "num_workers": converters.JOBS}
    writer.DatasetWriter(str(out / "all.beton"), columns, **options).from_indexed_dataset(_Triples(store))


class _Triples:
    """A data set in the form that FFCV needs.

    Sizes are stored, too, because FFCV returns rows as long as the longest sample.
    """

    def __init__(self, store: Store) -> None:
        self.name, self.source = PAYLOAD[store.kind], store.source()

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, i: int) -> tuple[Any, int, int]:
        payload = self.source[i][self.name]
        content = payload.encode() if isinstance(payload, str) else payload
        return np.frombuffer(content, np.uint8), len(content), i


FORMS: Final[dict[str, tuple[str, Callable[[Store, Path, Path], None]]]] = {
    "plain": ("", _write_plain),
    "sequential": ("", _write_sequential),
    "brand": ("brand", _write_brand),
    "brand-zstd": ("brand", partial(_write_brand, compression="zstd")),
    "mosaicml": ("streaming", _write_mosaicml),
    "litdata": ("litdata", _write_litdata),
    "mosaicml-store": ("streaming", partial(_write_mosaicml, shards=STORE_SHARD_BYTES)),
    "litdata-store": ("litdata", partial(_write_litdata, shards=STORE_SHARD_BYTES)),
    "webdataset": ("webdataset", _write_webdataset),
    "ffcv": ("ffcv", _write_ffcv),
}
"""Name -> (module that must be installed, writer)."""


def stored_order(store: Store, form: str) -> NDArray[np.int64]:
    """Return the labels in the order in which the samples are stored."""
    labels = np.arange(store.samples)
    if form in ("brand", "brand-zstd"):
        index = importlib.import_module("brand.formats.index")
        manifest = importlib.import_module("brand.formats.manifest").read_manifest(store.folder / form)
        place = index.open_array(store.folder / form, "index/place.npy", manifest.header).all()
        return np.argsort(np.asarray(place))
    if form.removesuffix("-store") in ("mosaicml", "litdata", "webdataset"):
        return np.concatenate([labels[part :: converters.JOBS] for part in range(converters.JOBS)])
    return labels


def make(store: Store, data: Path, form: str) -> bool:
    """Make one form, unless it exists or cannot be made. Return whether it was made now."""
    module, write = FORMS[form]
    if form == "brand-zstd" and store.kind == "images":
        return False
    done, out = store.folder / f"{form}.done", store.folder / form
    if done.exists() or (module and importlib.util.find_spec(module) is None):
        return False
    shutil.rmtree(out, ignore_errors=True)
    store.folder.mkdir(parents=True, exist_ok=True)
    write(store, out, data)
    done.touch()
    return True


def main() -> None:
    """Make everything that is missing."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.training_data", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with images/ and text/")
    parser.add_argument("--work", type=Path, required=True, help="scratch folder, for 20 GB")
    parser.add_argument(
        "--name", nargs="+", choices=tuple(SAMPLES), default=tuple(SAMPLES), help="only these data sets"
    )
    parser.add_argument("--only", nargs="+", choices=tuple(FORMS), default=tuple(FORMS), help="only these forms")
    arguments = parser.parse_args()
    for store in [Store(arguments.work, name) for name in arguments.name]:
        for form in arguments.only:
            if make(store, arguments.data, form):
                harness.progress(f"{store.name}: {form}")
        mean = store.payload_bytes / store.samples
        harness.show(f"{store.name}: {store.samples:,} samples of {mean:,.0f} bytes")


if __name__ == "__main__":
    main()
