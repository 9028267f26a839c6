"""How much memory does the data server take in addition to its arena, with 1.28 million samples, or more?

    python -m bench.server_memory --work SCRATCH --out bench/results/server_memory.json
    python -m bench.server_memory --work SCRATCH --samples 13000000

Packs small records in 20,000 chunks, and draws two epochs at memory 1/10 with `BrandLoader`. A thread reads the
server's /proc/PID/status every few milliseconds. `RssAnon` is memory that the server allocated, `RssFile` is pages of
files that it maps (the index, its libraries), and `RssShmem` is the arena, which must never exceed its limit.
"""

from __future__ import annotations

import argparse
import json
import re
import threading
from pathlib import Path

import brand
from brand import BrandDataset, BrandLoader, BrandSampler

SAMPLES = 1_280_000
CHUNKS = 20_000
EVERY_S = 0.005
GOAL = 24
"""The goal, in bytes per sample."""


def make(folder: Path, samples: int) -> None:
    """Make the data set if it is missing."""
    if not (folder / "brand.json").exists():
        records = ({"text": f"sample {n:>120}", "label": n % 10} for n in range(samples))
        fields = {"text": "str", "label": "int"}
        brand.pack(records, folder, fields, chunk_size=max(1, samples // CHUNKS), compression="none")


class Watch(threading.Thread):
    """The peaks of a process."""

    def __init__(self, process: int) -> None:
        super().__init__(daemon=True)
        self._path, self._end = Path(f"/proc/{process}/status"), threading.Event()
        self.peaks = dict.fromkeys(("RssAnon", "RssFile", "RssShmem", "beside"), 0)

    def run(self) -> None:
        """Sample the memory until `stop` is called."""
        while not self._end.wait(EVERY_S):
            found = {k: int(v) * 1024 for k, v in re.findall(r"^(Rss\w+):\s+(\d+) kB", self._path.read_text(), re.M)}
            found["beside"] = found["RssAnon"] + found["RssFile"]
            self.peaks = {name: max(peak, found[name]) for name, peak in self.peaks.items()}

    def stop(self) -> dict[str, int]:
        """Stop sampling; return the peaks."""
        self._end.set()
        self.join()
        return self.peaks


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folder = options.work / f"records-{options.samples}.brand"
    options.work.mkdir(parents=True, exist_ok=True)
    make(folder, options.samples)
    results = {}
    for order in ("stripes", "slots"):
        data = BrandDataset(folder, memory=0.1, fields=("label",), order=order)
        sampler = BrandSampler(data)
        loader = BrandLoader(data, 1024, sampler=sampler)
        watch: Watch | None = None
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for _ in loader:
                if watch is None:
                    watch = Watch(data.stats()["process"])
                    watch.start()
        assert watch is not None
        limit = data.stats()["memory"]["limit"]
        results[order] = {"limit": limit, **watch.stop()}
    for order, found in results.items():
        print(order, {name: f"{value / 1e6:.1f} MB" for name, value in found.items()})
        print(f"  arena within its limit: {found['RssShmem'] <= found['limit']}", end="; ")
        print(f"allocated a sample, at the peak: {found['RssAnon'] / options.samples:.1f} bytes (goal: {GOAL})")
    if options.out:
        options.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
