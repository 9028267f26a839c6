"""How long does `brand convert FORMAT` take, are its samples correct, and how much memory do 10 GB of rows take?

    python -m bench.imports --data DATA --work SCRATCH [--gigabytes 10] [--out bench/results/imports.json]

The images of DATA/images (bytes, label, key) and the records of DATA/text (four texts) are written once by each rival's
own writer, with two processes (converters.py; Parquet by pyarrow, with one). Three tasks for each, in turns:

- "writes": the rival's own conversion, from the image folder, or from records in memory, into its format.
- "reads": the rival's own reader reads its format once, in order, in one process, without decoding images.
- "brand": `brand convert FORMAT`, with two processes and with its start, from the rival's format.

Then every sample of Brand's data set is compared with the sample that the rival's reader returns for this index
("equal").

The last task, "rows", writes JSON lines and Parquet of `--gigabytes` of about 2 KiB of text each, and converts them
with two processes, while a watcher samples the memory of the whole process tree every 50 ms (convert_memory.py defines
the columns of memory). The digests of all samples, as the format's library and as Brand read them, are compared
("equal").
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash

from bench import harness, system
from bench.convert_memory import EVERY_S, RECORD_BYTES, Peaks, some_text
from bench.converters import CONVERTERS as OTHERS
from bench.converters import LITDATA, MOSAICML, WEBDATASET, Converter
from bench.harness import Outcome, Rival
from bench.mosaicml import load_streaming
from bench.sources import list_images, load_records

PYARROW: Final = Rival("pyarrow", "pyarrow", "pyarrow")
FORMATS: Final = {"mds": MOSAICML, "litdata": LITDATA, "webdataset": WEBDATASET, "parquet": PYARROW}
TASKS: Final = ("images", "text")
STEPS: Final = ("writes", "reads", "brand")
ROWS: Final = ("jsonl", "parquet")
_ROWS_A_GROUP: Final = 20_000
_FILES: Final = 20
_AT_ONCE: Final = 20_000
"""Samples of Brand's data set that are read together for the comparison."""
_COLUMNS: Final = ("format", "data", "samples", "writes s", "reads s", "brand s", "over writes", "equal")
_MEMORY: Final = ("rows", "GB", "USS of one MB", "PSS of all MB", "s", "MB/s", "equal")

Sample = dict[str, Any]


def write(kind: str, task: str, data: Path, out: Path) -> None:
    """Convert with the rival's own writer."""
    if kind == "parquet":
        _write_parquet(_samples_of(task, data), out)
        return
    converter: Converter = next(c for c in OTHERS if c.rival == FORMATS[kind])
    if task == "images":
        converter.images(data / "images", out)()
    else:
        converter.records(load_records(data / "text"), out)()


def _samples_of(task: str, data: Path) -> Iterator[Sample]:
    if task == "text":
        yield from load_records(data / "text")
        return
    for file in list_images(data / "images"):
        yield {"image": file.path.read_bytes(), "label": file.label, "key": file.key}


def _write_parquet(samples: Iterator[Sample], out: Path) -> None:
    pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    out.mkdir()
    number = 0
    while rows := list(islice(samples, _ROWS_A_GROUP // 20)):
        parquet.write_table(pyarrow.Table.from_pylist(rows), out / f"{number:05d}.parquet")
        number += 1


def read(kind: str, folder: Path) -> Iterator[Sample]:
    """Yield the samples that the rival's own reader returns, in order."""
    if kind == "mds":
        data = load_streaming().LocalDataset(str(folder))
        yield from (data[i] for i in range(len(data)))
    elif kind == "litdata":
        data = import_module("litdata").StreamingDataset(str(folder), shuffle=False)
        yield from (data[i] for i in range(len(data)))
    elif kind == "webdataset":
        shards = [str(path) for path in sorted(folder.glob("*.tar"))]
        for sample in import_module("webdataset").WebDataset(shards, shardshuffle=False):
            yield json.loads(sample["json"]) if "json" in sample else _of_tar(sample)
    else:
        parquet = import_module("pyarrow.parquet")
        for path in sorted(folder.glob("*.parquet")):
            yield from parquet.read_table(path).to_pylist()


def _of_tar(sample: Sample) -> Sample:
    return {"image": sample["image"], "label": int(sample["cls"]), "key": sample["__key__"]}


def compare(kind: str, folder: Path, out: Path) -> int:
    """Compare every sample with the rival's; return the number of samples. Raises `RuntimeError` if they differ."""
    import brand

    stored, count = brand.BrandDataset(out, decode=False), 0
    places = [range(first, min(first + _AT_ONCE, len(stored))) for first in range(0, len(stored), _AT_ONCE)]
    found = (sample for some in places for sample in stored.__getitems__(list(some)))
    for expected, sample in zip_longest(read(kind, folder), found):
        if expected is None or sample is None:
            raise RuntimeError("the data sets differ in their number of samples")
        told = sample.get("json", sample)
        different = [name for name, value in expected.items() if _plain(told[name]) != _plain(value)]
        if different:
            raise RuntimeError(f"sample {count}: {', '.join(different)} differ")
        count += 1
    return count


def compare_rows(kind: str, folder: Path, out: Path) -> int:
    """Compare the digest of all rows, each with its index; return their number. Raises `RuntimeError` if it differs.

    A sum of checksums does not depend on the order, so Brand's samples are read in stored order.
    """
    import brand
    from brand.storage.dataset.dataset import StoredDataSet

    stored, order = brand.BrandDataset(out, decode=False), StoredDataSet(out)
    places = range(0, len(stored), _AT_ONCE)
    found = (
        (sample["index"], sample)
        for first in places
        for sample in stored.__getitems__(order.indices(np.arange(first, min(first + _AT_ONCE, len(stored)))).tolist())
    )
    expected, has = _digest(enumerate(_rows_of(kind, folder))), _digest(found)
    if expected != has:
        raise RuntimeError(f"rows and digest {expected} were written, and the data set holds {has}")
    return has[0]


def _digest(samples: Iterable[tuple[int, Sample]]) -> tuple[int, int]:
    """Return the number of samples, and the sum of their checksums, each with its number."""
    count = total = 0
    for number, sample in samples:
        count += 1
        total += xxhash.xxh3_64_intdigest(f"{number} {sample['id']} {sample['text']}".encode())
    return count, total % (1 << 64)


def _rows_of(kind: str, folder: Path) -> Iterator[Sample]:
    """Yield the rows as the library of the format reads them, in order."""
    for path in sorted(folder.glob(f"*.{kind}")):
        if kind == "jsonl":
            with path.open(encoding="utf-8") as file:
                yield from map(json.loads, file)
        else:
            for batch in import_module("pyarrow.parquet").ParquetFile(path).iter_batches(_ROWS_A_GROUP):
                yield from batch.to_pylist()


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray | memoryview) else value


def measure_once(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one step for one format and kind of data, in the fresh process."""
    kind, task, step = arguments.rival.split()
    source, out = arguments.work / f"{task}-{kind}", arguments.work / f"{task}-{kind}.brand"
    before = time.perf_counter()
    if step == "writes":
        shutil.rmtree(source, ignore_errors=True)
        started = time.perf_counter()
        write(kind, task, arguments.data, source)
        return {"call_s": time.perf_counter() - started, "untimed_s": 0.0}
    if step == "reads":
        started = time.perf_counter()
        samples = sum(1 for _ in read(kind, source))
        return {"call_s": time.perf_counter() - started, "samples": samples, "untimed_s": started - before}
    shutil.rmtree(out, ignore_errors=True)
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "brand", "convert", kind, source, out, "-j", "2", "--json"], check=True)
    call_s = time.perf_counter() - started
    equal = compare(kind, source, out)
    shutil.rmtree(out)
    return {"call_s": call_s, "samples": equal, "untimed_s": time.perf_counter() - started - call_s}


def write_rows(kind: str, arguments: argparse.Namespace, folder: Path) -> None:
    """Write rows of about 2 KiB of real text, no two alike, in 20 files."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    text = some_text(arguments.data / "text").decode("utf-8", "replace")
    span, each = len(text) - RECORD_BYTES, int(arguments.gigabytes * 1e9) // RECORD_BYTES // _FILES
    for number in range(_FILES):
        rows = ((i, _part(text, i * 7_919 % span)) for i in range(number * each, (number + 1) * each))
        path = folder / f"{number:02d}.{kind}"
        if kind == "jsonl":
            with path.open("w", encoding="utf-8") as file:
                file.writelines(json.dumps({"id": i, "text": part}, ensure_ascii=False) + "\n" for i, part in rows)
        else:
            _write_groups(path, rows)


def _part(text: str, start: int) -> str:
    return text[start : start + RECORD_BYTES]


def _write_groups(path: Path, rows: Iterator[tuple[int, str]]) -> None:
    pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    schema = pyarrow.schema([("id", "int64"), ("text", "string")])
    with parquet.ParquetWriter(path, schema) as writer:
        while some := list(islice(rows, _ROWS_A_GROUP)):
            ids, texts = zip(*some, strict=True)
            writer.write_table(pyarrow.table({"id": ids, "text": texts}, schema))


def watch(kind: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Convert the rows, and sample the memory of the process tree until it ends, in a fresh process of its own."""
    folder, out = arguments.work / f"rows-{kind}", arguments.work / f"rows-{kind}.brand"
    before = time.perf_counter()
    write_rows(kind, arguments, folder)
    shutil.rmtree(out, ignore_errors=True)
    peaks, started = Peaks(), time.perf_counter()
    command = [sys.executable, "-m", "brand", "convert", kind, str(folder), str(out), "-j", "2", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        while process.poll() is None:
            peaks.look(process.pid)
            time.sleep(EVERY_S)
        ended = time.perf_counter()
        told = json.loads(process.stdout.read()) if process.stdout else {}
    if process.returncode:
        raise RuntimeError(f"the conversion ended with status {process.returncode}: {told}")
    size, equal = system.disk_usage(folder)[0], compare_rows(kind, folder, out)
    shutil.rmtree(out)
    shutil.rmtree(folder)
    return {
        "call_s": ended - started,
        "samples": equal,
        "source_bytes": size,
        "record_bytes": told["source_bytes"],
        "private_of_one": peaks.private_of_one,
        "proportional_of_all": peaks.proportional_of_all,
        "untimed_s": started - before + time.perf_counter() - ended,
    }


def table_of(outcomes: list[Outcome]) -> str:
    """Tabulate the medians, one line for each format and kind of data; then the memory."""
    rows, memory = [], []

    def median(name: str, key: str = "call_s") -> float | None:
        return harness.median_of(outcomes, name, lambda outcome: float(outcome.values[key]))

    for task in TASKS:
        for kind in FORMATS:
            seconds = [median(f"{kind} {task} {step}") for step in STEPS]
            samples = median(f"{kind} {task} brand", "samples")
            told = [f"{s:.2f}" if s is not None else "" for s in seconds]
            ratio = f"x{seconds[2] / seconds[0]:.2f}" if seconds[0] and seconds[2] else ""
            rows.append([kind, task, f"{samples or 0:,.0f}", *told, ratio, "all" if samples else ""])
    for kind in ROWS:
        call = median(kind)
        if call:
            size = median(kind, "record_bytes") or 0.0
            one, everything = (median(kind, key) or 0.0 for key in ("private_of_one", "proportional_of_all"))
            numbers = [size / 1e9, one / 1e6, everything / 1e6, call, size / 1e6 / call]
            memory.append([kind, *(f"{number:,.1f}" for number in numbers), "all"])
    return harness.table(_COLUMNS, rows) + "\n\n" + harness.table(_MEMORY, memory) + harness.failures(outcomes)


def measure(rival: Rival, limit_s: float) -> Outcome:
    """Measure one step."""
    return harness.run_fresh(rival, "bench.imports", [], limit_s)


def main() -> None:
    """Run as parent, or as child (`--rival`)."""
    parser = harness.parser("bench.imports", __doc__)
    parser.add_argument("--gigabytes", type=float, default=10.0, help="gigabytes of rows (%(default)s)")
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=ROWS, help="formats of rows (all)")
    arguments = parser.parse_args()
    if arguments.rival:
        work: Callable[[argparse.Namespace], dict[str, Any]] = measure_once
        if arguments.rival in ROWS:
            work = partial(watch, arguments.rival)
        harness.report(arguments.report, work(arguments))
        return
    arguments.work.mkdir(parents=True, exist_ok=True)
    steps = [
        Rival(f"{kind} {task} {step}", rival.module, rival.distribution)
        for task in TASKS
        for kind, rival in FORMATS.items()
        for step in STEPS
    ]
    outcomes = harness.round_robin(steps, arguments.repeat, lambda rival: measure(rival, arguments.limit))
    rows = [Rival(kind, "brand", "brand-data") for kind in arguments.rows]
    outcomes += harness.round_robin(rows, 1, lambda rival: measure(rival, arguments.limit))
    harness.show(table_of(outcomes))
    if arguments.out:
        settings = {"gigabytes": arguments.gigabytes, "processes": 2, "looks_every_s": EVERY_S}
        harness.save(arguments.out, __doc__, settings, [*FORMATS.values(), *rows], outcomes)


if __name__ == "__main__":
    main()
