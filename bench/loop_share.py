"""How much processor time does a data server's loop take for a sample, a read and a GB, and which rates follow from it?

    python -m bench.loop_share --work DIR [--turns N] [--out FILE]

One thread of a data server decides everything. Its processor time for what one job fetches bounds what a server can
serve, on any number of cores. Four data sets, read from the page cache, with memory for a quarter of them, take turns;
an epoch before the measured one fills the memory cache. Nothing is decoded. A read is a stripe. `most` is the rate at
which the loop would be busy all the time; other threads, and the clients, may be slower. All figures are medians.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.emulated import pack
from bench.harness import progress, save, show, table
from brand import BrandDataset, BrandLoader, BrandSampler

MEMORY: Final = 0.25


@dataclass(frozen=True)
class Case:
    """A data set, and how it is fetched."""

    name: str
    samples: int
    sizes: range
    """Bytes of the samples."""
    chunk_size: int
    batch: int


CASES: Final = (
    Case("records of 582 B", 1_000_000, range(550, 614), 8192, 1024),
    Case("images of 70 kB", 12_000, range(66_000, 74_000), 64, 256),
    Case("samples of 1 MB", 800, range(950_000, 1_050_000), 8, 16),
    Case("samples of 20 MB", 48, range(19_000_000, 21_000_000), 4, 2),
)


@dataclass(frozen=True)
class Epoch:
    """The processor time, the samples and the reads of one epoch."""

    loop_s: float
    """Processor time of the loop's thread."""
    fetched: int
    reads: int
    fetched_bytes: float


class Server:
    """The data server of a data set, and one training that fetches from it."""

    def __init__(self, case: Case, work: Path) -> None:
        path = pack(work, case.name.replace(" ", "-"), case.samples, case.sizes, case.chunk_size)
        self._data = BrandDataset(path, fields=("data",), memory=MEMORY)
        self._loader = BrandLoader(self._data, case.batch, sampler=BrandSampler(self._data, seed=1))
        self._next, self._mean_bytes = 0, statistics.mean(case.sizes)

    def epoch(self) -> Epoch:
        """Fetch an epoch."""
        before = self._facts() if self._next else (0.0, 0, 0)
        self._loader.set_epoch(self._next)
        self._next += 1
        for _ in self._loader:
            pass
        loop_s, fetched, reads = (new - old for new, old in zip(self._facts(), before, strict=True))
        return Epoch(loop_s, int(fetched), int(reads), fetched * self._mean_bytes)

    def _facts(self) -> tuple[float, int, int]:
        """Return the loop's processor time, the fetched samples and the reads so far."""
        facts = self._data.stats()
        process = facts["process"]  # the loop is its main thread
        nanoseconds = Path(f"/proc/{process}/task/{process}/schedstat").read_text(encoding="ascii").split()[0]
        return int(nanoseconds) / 1e9, facts["fetched"], facts["reads"]


def main() -> None:
    """Measure all cases in turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="a scratch folder; the data takes 3.2 GB")
    parser.add_argument("--turns", type=int, default=5, help="measured epochs of each data set (%(default)s)")
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    servers = {case.name: Server(case, given.work) for case in CASES}
    for name, server in servers.items():
        progress(f"{name}: the epoch that fills memory")
        server.epoch()
    runs: dict[str, list[Epoch]] = {name: [] for name in servers}
    for turn in range(given.turns):
        for name, server in servers.items():
            progress(f"{name}, {turn + 1} of {given.turns}")
            runs[name].append(server.epoch())
    rows = []
    for name, epochs in runs.items():
        sample_s = statistics.median(each.loop_s / each.fetched for each in epochs)
        read_s = statistics.median(each.loop_s / max(1, each.reads) for each in epochs)
        byte_s = statistics.median(each.loop_s / each.fetched_bytes for each in epochs)
        of_read = statistics.median(each.fetched / max(1, each.reads) for each in epochs)
        figures = f"{1e6 * sample_s:.2f}", f"{1e6 * read_s:.0f}", f"{of_read:.1f}", f"{1e9 * byte_s:.3f}"
        rows.append([name, *figures, f"{1 / sample_s:,.0f}", f"{1e-9 / byte_s:.1f}"])
    heads = ["", "us a sample", "us a read", "samples a read", "s a GB", "most samples/s", "most GB/s"]
    show("processor time of the loop\n" + table(heads, rows))
    if given.out:
        samples = {case.name: case.samples for case in CASES}
        settings = {"memory": MEMORY, "turns": given.turns, "samples": samples}
        save(given.out, __doc__, settings, [], runs)


if __name__ == "__main__":
    main()
