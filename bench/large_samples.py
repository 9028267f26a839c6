"""Do conversions of large samples stay within 1 GB and four samples, and how fast are they?

    python -m bench.large_samples --work SCRATCH [--gigabytes 8] [--sources tar ...] [--sizes 2MB ...] [--out FILE]

Each source is converted with samples of each size, which do not compress, in control groups (`bench.lab`) whose memory
is limited to 1 GB and four samples, page cache included. Right before, in equal groups, the source alone is read (or
the generator runs), and the disk alone gets the bytes: once, and flushed, if Brand writes each byte once (`passes` 1);
else to a scratch file, which is read and written again, and flushed (`passes` 2): the shuffle of a source that can only
be read in its own order needs both. Files of a source are hard links to a few, so `SCRATCH` needs room for the bytes
twice, and 2 GB.

A run that was stopped continues: SCRATCH keeps what was measured.

The clock starts after the imports of Brand and its libraries.

Columns: the limit, the largest private memory of all processes together (sampled every 0.2 s; the kernel kills a
process that exceeds the limit), GB/s of the source, of the disk and of the conversion, the conversion's rate over that
of the slower of the two, CPU-seconds for each GB of source and disk together, and of the conversion, and how it ended.
This needs root.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench import harness
from bench.lab import size as size_of
from brand.formats.values import LARGE

GROUP_BYTES: Final = 1_000_000_000
SAMPLES_HELD: Final = 4
_FILE_BYTES: Final = 1_000_000_000
"""Bytes of a file that holds many samples."""
_ROW_GROUP_BYTES: Final = 2_000_000_000
_DIFFERENT: Final = 8
"""Files of one sample that differ; others are links to them."""
_SHIFT: Final = 4099
_BLOCK: Final = 8 << 20
_CHUNK: Final = 256 << 20


def noise(size: int) -> Iterator[np.ndarray[Any, Any]]:
    """Yield samples that differ: windows of one memory of `size` bytes and 1 MiB."""
    memory = np.frombuffer(np.random.default_rng(0).bytes(size + (1 << 20)), np.uint8)
    number = 0
    while True:
        start = number * _SHIFT % (1 << 20)
        yield memory[start : start + size]
        number += 1


def some(size: int, total: int) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the samples of one source."""
    return islice(noise(size), max(1, total // size))


class Items:
    """An object with an index."""

    def __init__(self, size: int, total: int) -> None:
        self._all, self._size = np.frombuffer(np.random.default_rng(0).bytes(size + (1 << 20)), np.uint8), size
        self._count = max(1, total // size)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> dict[str, Any]:
        start = number * _SHIFT % (1 << 20)
        return {"x": self._all[start : start + self._size].copy()}


def bitmap(sample: np.ndarray[Any, Any]) -> bytes:
    """Return a BMP file of about the sample's size."""
    width = 1000
    height = (len(sample) - 54) // (3 * width)
    head = struct.pack("<2sIIIIiiHHIIiiII", b"BM", 54 + 3000 * height, 0, 54, 40, width, height, 1, 24, *[0] * 6)
    return head + sample[: 3000 * height].tobytes()


def wave(sample: np.ndarray[Any, Any]) -> bytes:
    """Return a WAV file of the sample's size: 16 bits, mono, 16 kHz."""
    held = (len(sample) - 44) // 2 * 2
    head = struct.pack(
        "<4sI4s4sIHHIIHH4sI", b"RIFF", 36 + held, b"WAVE", b"fmt ", 16, 1, 1, 16000, 32000, 2, 16, b"data", held
    )
    return head + sample[:held].tobytes()


def text(sample: np.ndarray[Any, Any]) -> str:
    """Return a text of the sample's size."""
    return base64.b64encode(sample[: len(sample) // 4 * 3].data).decode()


def many_files(make: Callable[[np.ndarray[Any, Any]], bytes], suffix: str) -> Callable[[Path, int, int], None]:
    """Return the maker of a folder with a file for each sample."""

    def made(folder: Path, size: int, total: int) -> None:
        contents = noise(size)
        for number in range(max(_DIFFERENT, total // size)):
            path = folder / f"{number % 2}" / f"{number:06d}{suffix}"
            path.parent.mkdir(exist_ok=True)
            first = folder / f"{number % _DIFFERENT % 2}" / f"{number % _DIFFERENT:06d}{suffix}"
            if number < _DIFFERENT:
                path.write_bytes(make(next(contents)))
            else:
                os.link(first, path)

    return made


def linked(
    write: Callable[[Path, int, int], None], name: str, held: int = _FILE_BYTES
) -> Callable[[Path, int, int], None]:
    """Return the maker of a folder of equal files with many samples each; `write` writes one."""

    def made(folder: Path, size: int, total: int) -> None:
        held_here = max(size, min(held, total))
        first = folder / name.format(0)
        write(first, size, held_here)
        for number in range(1, max(1, total // held_here)):
            os.link(first, folder / name.format(number))

    return made


def write_tar(path: Path, size: int, total: int) -> None:
    """Write a tar file."""
    with path.open("wb") as file:
        for number, sample in enumerate(some(size, total)):
            head = tarfile.TarInfo(f"{number:08d}.bin")
            head.size = len(sample)
            file.write(head.tobuf())
            file.write(sample.data)
            file.write(bytes(-len(sample) % tarfile.BLOCKSIZE))
        file.write(bytes(2 * tarfile.BLOCKSIZE))


def write_jsonl(path: Path, size: int, total: int) -> None:
    """Write lines of JSON."""
    with path.open("w") as file:
        for number, sample in enumerate(some(size, total)):
            file.write(f'{{"i": {number}, "x": "{text(sample)}"}}\n')


def write_csv(path: Path, size: int, total: int) -> None:
    """Write a table as text."""
    with path.open("w") as file:
        file.write("i,x\n")
        for number, sample in enumerate(some(size, total)):
            file.write(f"{number},{text(sample)}\n")


def _table(size: int, total: int) -> Any:
    """Return a table of Arrow whose values are in the memory of a few, in arrays of some megabytes or of one value."""
    import pyarrow

    held, contents = max(1, _BLOCK // size), noise(size)
    few = [pyarrow.array([next(contents).tobytes() for _ in range(held)], pyarrow.binary()) for _ in range(_DIFFERENT)]
    count = max(1, total // size // held)
    values = pyarrow.chunked_array([few[i % len(few)] for i in range(count)])
    return pyarrow.table({"x": values, "i": range(len(values))})


def write_parquet(path: Path, size: int, total: int) -> None:
    """Write one row group, in pages of a megabyte or of one value."""
    import pyarrow.parquet

    table = _table(size, total)
    pyarrow.parquet.write_table(table, path, row_group_size=len(table), write_batch_size=1)


def write_parquet_pages(path: Path, size: int, total: int) -> None:
    """Write one row group as PyArrow does by default: up to 1,024 values in a page."""
    import pyarrow.parquet

    values = pyarrow.array((sample.tobytes() for sample in some(size, total)), pyarrow.binary())
    table = pyarrow.table({"x": values, "i": range(len(values))})
    pyarrow.parquet.write_table(table, path, row_group_size=len(table))


def write_arrow(path: Path, size: int, total: int) -> None:
    """Write a stream of Arrow."""
    import pyarrow

    table = _table(size, total)
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=1000)


def saved(folder: Path, size: int, total: int) -> None:
    """Make a folder as `Dataset.save_to_disk` does."""
    linked(write_arrow, "data-{:05d}.arrow")(folder, size, total)
    files = [{"filename": path.name} for path in sorted(folder.glob("*.arrow"))]
    (folder / "state.json").write_text(json.dumps({"_data_files": files}))


def mds(folder: Path, size: int, total: int) -> None:
    """Write MDS shards of one column of bytes."""
    linked(_write_mds, "shard.{:05d}.mds")(folder, size, total)
    count = json.loads((folder / "count.json").read_text())
    (folder / "count.json").unlink()
    shards = [
        {
            "column_encodings": ["bytes"], "column_names": ["x"], "column_sizes": [None], "compression": None,
            "format": "mds", "hashes": [],
            "raw_data": {"basename": path.name, "bytes": path.stat().st_size, "hashes": {}},
            "samples": count, "size_limit": None, "version": 2, "zip_data": None,
        }
        for path in sorted(folder.glob("*.mds"))
    ]  # fmt: skip
    (folder / "index.json").write_text(json.dumps({"shards": shards, "version": 2}))


def _write_mds(path: Path, size: int, total: int) -> None:
    count = max(1, total // size)
    columns = json.dumps({"column_names": ["x"]}).encode()
    first = 4 + 4 * (count + 1) + len(columns)
    with path.open("wb") as file:
        file.write(struct.pack(f"<{count + 2}I", count, *(first + number * (4 + size) for number in range(count + 1))))
        file.write(columns)
        for sample in some(size, total):
            file.write(struct.pack("<I", size))
            file.write(sample.data)
    (path.parent / "count.json").write_text(str(count))


def write_tokens(path: Path, size: int, total: int) -> None:
    """Write a file of tokens, of which two bytes are one."""
    with path.open("wb") as file:
        for sample in some(size, total):
            file.write(sample.data)


SOURCES: Final[dict[str, tuple[int, Callable[[Path, int, int], None] | None]]] = {
    "generator": (2, None),
    "generator of arrays": (2, None),
    "list": (1, None),
    "object with an index": (1, None),
    "Dataset of Hugging Face": (2, saved),
    "append": (2, None),
    "images": (1, many_files(bitmap, ".bmp")),
    "audio": (1, many_files(wave, ".wav")),
    "tar": (2, linked(write_tar, "{:05d}.tar")),
    "parquet": (2, linked(write_parquet, "{:05d}.parquet", _ROW_GROUP_BYTES)),
    "parquet, default pages": (2, linked(write_parquet_pages, "{:05d}.parquet", _ROW_GROUP_BYTES)),
    "save_to_disk": (2, saved),
    "mds": (2, mds),
    "jsonl": (2, linked(write_jsonl, "{:05d}.jsonl")),
    "csv": (2, linked(write_csv, "{:05d}.csv")),
    "tokens": (1, linked(write_tokens, "{:05d}.bin")),
}
"""Source -> how often each byte is written, and the function that makes its files."""


def passes_of(source: str, size: int) -> int:
    """Return how often Brand writes each byte: lists of small samples are written twice."""
    return 2 if source == "list" and size < LARGE else SOURCES[source][0]


def from_python(source: str, size: int, total: int) -> Any:
    """Return the samples that `brand.pack` gets; None if the source is files."""
    if source in ("generator", "append"):
        return ({"x": sample.tobytes()} for sample in some(size, total))
    if source == "generator of arrays":
        return ({"x": sample.copy()} for sample in some(size, total))
    if source == "list":
        return [{"x": sample} for sample in some(size, total)]
    return Items(size, total) if source == "object with an index" else None


def read(source: str, folder: Path, size: int, total: int) -> None:
    """Read the source alone."""
    samples = from_python(source, size, total)
    if isinstance(samples, Items):
        for number in range(len(samples)):
            samples[number]
        return
    for _ in samples or ():
        pass
    memory = bytearray(_BLOCK)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb", buffering=0) as file:
            while file.readinto(memory):
                pass


def write(folder: Path, total: int, passes: int) -> None:
    """Write the bytes alone."""
    block = np.random.default_rng(0).bytes(_BLOCK)
    blocks, scratch = max(1, total // _BLOCK), folder / "scratch"
    if passes > 1:
        with scratch.open("wb", buffering=0) as file:
            for _ in range(blocks):
                file.write(block)
    memory = bytearray(block)
    with (scratch if passes > 1 else Path("/dev/zero")).open("rb", buffering=0) as source:
        for first in range(0, blocks, _CHUNK // _BLOCK):
            with (folder / f"{first}").open("wb", buffering=0) as file:
                for _ in range(min(_CHUNK // _BLOCK, blocks - first)):
                    if passes > 1:
                        source.readinto(memory)
                    file.write(memory)
                os.fsync(file.fileno())


def convert(source: str, folder: Path, out: Path, size: int, total: int) -> None:
    """Convert, in the limited process. Nothing is compressed, so that the disk gets all bytes."""
    import brand
    from brand.chunker import Options, convert_audio, convert_from, convert_images, convert_tokens
    from brand.chunker.importers.tokens import TokenOptions
    from brand.collect.append import append_samples

    options = Options(compression="none")
    samples, schema = (
        from_python(source, size, total),
        {"x": "bytes" if source in ("generator", "append") else "ndarray"},
    )
    if source == "append":
        append_samples(samples, out, schema, options=options)
    elif samples is not None:
        brand.pack(samples, out, schema, compression="none")
    elif source == "Dataset of Hugging Face":
        import datasets

        parts = [datasets.Dataset.from_file(str(path)) for path in sorted(folder.glob("*.arrow"))]
        brand.pack(datasets.concatenate_datasets(parts), out, compression="none")
    elif source == "images":
        convert_images(folder, out, options)
    elif source == "audio":
        convert_audio(folder, out, options)
    elif source == "tokens":
        convert_tokens(folder / "*.bin", out, options, tokens=TokenOptions(dtype="uint16", block=size // 2))
    else:
        kinds = {"tar": "webdataset", "parquet, default pages": "parquet", "save_to_disk": "hf"}
        convert_from(kinds.get(source, source), folder, out, options)


def limited(step: str, source: str, size: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Do one step in control groups of its own, and return the measurements of `bench.lab`, with the step's seconds."""
    report, seen = arguments.work / "report.json", arguments.work / "seen.json"
    report.unlink(missing_ok=True)
    memory = int(GROUP_BYTES + SAMPLES_HELD * size_of(size))
    words = ["--work", arguments.work, "--gigabytes", arguments.gigabytes, "--step", step, "--sources", source]
    command = [sys.executable, "-m", "bench.large_samples", *words, "--sizes", size]
    lab = [sys.executable, "-m", "bench.lab", "--memory", memory, "--path", arguments.work, "--json", seen]
    lab += ["--timeout", arguments.limit, "--", *command]
    done = subprocess.run(list(map(str, lab)), capture_output=True, text=True, check=False)
    if not seen.exists():
        raise RuntimeError(done.stderr)
    found: dict[str, Any] = json.loads(seen.read_text())
    seen.unlink()
    told = json.loads(report.read_text()) if report.exists() else {"seconds": None}
    return {**found, **told, "command": step, "error": done.stderr[-2000:] if found["exit_code"] else ""}


def measure(source: str, size: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Make the files of a source, and measure the three steps."""
    passes, make = passes_of(source, int(size_of(size))), SOURCES[source][1]
    folder, out = arguments.work / "source", arguments.work / "out"
    for path in (folder, out):
        shutil.rmtree(path, ignore_errors=True)
    folder.mkdir()
    total = int(arguments.gigabytes * 1e9)
    if make is not None:
        make(folder, int(size_of(size)), total)
    found: dict[str, Any] = {"source": source, "size": size, "passes": passes, "gigabytes": arguments.gigabytes}
    for step in ("read", "write", "convert"):
        shutil.rmtree(out, ignore_errors=True)
        found[step] = limited(step, source, size, arguments)
    for path in (folder, out):
        shutil.rmtree(path, ignore_errors=True)
    return found


def step(arguments: argparse.Namespace) -> None:
    """Do one step, in the limited process, and write its seconds."""
    (source,), size = arguments.sources, int(size_of(*arguments.sizes))
    folder, out, total = arguments.work / "source", arguments.work / "out", int(arguments.gigabytes * 1e9)
    if arguments.step == "convert":  # imports take a second, and the conversion of 2 GB a few
        for name in ("brand.collect.append", *(["datasets"] if source.startswith("Dataset") else ["pyarrow.parquet"])):
            import_module(name)
    started = time.perf_counter()
    if arguments.step == "read":
        read(source, folder, size, total)
    elif arguments.step == "write":
        out.mkdir()
        write(out, total, passes_of(source, size))
    else:
        convert(source, folder, out, size, total)
    seconds = time.perf_counter() - started
    (arguments.work / "report.json").write_text(json.dumps({"seconds": seconds}))


def row_of(found: dict[str, Any]) -> list[str]:
    """Return a line of the table."""
    rates = [
        found["gigabytes"] / found[step]["seconds"] if found[step]["seconds"] else None
        for step in ("read", "write", "convert")
    ]
    converted = found["convert"]
    slower = min(rate for rate in rates[:2] if rate)
    ended = "killed" if converted["oom_kills"] else "fits" if not converted["exit_code"] else "error"
    return [
        found["source"],
        found["size"],
        f"{converted['limits']['memory'] / 1e6:,.0f}",
        f"{converted['peak_rss_bytes'] / 1e6:,.0f}",
        *("" if rate is None else f"{rate:.2f}" for rate in rates),
        "" if rates[2] is None else f"{rates[2] / slower:.2f}",
        f"{(found['read']['cpu_s'] + found['write']['cpu_s']) / found['gigabytes']:.1f}",
        f"{converted['cpu_s'] / found['gigabytes']:.1f}",
        ended,
    ]


def main() -> None:
    """Run as parent, or as a limited process (`--step`)."""
    parser = harness.parser("bench.large_samples", __doc__, data=False, repeat=1)
    parser.add_argument("--gigabytes", type=float, default=8.0)
    parser.add_argument("--sources", nargs="+", default=list(SOURCES), choices=SOURCES, metavar="SOURCE")
    parser.add_argument("--sizes", nargs="+", default=["100kB", "2MB", "20MB", "147MB"], metavar="SIZE")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        step(arguments)
        return
    arguments.work.mkdir(parents=True, exist_ok=True)
    kept = arguments.work / f"measured-{arguments.gigabytes:g}.json"
    measured: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    for size in arguments.sizes:
        for source in arguments.sources:
            if f"{source} {size}" not in measured:
                found = measured[f"{source} {size}"] = measure(source, size, arguments)
                kept.write_text(json.dumps(measured))
                harness.progress(" | ".join(row_of(found)) + " " + found["convert"]["error"][-300:])
    results = [measured[f"{source} {size}"] for source in arguments.sources for size in arguments.sizes]
    columns = ["source", "sample", "limit MB", "peak MB", "source GB/s", "disk GB/s", "Brand GB/s", "of the slower"]
    harness.show(harness.table([*columns, "CPU-s/GB alone", "of Brand", "ended"], map(row_of, results)))
    if arguments.out:
        settings = {"gigabytes": arguments.gigabytes, "group_bytes": GROUP_BYTES, "samples_held": SAMPLES_HELD}
        harness.save(arguments.out, __doc__, settings, [], results)


if __name__ == "__main__":
    main()
