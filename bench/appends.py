"""Do appending to a collection, opening it and an epoch cost at 10,000 appends what they cost at 10? Brand

    python -m bench.appends --work SCRATCH [--appends 10000] [--samples 20] [--out bench/results/appends.json]

1. A process appends samples of 30 to 80 bytes from Python, `--samples` at a time, and measures each append: once with
   `compact=True`, once without it, up to the limit of segments.
2. After 10, 100, 1,000, ... appends it opens the collection, reads its last sample, and trains for an epoch with
   batches of 256: from a new `BrandDataset` to the last batch, the start of a data server included. Every sample is
   checked.

"append": the median of the last 100 appends; "slowest": of those since the row before, merges included. "disk": the
chunks of all versions over those of the present one, in bytes; `brand compact --forget` removes the others.
Modules are imported before, and the page cache is warm.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench import harness
from bench.harness import Outcome, Rival

FIELDS: Final = {"key": "str", "number": "int", "data": "bytes"}
BATCH: Final = 256
COLUMNS: Final = (
    "appends",
    "segments",
    "append ms",
    "slowest ms",
    "open ms",
    "last sample ms",
    "epoch s",
    "disk",
)


def rows_of(append: int, samples: int) -> list[dict[str, Any]]:
    """Return the samples of an append, whose numbers are their indices."""
    first = append * samples
    return [
        {"key": f"night-{append}/{number}", "number": number, "data": bytes(number % 50)}
        for number in range(first, first + samples)
    ]


def appended(folder: Path, appends: int, samples: int, *, compact: bool) -> list[dict[str, Any]]:
    """Append, and return a row of figures for each power of ten and for the last append."""
    from brand.chunker import Options
    from brand.collect import append_samples

    marks = sorted({10**power for power in range(1, 9) if 10**power < appends} | {appends})
    seconds: list[float] = []
    found: list[dict[str, Any]] = []
    before = 0
    for append in range(appends):
        new = Options(jobs=1, chunk_size=None if append else BATCH, compression="auto" if append else "none")
        some = rows_of(append, samples)
        started = time.perf_counter()
        append_samples(some, folder, FIELDS, options=new, compact=compact)
        seconds.append(time.perf_counter() - started)
        if append + 1 in marks:
            times = {"append_s": statistics.median(seconds[-100:]), "slowest_s": max(seconds[before:])}
            found.append({"appends": append + 1, **times, **_measured(folder, (append + 1) * samples)})
            before = append + 1
    return found


def _measured(folder: Path, samples: int) -> dict[str, Any]:
    from brand import BrandDataset
    from brand.storage.io.location import present_version

    started = time.perf_counter()
    data = BrandDataset(folder, server="none")
    open_s = time.perf_counter() - started
    started = time.perf_counter()
    if data[samples - 1]["number"] != samples - 1:
        raise RuntimeError("the last sample is another one")
    read_s = time.perf_counter() - started
    parts = [part.id for part in present_version(folder).parts if part.id is not None]
    held = {path.name: _bytes(path) for path in (folder / "parts").iterdir()}
    return {
        "segments": len(parts),
        "open_s": open_s,
        "read_s": read_s,
        "epoch_s": _epoch(folder, samples),
        "copies": sum(held.values()) / sum(held[part] for part in parts),
    }


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("chunks/*"))


def _epoch(folder: Path, samples: int) -> float:
    from brand import BrandDataset, BrandLoader

    started = time.perf_counter()
    found: list[int] = []
    loader = BrandLoader(BrandDataset(folder, fields=("index", "number")), batch_size=BATCH)
    for index, number in loader:
        if (index != number).any():
            raise RuntimeError("a sample has the index of another one")
        found += index.tolist()
    taken = time.perf_counter() - started
    if sorted(found) != list(range(samples)):
        raise RuntimeError("an epoch has not every sample once")
    return taken


def table_of(outcomes: list[Outcome], rivals: list[Rival]) -> str:
    """Return a table for each way."""
    shown = []
    for rival in rivals:
        for outcome in (each for each in outcomes if each.rival == rival.name and each.status == "ok"):
            rows = [
                [
                    f"{row['appends']:,}",
                    str(row["segments"]),
                    *(f"{row[name] * 1e3:.1f}" for name in ("append_s", "slowest_s", "open_s", "read_s")),
                    f"{row['epoch_s']:.2f}",
                    f"{row['copies']:.1f}",
                ]
                for row in outcome.values["rows"]
            ]
            shown.append(f"{rival.name}\n{harness.table(COLUMNS, rows)}")
    return "\n\n".join(shown) + harness.failures(outcomes)


def measure(arguments: argparse.Namespace, rival: Rival) -> Outcome:
    """Append in a fresh process."""
    return harness.run_fresh(rival, "bench.appends", [], arguments.limit)


def main() -> None:
    """Run as parent or child, as `--rival` says."""
    parser = harness.parser("bench.appends", __doc__, data=False, repeat=1)
    parser.add_argument("--appends", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=20, help="samples of each append (%(default)s)")
    arguments = parser.parse_args()
    with_, without = Rival("with compact=True", "brand", "brand-data"), Rival("without", "brand", "brand-data")
    if arguments.rival:
        from brand.collect.home import MOST_PARTS

        compact, folder = arguments.rival == with_.name, Path(arguments.work, "appends.brand")
        shutil.rmtree(folder, ignore_errors=True)
        appends = arguments.appends if compact else min(arguments.appends, MOST_PARTS)
        rows = appended(folder, appends, arguments.samples, compact=compact)
        shutil.rmtree(folder)
        harness.report(arguments.report, {"rows": rows})
        return
    arguments.work.mkdir(parents=True, exist_ok=True)
    outcomes = harness.round_robin([with_, without], arguments.repeat, partial(measure, arguments))
    harness.show(table_of(outcomes, [with_, without]))
    if arguments.out:
        settings = {"appends": arguments.appends, "samples": arguments.samples, "batch": BATCH}
        harness.save(arguments.out, __doc__, settings, [with_, without], outcomes)


if __name__ == "__main__":
    main()
