"""How does each library turn images and records into its own files, with two processes?

Every function takes the source and an output folder that does not exist yet, does the work that is not timed (imports),
and returns the job to be timed. Each library runs in the best reasonable configuration that trying found:

- Brand: one call, which divides the work itself and shuffles all samples over all chunks; once more without
  compression, as the rivals write.
- mosaicml, webdataset: two forked processes; each writes every other sample into its own shards. mosaicml merges the
  two indexes.
- litdata: two forked workers; each makes every other sample in one generator. The usual way, one call per sample, took
  2.8 times as long for the records.
- cp: one process, which shows how long it takes to touch the files at all.

No library decodes or encodes: all store the bytes of the image, its label and its key. Only Brand shuffles. The
rivals have no types, so `import_module` imports them.
"""

from __future__ import annotations

import json
import multiprocessing
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal

from bench.harness import Rival
from bench.mosaicml import load_streaming
from bench.sources import ImageFile, Record, list_images

JOBS: Final = 2
SHARD_BYTES: Final = 1 << 26
"""mosaicml's default, used for every library that has an option for it."""

_LITDATA_OPTIONS: Final[dict[str, Any]] = {
    "chunk_bytes": SHARD_BYTES,
    "num_workers": JOBS,
    "start_method": "fork",
    "reorder_files": False,
    "verbose": False,
}

Job = Callable[[], None]
Encode = Callable[[Any], dict[str, Any]]
Samples = Callable[[], list[Any]]
"""A function that returns the samples: listing a folder is part of the work, so the job does it."""


@dataclass(frozen=True, slots=True)
class Converter:
    """One library in this comparison."""

    rival: Rival
    images: Callable[[Path, Path], Job]
    """(image folder, output) -> job."""
    records: Callable[[list[Record], Path], Job]
    """(records in memory, output) -> job."""
    count: Callable[[Path], int]
    """Counts the samples in an output, for checking."""


def copy(source: Path, out: Path) -> Job:
    """Copy with `cp -r`: the yardstick."""
    return lambda: _call(["cp", "-r", str(source), str(out)])


def _brand_images(source: Path, out: Path) -> Job:
    from brand.chunker import Options, convert_images

    return lambda: _ignore(convert_images(source, out, Options(jobs=JOBS)))


def _brand_records(records: list[Record], out: Path, compression: Literal["auto", "none"] = "auto") -> Job:
    from brand import pack  # imported here, so that the import is not timed

    schema = dict.fromkeys(("id", "lang", "label", "text"), "str")
    return lambda: _ignore(pack(records, out, schema=schema, jobs=JOBS, compression=compression))


def _brand_count(out: Path) -> int:
    from brand import BrandDataset

    return len(BrandDataset(out))


def _mosaicml(
    samples: Samples, encode: Encode, columns: dict[str, str], out: Path, shard_bytes: int = SHARD_BYTES
) -> Job:
    streaming = load_streaming()
    merge_index = import_module("streaming.base.util").merge_index

    def write(part: int, half: list[Any]) -> None:
        with streaming.MDSWriter(columns=columns, out=str(out / str(part)), size_limit=shard_bytes) as writer:
            for sample in half:
                writer.write(encode(sample))

    def job() -> None:
        _in_processes(write, samples())
        merge_index(str(out), keep_local=True)

    return job


def _mosaicml_images(source: Path, out: Path) -> Job:
    columns = {"image": "bytes", "label": "int", "key": "str"}
    return _mosaicml(lambda: list_images(source), _image_sample, columns, out)


def _mosaicml_records(records: list[Record], out: Path) -> Job:
    return _mosaicml(lambda: records, _same, dict.fromkeys(records[0], "str"), out)


def _mosaicml_count(out: Path) -> int:
    return sum(shard["samples"] for shard in json.loads((out / "index.json").read_text())["shards"])


def _litdata(samples: Samples, encode: Encode, out: Path, shard_bytes: int = SHARD_BYTES) -> Job:
    litdata = import_module("litdata")

    def job() -> None:
        everything = samples()

        def half_of(part: range) -> Iterator[dict[str, Any]]:
            for i in part:
                yield encode(everything[i])

        parts = [range(len(everything))[part::JOBS] for part in range(JOBS)]
        litdata.optimize(half_of, parts, str(out), **_LITDATA_OPTIONS | {"chunk_bytes": shard_bytes})

    return job


def _litdata_images(source: Path, out: Path) -> Job:
    return _litdata(lambda: list_images(source), _image_sample, out)


def _litdata_records(records: list[Record], out: Path) -> Job:
    return _litdata(lambda: records, _same, out)


def _litdata_count(out: Path) -> int:
    return sum(chunk["chunk_size"] for chunk in json.loads((out / "index.json").read_text())["chunks"])


def _webdataset(samples: Samples, encode: Callable[[int, Any], dict[str, Any]], out: Path) -> Job:
    webdataset = import_module("webdataset")

    def write(part: int, half: list[Any]) -> None:
        with webdataset.ShardWriter(f"{out}/{part}-%05d.tar", maxsize=SHARD_BYTES, verbose=0) as writer:
            for i, sample in enumerate(half):
                writer.write(encode(i, sample))

    def job() -> None:
        out.mkdir()
        _in_processes(write, samples())

    return job


def _webdataset_images(source: Path, out: Path) -> Job:
    def encode(_: int, file: ImageFile) -> dict[str, Any]:
        return {"__key__": file.key.replace(".", "_"), "image": file.path.read_bytes(), "cls": file.label}

    return _webdataset(lambda: list_images(source), encode, out)


def _webdataset_records(records: list[Record], out: Path) -> Job:
    return _webdataset(lambda: records, lambda i, record: {"__key__": f"{i:07d}", "json": record}, out)


def _webdataset_count(out: Path) -> int:
    shards = out.glob("*.tar")
    names = [subprocess.run(["tar", "-tf", str(shard)], check=True, capture_output=True).stdout for shard in shards]
    return sum(listing.count(b".json\n") + listing.count(b".cls\n") for listing in names)


def _image_sample(file: ImageFile) -> dict[str, Any]:
    return {"image": file.path.read_bytes(), "label": file.label, "key": file.key}


def _same(record: Record) -> dict[str, Any]:
    return dict(record)


def _in_processes(write: Callable[[int, list[Any]], None], samples: list[Any]) -> None:
    """Call `write(part, half)` for each half in a forked process of its own, and wait."""
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=write, args=(part, samples[part::JOBS])) for part in range(JOBS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        if worker.exitcode:
            raise RuntimeError(f"a writing process ended with status {worker.exitcode}")


def _call(command: list[str]) -> None:
    subprocess.run(command, check=True)


def _ignore(_: object) -> None:
    """Drop a result."""


BRAND: Final = Rival("brand", "brand", "brand-data")
BRAND_PLAIN: Final = Rival("brand, uncompressed", "brand", "brand-data")
MOSAICML: Final = Rival("mosaicml", "streaming", "mosaicml-streaming")
LITDATA: Final = Rival("litdata", "litdata", "litdata")
WEBDATASET: Final = Rival("webdataset", "webdataset", "webdataset")

CONVERTERS: Final = (
    Converter(BRAND, _brand_images, _brand_records, _brand_count),
    Converter(BRAND_PLAIN, _brand_images, partial(_brand_records, compression="none"), _brand_count),
    Converter(MOSAICML, _mosaicml_images, _mosaicml_records, _mosaicml_count),
    Converter(LITDATA, _litdata_images, _litdata_records, _litdata_count),
    Converter(WEBDATASET, _webdataset_images, _webdataset_records, _webdataset_count),
)
