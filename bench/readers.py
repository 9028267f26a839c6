"""How does each library store the same samples, and what is its fastest official call to read a batch of them by index?

A sample is a dict: `{"line": bytes}`, one JSON record, or `{"image": bytes, "label": int}`, one image as stored.
`build` writes all samples in source order (Brand shuffles and keeps the source's numbering). `open` returns a `Reader`.
`Reader.read` is timed: it returns the library's own result, usually dicts. `Reader.samples` turns that into plain
samples for checking.

- Brand: `ds.__getitems__`, which a `DataLoader` calls; also without compression.
- mosaicml: `LocalDataset[i]`, its class for local data; it has no call for a batch.
- litdata: `StreamingDataset[i]`; it has no call for a batch, either. One large chunk was fastest. Images are tuples,
  decoded one at a time, which is 60 times faster than its defaults; it returns views of a memory map, which are copied
  to bytes here. Records are dicts.
- array_record: `ArrayRecordDataSource.__getitems__`, one file, one record a group, as its manual says; also without
  compression. Its values are bytes, so an image carries its label in 4 bytes before it.
- Lance: `dataset.take`, columns turned into Python values; it uses threads of its own.
- files: one file per sample, paths and labels in lists.

webdataset has no access by index, so it is missing here. The rivals have no types, so `import_module` imports them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from bench.harness import Rival
from bench.mosaicml import load_streaming
from bench.sources import FILES_PER_FOLDER

Sample = dict[str, Any]
_LABEL: Final = struct.Struct("<i")


@dataclass(frozen=True, slots=True)
class Reader:
    """An open data set."""

    read: Callable[[list[int]], Any]
    """Indices -> a batch, in the library's own form. Timed."""
    samples: Callable[[Any], list[Sample]]
    """A batch -> plain samples, in the order of the indices. Not timed."""


@dataclass(frozen=True, slots=True)
class Library:
    """One rival: its way to store and to read."""

    rival: Rival
    build: Callable[[Sequence[Sample], Path], None]
    open: Callable[[Path, Sequence[str]], Reader]
    """(folder, field names) -> reader."""


def _brand_builder(**options: Any) -> Callable[[Sequence[Sample], Path], None]:
    def build(samples: Sequence[Sample], out: Path) -> None:
        import brand

        brand.pack(samples, out, schema=_codecs(samples[0]), jobs=2, **options)

    return build


def _brand_open(out: Path, fields: Sequence[str]) -> Reader:
    from brand import BrandDataset

    dataset = BrandDataset(out, decode=False)

    def samples(batch: list[Sample]) -> list[Sample]:
        return [{name: sample[name] for name in fields} for sample in batch]

    return Reader(dataset.__getitems__, samples)


def _mosaicml_build(samples: Sequence[Sample], out: Path) -> None:
    with load_streaming().MDSWriter(columns=_codecs(samples[0]), out=str(out)) as writer:
        for sample in samples:
            writer.write(sample)


def _mosaicml_open(out: Path, _: Sequence[str]) -> Reader:
    dataset = load_streaming().LocalDataset(str(out))
    return Reader(lambda indices: [dataset[i] for i in indices], _as_it_is)


def _litdata_build(samples: Sequence[Sample], out: Path) -> None:
    litdata = import_module("litdata")

    def write(_: int) -> Iterator[Any]:
        yield from samples if "line" in samples[0] else (tuple(sample.values()) for sample in samples)

    options = {"chunk_bytes": "1GB", "num_workers": 1, "start_method": "fork", "verbose": False}
    litdata.optimize(write, [0], str(out), **options)


def _litdata_open(out: Path, fields: Sequence[str]) -> Reader:
    litdata = import_module("litdata")

    dataset = litdata.StreamingDataset(str(out), batch_decode=1)
    if "label" not in fields:
        return Reader(lambda indices: [dataset[i] for i in indices], _as_it_is)

    def read(indices: list[int]) -> list[Sample]:
        pairs = (dataset[i] for i in indices)
        return [{"image": bytes(image), "label": label} for image, label in pairs]

    return Reader(read, _as_it_is)


def _array_record_builder(options: str) -> Callable[[Sequence[Sample], Path], None]:
    def build(samples: Sequence[Sample], out: Path) -> None:
        array_record_module = import_module("array_record.python.array_record_module")
        out.mkdir(parents=True)
        writer = array_record_module.ArrayRecordWriter(str(out / "all.array_record"), options)
        for sample in samples:
            prefix = _LABEL.pack(sample["label"]) if "label" in sample else b""
            writer.write(prefix + _payload(sample))
        writer.close()

    return build


def _array_record_open(out: Path, fields: Sequence[str]) -> Reader:
    array_record_data_source = import_module("array_record.python.array_record_data_source")
    source = array_record_data_source.ArrayRecordDataSource([str(out / "all.array_record")])
    if "label" not in fields:
        return Reader(source.__getitems__, lambda batch: [{fields[0]: record} for record in batch])

    def read(indices: list[int]) -> list[Sample]:
        records = source.__getitems__(indices)
        return [{"image": r[_LABEL.size :], "label": _LABEL.unpack_from(r)[0]} for r in records]

    return Reader(read, _as_it_is)


def _lance_build(samples: Sequence[Sample], out: Path) -> None:
    lance, pyarrow = import_module("lance"), import_module("pyarrow")
    kinds = {"line": pyarrow.binary(), "image": pyarrow.binary(), "label": pyarrow.int64()}
    columns = {name: pyarrow.array([sample[name] for sample in samples], kinds[name]) for name in samples[0]}
    lance.write_dataset(pyarrow.table(columns), str(out))


def _lance_open(out: Path, fields: Sequence[str]) -> Reader:
    dataset = import_module("lance").dataset(str(out))
    columns = list(fields)

    def read(indices: list[int]) -> list[list[Any]]:
        taken = dataset.take(indices, columns=columns)
        return [taken.column(name).to_pylist() for name in columns]

    def samples(batch: list[list[Any]]) -> list[Sample]:
        return [dict(zip(columns, values, strict=True)) for values in zip(*batch, strict=True)]

    return Reader(read, samples)


def _files_build(samples: Sequence[Sample], out: Path) -> None:
    labels = []
    for i, sample in enumerate(samples):
        path = _file_of(out, i)
        if i % FILES_PER_FOLDER == 0:
            path.parent.mkdir(parents=True)
        path.write_bytes(_payload(sample))
        labels.append(str(sample.get("label", 0)))
    (out / "labels").write_text("\n".join(labels))


def _files_open(out: Path, fields: Sequence[str]) -> Reader:
    labels = [int(label) for label in (out / "labels").read_text().split()]
    paths = [str(_file_of(out, i)) for i in range(len(labels))]

    def content(i: int) -> bytes:
        with open(paths[i], "rb", buffering=0) as file:  # faster than Path.read_bytes
            return file.read()

    if "label" not in fields:
        return Reader(lambda indices: [{"line": content(i)} for i in indices], _as_it_is)
    return Reader(lambda indices: [{"image": content(i), "label": labels[i]} for i in indices], _as_it_is)


def _file_of(out: Path, i: int) -> Path:
    return out / f"{i // FILES_PER_FOLDER:04d}" / f"{i:07d}"


def _payload(sample: Sample) -> bytes:
    """Return the one field that is bytes."""
    return next(value for value in sample.values() if isinstance(value, bytes))


def _codecs(sample: Sample) -> dict[str, str]:
    return {name: "bytes" if isinstance(value, bytes) else "int" for name, value in sample.items()}


def _as_it_is(batch: list[Sample]) -> list[Sample]:
    return batch


def _array_record(name: str, options: str) -> Library:
    rival = Rival(name, "array_record", "array_record")
    return Library(rival, _array_record_builder(options), _array_record_open)


BRAND: Final = Rival("brand", "brand", "brand-data")

LIBRARIES: Final = (
    Library(BRAND, _brand_builder(), _brand_open),
    Library(Rival("brand, uncompressed", "brand", "brand-data"), _brand_builder(compression="none"), _brand_open),
    Library(Rival("mosaicml", "streaming", "mosaicml-streaming"), _mosaicml_build, _mosaicml_open),
    Library(Rival("litdata", "litdata", "litdata"), _litdata_build, _litdata_open),
    _array_record("array_record", "group_size:1"),
    _array_record("array_record, uncompressed", "group_size:1,uncompressed"),
    Library(Rival("lance", "lance", "pylance"), _lance_build, _lance_open),
    Library(Rival("files"), _files_build, _files_open),
)
