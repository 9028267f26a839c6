"""Does converting records of 8 bytes cost at 100 million samples what it costs at 1 million? Rate, CPU and memory

    python -m bench.scale_convert --work SCRATCH [--millions 1 10 100] [--out bench/results/scale-convert.json]

- `pack`: `brand.pack` of a generator of `{"value": i}`, a field of type `int`. The generator's time is included.
- `parquet`: what `brand convert parquet` does, of a file with one column of 64-bit numbers that is written beforehand.

Each conversion runs in a fresh process with two workers, and its data set is removed afterwards. Up to 10 million
samples it runs `--repeat` times, in turns, and the median is shown; larger ones run once. 100 million samples need
20 GB of disk. Columns: samples per second of wall time; user and system time of all processes, in microseconds a
sample; peak resident memory of the command and of the largest worker; written data set in bytes a sample.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Final

from bench import harness, system
from bench.harness import Outcome, Rival

WAYS: Final = ("pack", "parquet")
WORKERS: Final = 2
OFTEN: Final = 10
"""Up to this many million samples, conversions are repeated."""
_ROWS: Final = 1 << 20


def source_file(work: Path, samples: int) -> Path:
    """Return the Parquet file with this many rows; write it first if need be."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = work / f"numbers-{samples}.parquet"
    if not path.exists():
        part = path.with_suffix(".part")
        with pq.ParquetWriter(
            part, pa.schema([("value", pa.int64())]), compression="none", use_dictionary=False
        ) as out:
            for first in range(0, samples, _ROWS):
                values = pa.array(range(first, min(first + _ROWS, samples)), pa.int64())
                out.write_table(pa.table({"value": values}))
        part.rename(path)
    return path


def convert(way: str, samples: int, work: Path) -> dict[str, float]:
    """Convert once, and return the figures of this process and its workers."""
    import brand
    from brand.chunker import Options, convert_from

    out = work / "converted"
    shutil.rmtree(out, ignore_errors=True)
    started, before = time.perf_counter(), os.times()
    if way == "pack":
        brand.pack(({"value": i} for i in range(samples)), out, {"value": "int"}, jobs=WORKERS)
    else:
        convert_from("parquet", work / f"numbers-{samples}.parquet", out, Options(jobs=WORKERS))
    seconds, after = time.perf_counter() - started, os.times()
    own, workers = (resource.getrusage(who).ru_maxrss << 10 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    stored = system.disk_usage(out)[0]
    shutil.rmtree(out)
    return {
        "call_s": seconds,
        "user_s": after.user + after.children_user - before.user - before.children_user,
        "system_s": after.system + after.children_system - before.system - before.children_system,
        "peak_bytes": own,
        "peak_bytes_of_a_worker": workers,
        "bytes_a_sample": stored / samples,
    }


def table_of(outcomes: list[Outcome], names: list[str]) -> str:
    """Tabulate the medians, and each way's rate and CPU time beside those of its fewest samples."""
    columns = ["conversion", "samples/s", "user us", "system us", "peak MB", "peak MB of a worker", "bytes a sample"]
    rows, first, compared = list[list[str]](), dict[str, tuple[float, float]](), list[str]()
    for name in names:
        failure = harness.first_failure(outcomes, name)
        if failure:
            rows.append([name, failure.status, *[""] * (len(columns) - 2)])
            continue
        way, samples = parsed(name)

        def median(key: str, name: str = name) -> float:
            return harness.median_of(outcomes, name, lambda outcome: float(outcome.values[key])) or 0.0

        rate, user, kernel = samples / median("call_s"), median("user_s") / samples, median("system_s") / samples
        memory = [f"{median(key) / 1e6:,.0f}" for key in ("peak_bytes", "peak_bytes_of_a_worker")]
        stored = f"{median('bytes_a_sample'):.0f}"
        rows.append([name, f"{rate:,.0f}", f"{user * 1e6:.2f}", f"{kernel * 1e6:.2f}", *memory, stored])
        if way in first:
            faster, cheaper = rate / first[way][0], first[way][1] / (user + kernel)
            compared.append(f"{name}: {faster:.2f} of the rate of the first, {cheaper:.2f} by CPU time")
        else:
            first[way] = rate, user + kernel
    return "\n".join([harness.table(columns, rows), *compared]) + harness.failures(outcomes)


def parsed(name: str) -> tuple[str, int]:
    """Return way and number of samples of a name in the table."""
    way, _, millions = name.partition(", ")
    return way, int(float(millions.split()[0]) * 1e6)


def measure(arguments: argparse.Namespace, rival: Rival) -> Outcome:
    """Convert in a fresh process."""
    return harness.run_fresh(rival, "bench.scale_convert", [], arguments.limit)


def main() -> None:
    """Run as parent or child, as `--rival` says."""
    parser = harness.parser("bench.scale_convert", __doc__, data=False)
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 10, 100])
    parser.add_argument("--ways", choices=WAYS, nargs="+", default=WAYS)
    arguments = parser.parse_args()
    if arguments.rival:
        harness.report(arguments.report, convert(*parsed(arguments.rival), arguments.work))
        return
    arguments.work.mkdir(parents=True, exist_ok=True)
    often = [millions for millions in arguments.millions if millions <= OFTEN]
    outcomes = list[Outcome]()
    for sizes, repeat in ((often, arguments.repeat), ([m for m in arguments.millions if m > OFTEN], 1)):
        if "parquet" in arguments.ways:
            for millions in sizes:
                source_file(arguments.work, int(millions * 1e6))
        rivals = [Rival(f"{way}, {m:g} million", "brand", "brand-data") for m in sizes for way in arguments.ways]
        outcomes += harness.round_robin(rivals, repeat, partial(measure, arguments))
    names = [f"{way}, {millions:g} million" for way in arguments.ways for millions in arguments.millions]
    harness.show(table_of(outcomes, names))
    if arguments.out:
        settings = {"workers": WORKERS, "repeated_up_to_million": OFTEN}
        harness.save(arguments.out, __doc__, settings, [Rival("brand", "brand", "brand-data")], outcomes)


if __name__ == "__main__":
    main()
