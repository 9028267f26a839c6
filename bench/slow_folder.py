"""How long is an epoch if the disk of a cache folder is slow, from the folder always, and from the faster source?

    python -m bench.slow_folder --work SCRATCH [--out FILE]

A data server with memory for 25 % of the data and a folder for 60 %, on a storage of 120 MB/s and 400 reads a second
(`nas`). One rank fetches `order="stripes"` in step and decodes nothing. The folder is filled while its disk is fast;
then the disk gets as slow as the arm says, for three epochs: one read at a time, each with a seek. `always` reads from
the folder what it holds, as the server did before it had a choice.

Three servers for each arm, in turns. Columns: `s`, `least s`, `most s`: seconds of the nine epochs, the median, the
shortest and the longest; `folder %`, `storage %`: bytes of large reads, as a fraction of the data; `bypassed`,
`misjudged`: reads, as `stats()["cache"]` counts them, in all nine. Every epoch is checked: each sample comes once, in
the order of the plan.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from bench.emulated import EmulatedStorage, pack
from bench.harness import progress, save, show, table
from brand import Cache
from brand.node.decide.reads import sources
from brand.node.serve import server as serving
from brand.node.setup.caching import cache_reader
from brand.node.setup.measure import stored_sizes
from brand.storage.cache.cachefolder import CacheFolder
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.vectored import VectorReader
from brand.testing.node import running_server
from tests.made_orders import STRIPES, order_of
from tests.several_nodes.support import Rank, check_epoch, draw_in_step, node_of

MEMORY: Final = 0.25
FOLDER: Final = 0.6
EPOCHS: Final = 3
ROUNDS: Final = 3
"""Servers for each arm, in turns."""
READ_S: Final = 150e6
"""Bytes per second of a disk after its seek."""


@dataclass(slots=True)
class Disk:
    """A disk that reads one range after the other."""

    name: str
    seek_s: float
    slow: bool = False
    """Whether reads take any time. False while the folder is filled."""
    free_s: float = 0.0
    """Time at which the reads that it has accepted end."""


class DiskReader:
    """Reads a cache folder on a disk."""

    lock = threading.Lock()

    def __init__(self, disk: Disk, inner: VectorReader) -> None:
        self._disk, self._inner = disk, inner

    def scatter(self, number: int, offset: int, size: int, vector: NDArray[np.void]) -> None:
        """Read when the disk has come to it."""
        disk = self._disk
        if disk.slow:
            with self.lock:
                disk.free_s = max(disk.free_s, time.monotonic()) + disk.seek_s + size / READ_S
                end_s = disk.free_s
            time.sleep(max(0.0, end_s - time.monotonic()))
        self._inner.scatter(number, offset, size, vector)

    def close(self) -> None:
        """Close the files."""
        self._inner.close()


def measure(path: Path, work: Path, disk: Disk) -> dict[str, Any]:
    """Fill a folder, and measure epochs on its slow disk."""

    def reader(folder: CacheFolder, *, page_cache: bool) -> VectorReader:
        return DiskReader(disk, cache_reader(folder, page_cache=page_cache))

    serving.cache_reader = reader  # type: ignore[attr-defined]
    stored = int(stored_sizes(StoredDataSet(path)).sum(dtype=np.int64))
    cache, seconds = Cache(work, f"{int(FOLDER * stored)}B"), list[float]()
    with (
        running_server(path, memory=MEMORY, cache=cache, storage=EmulatedStorage(), page_cache=True) as server,
        closing(node_of(path, server.address)) as client,
    ):
        rank = Rank(client, order_of(path, STRIPES), 0, 1)
        epochs = count()
        while server.facts()["cache"]["state"] != "full":
            draw_in_step([rank], [next(epochs)])
        before, disk.slow = server.facts(), True
        for epoch in islice(epochs, EPOCHS):
            start_s = time.monotonic()
            draw_in_step([rank], [epoch])
            seconds.append(time.monotonic() - start_s)
            check_epoch([rank], epoch)
        after = server.facts()
    own = {name: after["cache"][name] - before["cache"][name] for name in ("read_bytes", "bypassed", "misjudged")}
    storage = after["read_bytes"] - before["read_bytes"]
    shares = {"folder": own.pop("read_bytes") / EPOCHS / stored, "storage": storage / EPOCHS / stored}
    return {"seconds": seconds, **shares, **own, "direct": after["direct"] - before["direct"]}


def main() -> None:
    """Measure all arms, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="an empty scratch folder, for 1 GB")
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    parser.add_argument("--samples", type=int, default=1200)
    given = parser.parse_args()
    path, least_s = pack(given.work, "cached-nodes", given.samples), sources.LEAST_S
    runs: dict[str, list[dict[str, Any]]] = {}
    for turn in range(ROUNDS):
        for name, seek_s in (("fast", 0.0), ("busy: 10 ms a read", 0.01), ("very busy: 40 ms a read", 0.04)):
            for choice in ("always", "fastest"):
                sources.LEAST_S = float("inf") if choice == "always" else least_s  # type: ignore[misc]
                progress(f"{name}, {choice}, {turn + 1} of {ROUNDS}")
                found = runs.setdefault(f"{name}, {choice}", [])
                found.append(measure(path, given.work / f"folder-{len(runs)}-{turn}", Disk(name, seek_s)))
    rows = list[list[str]]()
    for arm, found in runs.items():
        seconds = [second for run in found for second in run["seconds"]]
        shares = (f"{100 * statistics.mean(run[source] for run in found):.0f}" for source in ("folder", "storage"))
        counts = (str(sum(run[each] for run in found)) for each in ("bypassed", "misjudged"))
        spread = (f"{each(seconds):.2f}" for each in (statistics.median, min, max))
        rows.append([arm, *spread, *shares, *counts])
    show(table(["disk, source", "s", "least s", "most s", "folder %", "storage %", "bypassed", "misjudged"], rows))
    if given.out:
        save(
            given.out,
            __doc__,
            {"samples": given.samples, "memory": MEMORY, "folder": FOLDER, "rounds": ROUNDS},
            [],
            runs,
        )


if __name__ == "__main__":
    main()
