"""Do appending to a collection, opening it and an epoch cost at 10,000 appends what they cost at 10? Brand

    python -m bench.appends --work SCRATCH [--appends 10000] [--samples 20] [--out bench/results/appends.json]

1. A process appends samples of 30 to 80 bytes from Python, `--samples` at a time, and measures each append: once with
   `compact=True`, once without it, up to the limit of segments.
2. After 10, 100, 1,000, ... appends it opens the collection five times, reads its last sample, and trains for an epoch
   with batches of 256: from a new `BrandDataset` to the last batch, the start of a data server included. Every sample
   is checked.
3. "as one data set": `brand.pack` writes that many samples at once, and step 2 measures what a collection costs more.

"append": the median of the last 100 appends; "mean": of all since the row before, merges included; "slowest": of these.
"open": the median. "CPU": seconds of the process, and of the data server for an epoch. "version": the file of the
present version. "disk": the chunks of all versions over those of the present one, in bytes; `brand compact --forget`
removes the others. Modules are imported before, and the page cache is warm.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench import harness
from bench.harness import Outcome, Rival
from bench.system import cpu_s, cpu_s_of

FIELDS: Final = {"key": "str", "number": "int", "data": "bytes"}
BATCH: Final = 256
OPENINGS: Final = 5
COLUMNS: Final = (
    "appends",
    "segments",
    "append ms",
    "append CPU ms",
    "mean CPU ms",
    "slowest ms",
    "open ms",
    "open CPU ms",
    "last sample ms",
    "epoch s",
    "epoch CPU s",
    "version kB",
    "disk",
)
COMPACT, PLAIN, ONE = (
    Rival(name, "brand", "brand-data") for name in ("with compact=True", "without", "as one data set")
)


def rows_of(append: int, samples: int) -> list[dict[str, Any]]:
    """Return the samples of an append, whose numbers are their indices."""
    first = append * samples
    return [
        {"key": f"night-{append}/{number}", "number": number, "data": bytes(number % 50)}
        for number in range(first, first + samples)
    ]


def marks_of(appends: int) -> list[int]:
    """Return the numbers of appends after which a row is measured: powers of ten, and the last one."""
    return sorted({10**power for power in range(1, 9) if 10**power < appends} | {appends})


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds and CPU seconds of a call in this process."""
    started, cpu = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - started, time.process_time() - cpu


def appended(folder: Path, appends: int, samples: int, *, compact: bool) -> list[dict[str, Any]]:
    """Append, and return a row of figures for each mark."""
    from brand.chunker import Options
    from brand.collect import append_samples
    from brand.formats.version import version_name
    from brand.storage.io.location import present_version

    marks = marks_of(appends)
    costs: list[tuple[float, float]] = []
    found: list[dict[str, Any]] = []
    before = 0
    for append in range(appends):
        new = Options(jobs=1, chunk_size=None if append else BATCH, compression="auto" if append else "none")
        some = rows_of(append, samples)
        costs.append(timed(partial(append_samples, some, folder, FIELDS, options=new, compact=compact)))
        if append + 1 in marks:
            version = present_version(folder)
            parts = [part.id for part in version.parts if part.id is not None]
            held = {path.name: _bytes(path) for path in (folder / "parts").iterdir()}
            found.append(
                {
                    "appends": append + 1,
                    "append_s": statistics.median(wall for wall, _ in costs[-100:]),
                    "append_cpu_s": statistics.median(cpu for _, cpu in costs[-100:]),
                    "mean_cpu_s": statistics.mean(cpu for _, cpu in costs[before:]),
                    "slowest_s": max(wall for wall, _ in costs[before:]),
                    **_measured(folder, (append + 1) * samples),
                    "segments": len(parts),
                    "version_bytes": (folder / version_name(version.number)).stat().st_size,
                    "copies": sum(held.values()) / sum(held[part] for part in parts),
                }
            )
            before = append + 1
    return found


def packed(folder: Path, appends: int, samples: int) -> list[dict[str, Any]]:
    """Return a row for each mark, measured with a data set that has that many samples."""
    from brand import pack

    found = []
    for mark in marks_of(appends):
        every = (row for append in range(mark) for row in rows_of(append, samples))
        pack(every, folder, FIELDS, chunk_size=BATCH, compression="none", jobs=1)
        found.append({"appends": mark, **_measured(folder, mark * samples)})
        shutil.rmtree(folder)
    return found


def _measured(folder: Path, samples: int) -> dict[str, Any]:
    from brand import BrandDataset

    opened = [timed(partial(BrandDataset, folder, server="none")) for _ in range(OPENINGS)]
    data = BrandDataset(folder, server="none")
    started = time.perf_counter()
    if data[samples - 1]["number"] != samples - 1:
        raise RuntimeError("the last sample is another one")
    read_s = time.perf_counter() - started
    epoch_s, epoch_cpu_s = _epoch(folder, samples)
    return {
        "open_s": statistics.median(wall for wall, _ in opened),
        "open_cpu_s": statistics.median(cpu for _, cpu in opened),
        "read_s": read_s,
        "epoch_s": epoch_s,
        "epoch_cpu_s": epoch_cpu_s,
    }


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("chunks/*"))


def _epoch(folder: Path, samples: int) -> tuple[float, float]:
    """Return seconds and CPU seconds, those of the data server included."""
    from brand import BrandDataset, BrandLoader

    started, cpu = time.perf_counter(), cpu_s()
    found: list[int] = []
    data = BrandDataset(folder, fields=("index", "number"))
    for index, number in BrandLoader(data, batch_size=BATCH):
        if (index != number).any():
            raise RuntimeError("a sample has the index of another one")
        found += index.tolist()
    taken, used = time.perf_counter() - started, cpu_s() - cpu
    if sorted(found) != list(range(samples)):
        raise RuntimeError("an epoch has not every sample once")
    return taken, used + cpu_s_of([data.stats()["process"]])


def table_of(outcomes: list[Outcome], rivals: list[Rival]) -> str:
    """Return a table for each way."""
    shown = []
    for rival in rivals:
        for outcome in (each for each in outcomes if each.rival == rival.name and each.status == "ok"):
            rows = [_shown(row) for row in outcome.values["rows"]]
            shown.append(f"{rival.name}\n{harness.table(COLUMNS, rows)}")
    return "\n\n".join(shown) + harness.failures(outcomes)


def _shown(row: dict[str, Any]) -> list[str]:
    def figure(name: str, scale: float, digits: int) -> str:
        return f"{scale * row[name]:.{digits}f}" if name in row else "-"

    names = "append_s", "append_cpu_s", "mean_cpu_s", "slowest_s", "open_s", "open_cpu_s", "read_s"
    return [
        f"{row['appends']:,}",
        str(row.get("segments", "-")),
        *(figure(name, 1e3, 1) for name in names),
        *(figure(name, 1, 2) for name in ("epoch_s", "epoch_cpu_s")),
        figure("version_bytes", 1e-3, 1),
        figure("copies", 1, 1),
    ]


def measure(arguments: argparse.Namespace, rival: Rival) -> Outcome:
    """Append in a fresh process."""
    return harness.run_fresh(rival, "bench.appends", [], arguments.limit)


def main() -> None:
    """Run as parent or child, as `--rival` says."""
    parser = harness.parser("bench.appends", __doc__, data=False, repeat=1)
    parser.add_argument("--appends", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=20, help="samples of each append (%(default)s)")
    arguments = parser.parse_args()
    rivals = [COMPACT, PLAIN, ONE]
    if arguments.rival:
        from brand.collect.home import MOST_PARTS

        folder = Path(arguments.work, "appends.brand")
        shutil.rmtree(folder, ignore_errors=True)
        if arguments.rival == ONE.name:
            rows = packed(folder, arguments.appends, arguments.samples)
        else:
            compact = arguments.rival == COMPACT.name
            appends = arguments.appends if compact else min(arguments.appends, MOST_PARTS)
            rows = appended(folder, appends, arguments.samples, compact=compact)
            shutil.rmtree(folder)
        harness.report(arguments.report, {"rows": rows})
        return
    arguments.work.mkdir(parents=True, exist_ok=True)
    outcomes = harness.round_robin(rivals, arguments.repeat, partial(measure, arguments))
    harness.show(table_of(outcomes, rivals))
    if arguments.out:
        settings = {"appends": arguments.appends, "samples": arguments.samples, "batch": BATCH}
        harness.save(arguments.out, __doc__, settings, rivals, outcomes)


if __name__ == "__main__":
    main()
