"""Do start, memory and speed of a training depend on how many samples the data set has? Served records of 8 bytes

    python -m bench.scale_served --work SCRATCH --label after --out bench/results/scale-served.json
    python -m bench.scale_served --plot                     # draw docs/images/scale.svg from bench/results/

`brand.pack` makes a data set of `{"value": i}` for each size, once, in `SCRATCH/n1000000.brand` and so on. Memory is
for a tenth of the samples, batches of a `BrandLoader` have 1,024. Rows of other labels stay in the file of results. To
compare two versions, copy `bench/` into a worktree of the other version, and run it there with another `--label`.

Two fresh processes, each with a data server of its own, measure a row, in turns with the other sizes:

1. From the end of the imports to the first batch: data set, sampler, loader and the start of the server are included.
   Then epoch 0 ends after ten batches, and the first batch of epoch 1 is awaited. After a pause for settling, and once
   the arena has been filled, batches are counted for some seconds; epochs that end meanwhile follow each other.
2. The same first batch from a loader state at the middle of epoch 0: the state of a new sampler with another position.

CPU seconds are those of the training process and of the server. Memory of the server: resident pages without those of
the arena, so allocated memory and pages of mapped files (the index and libraries, also if the training process maps
them, too), at its peak from the first batch until the pause ends. Index pages are the resident pages of mappings of
the data set's files at the end. `direct` is the share of the counted samples that the
training process read itself, because the server did not have them. Disk: bytes in all files of the data set.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench import harness, system
from bench.harness import Outcome, Rival
from bench.server_memory import Watch

BATCH: Final = 1_024
MEMORY: Final = 0.1
LEFT_AFTER: Final = 10
"""Batches after which epoch 0 ends."""
FULL: Final = 0.9
"""Share of the arena that is in use when it counts as filled."""
WAYS: Final = ("run", "resume")
COLUMNS: Final = (
    ("first batch, s", "first_s", 1, 2),
    ("CPU s of it", "first_cpu_s", 1, 2),
    ("next epoch, s", "next_s", 1, 2),
    ("CPU s of that", "next_cpu_s", 1, 2),
    ("resume, s", "resume_s", 1, 2),
    ("CPU s of this", "resume_cpu_s", 1, 2),
    ("server, MB", "beside_bytes", 1e-6, 0),
    ("index pages, MB", "index_bytes", 1e-6, 1),
    ("samples/s", "samples_per_s", 1, 0),
    ("CPU us a sample", "cpu_us", 1, 2),
    ("direct, %", "direct_share", 100, 1),
    ("bytes a sample on disk", "bytes_a_sample", 1, 0),
)
"""Title, figure, unit, digits."""
RESULTS: Final = Path(__file__).parent / "results"
PLOT: Final = Path(__file__).parent.parent / "docs" / "images" / "scale.svg"


def data_set(work: Path, samples: int) -> Path:
    """Return the folder of the data set; make it first if need be."""
    import brand

    folder = work / f"n{samples}.brand"
    if not (folder / "brand.json").exists():
        harness.progress(f"packing {samples:,} samples")
        brand.pack(({"value": i} for i in range(samples)), folder, {"value": "int"}, jobs=2)
    return folder


class Training:
    """A training on a data set, from its own first second on."""

    def __init__(self, folder: Path, position: int = 0) -> None:
        from brand import BrandDataset, BrandLoader, BrandSampler

        self._started, self._folder = (time.perf_counter(), time.process_time()), folder
        self.dataset = BrandDataset(folder, memory=MEMORY, fields=("value",))
        sampler = BrandSampler(self.dataset)
        if position:
            sampler.load_state_dict(sampler.state_dict() | {"position": position})
        self.loader = BrandLoader(self.dataset, BATCH, sampler=sampler)
        self.batches = iter(self.loader)
        next(self.batches)
        now = time.perf_counter(), time.process_time()
        self.server = int(self.dataset.stats()["process"])
        self.first_s = now[0] - self._started[0]
        self.first_cpu_s = now[1] - self._started[1] + system.cpu_s_of([self.server])

    def cpu_s(self) -> float:
        """Return the processor seconds of this process and of the server until now."""
        return time.process_time() + system.cpu_s_of([self.server])

    def begin(self, epoch: int) -> tuple[float, float]:
        """Leave the present epoch, and return seconds and CPU seconds until the first batch of another one."""
        cpu, started = self.cpu_s(), time.perf_counter()
        self.loader.set_epoch(epoch)
        self.batches = iter(self.loader)
        next(self.batches)
        return time.perf_counter() - started, self.cpu_s() - cpu

    def deliver(self, seconds: float, *, fill: bool = False) -> int:
        """Take batches for some seconds, and with `fill` until the arena has been full; return their samples."""
        samples, end, full = 0, time.perf_counter() + seconds, not fill
        while time.perf_counter() < end or not full:
            batch = next(self.batches, None)
            if batch is None:
                self.batches = iter(self.loader)
                continue
            samples += len(batch[0])
            if not full and samples // BATCH % 256 == 0:
                memory = self.dataset.stats()["memory"]
                full = memory["used"] >= FULL * memory["limit"] or samples >= len(self.dataset)
        return samples

    def index_bytes(self) -> int:
        """Return the resident pages of the data set's files in the server."""
        found, inside = 0, False
        for line in Path(f"/proc/{self.server}/smaps").read_text().splitlines():
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                inside = str(self._folder.resolve()) in line
            elif inside and line.startswith("Rss:"):
                found += int(line.split()[1]) * 1024
        return found


def run(folder: Path, samples: int, settle_s: float, window_s: float) -> dict[str, float]:
    """Measure start, next epoch, memory and speed."""
    training = Training(folder)
    watch = Watch(training.server)
    watch.start()
    for _ in range(LEFT_AFTER - 1):
        next(training.batches)
    next_s, next_cpu_s = training.begin(1)
    settled = training.deliver(settle_s, fill=True)
    peak = watch.stop()["beside"]
    direct, cpu, started = training.dataset.stats()["direct"], training.cpu_s(), time.perf_counter()
    counted = training.deliver(window_s)
    seconds, cpu = time.perf_counter() - started, training.cpu_s() - cpu
    direct = training.dataset.stats()["direct"] - direct
    return {
        "server": training.server,
        "first_s": training.first_s,
        "first_cpu_s": training.first_cpu_s,
        "next_s": next_s,
        "next_cpu_s": next_cpu_s,
        "beside_bytes": peak,
        "index_bytes": training.index_bytes(),
        "arena_bytes": training.dataset.stats()["memory"]["limit"],
        "settled_samples": settled,
        "counted_samples": counted,
        "samples_per_s": counted / seconds,
        "cpu_us": 1e6 * cpu / counted,
        "direct_share": direct / counted,
        "bytes_a_sample": system.disk_usage(folder)[0] / samples,
    }


def resume(folder: Path, samples: int) -> dict[str, float]:
    """Measure the first batch from a state in the middle of epoch 0."""
    training = Training(folder, samples // 2)
    return {"server": training.server, "resume_s": training.first_s, "resume_cpu_s": training.first_cpu_s}


def measure(arguments: argparse.Namespace, rival: Rival) -> Outcome:
    """Measure in a fresh process, and wait until its data server has ended."""
    outcome = harness.run_fresh(rival, "bench.scale_served", [], arguments.limit)
    server = outcome.values.pop("server", None)
    while server and Path(f"/proc/{server}").exists():
        time.sleep(0.1)
    return outcome


def table_of(outcomes: Sequence[Outcome]) -> str:
    """Return the medians, and for each label the largest size beside the smallest one."""
    sizes: dict[str, list[str]] = {}
    for outcome in outcomes:
        label, million, _ = outcome.rival.split(", ")
        if million not in sizes.setdefault(label, []):
            sizes[label].append(million)

    def figure(name: str, key: str) -> float | None:
        way = "resume" if key.startswith("resume") else "run"
        return harness.median_of(outcomes, f"{name}, {way}", lambda outcome: float(outcome.values[key]))

    rows, compared = [], []
    for label, those in sizes.items():
        those.sort(key=lambda million: float(million.split()[0]))
        for million in those:
            found = [(figure(f"{label}, {million}", key), unit, digits) for _, key, unit, digits in COLUMNS]
            cells = ["-" if value is None else f"{value * unit:,.{digits}f}" for value, unit, digits in found]
            rows.append([f"{label}, {million}", *cells])
        few, many = (f"{label}, {those[at]}" for at in (0, -1))
        if few != many and (shares := _shares(partial(figure, few), partial(figure, many))):
            compared.append(f"{many} beside {those[0]}: {shares}")
    columns = ["version, samples", *(title for title, *_ in COLUMNS)]
    return "\n".join([harness.table(columns, rows), *compared]) + harness.failures(outcomes)


def _shares(few: partial[float | None], many: partial[float | None]) -> str:
    """Return first batch and throughput of a size as multiples of those of another one."""
    shown = {"first batch": "first_s", "throughput": "samples_per_s"}
    pairs = [(name, few(key), many(key)) for name, key in shown.items()]
    return ", ".join(f"{name} {large / small:.2f} times" for name, small, large in pairs if small and large)


class DrawPlot(argparse.Action):
    """An option that draws the plot and ends, as `--help` does."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        """Draw."""
        draw(PLOT)
        parser.exit()


def draw(path: Path) -> None:
    """Plot what the files of results say by number of samples: first samples, resume, memory."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "scale"  # equal plots have equal bytes
    import matplotlib.pyplot as plt

    served = harness.kept(RESULTS / "scale-served.json")
    orders = harness.kept(RESULTS / "scale.json")
    panels = (
        ("first samples, CPU s", "first", "first_cpu_s", "run", "first_cpu_s", 1.0),
        ("resume, CPU s", "resume", "first_cpu_s", "resume", "resume_cpu_s", 1.0),
        ("memory, MB", "first", "bytes", "run", "beside_bytes", 1e-6),
    )
    figure, every = plt.subplots(1, len(panels), figsize=(11, 4.8))
    for axes, (title, way, key, served_way, served_key, unit) in zip(every, panels, strict=True):
        for name, points in _lines(orders, way, key, unit).items():
            axes.plot(*points, marker="o", markersize=3, linewidth=1.1, label=name)
        for step, (name, points) in enumerate(_lines(served, served_way, served_key, unit).items()):
            label = f"Brand {name}: batch from its server"
            axes.plot(*points, color="black", linestyle=("--", "-")[step % 2], marker="s", markersize=4, label=label)
        axes.set(xscale="log", yscale="log", xlabel="million samples", title=title)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*every[0].get_legend_handles_labels(), loc="lower center", ncols=3, frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.16, 1, 1))
    figure.savefig(path, metadata={"Date": None})


def _lines(outcomes: Sequence[Outcome], way: str, key: str, unit: float) -> dict[str, tuple[list[float], list[float]]]:
    """Return millions of samples and medians of a figure, by what was measured."""
    found: dict[str, dict[float, float]] = {}
    for outcome in outcomes:
        name, million, measured = outcome.rival.rsplit(", ", 2)
        if measured == way and outcome.status == "ok":
            value = harness.median_of(outcomes, outcome.rival, lambda each: float(each.values[key])) or 0.0
            found.setdefault(name, {})[float(million.split()[0])] = value * unit
    return {name: (sorted(points), [points[x] for x in sorted(points)]) for name, points in found.items()}


def main() -> None:
    """Run as parent or child, as `--rival` says."""
    parser = harness.parser("bench.scale_served", __doc__, data=False)
    parser.add_argument("--label", default="after", help="name of the version in the table (%(default)s)")
    parser.add_argument("--millions", type=float, nargs="+", default=[1, 10, 100])
    parser.add_argument("--settle", type=float, default=45.0, help="seconds before the samples count (%(default)s)")
    parser.add_argument("--window", type=float, default=15.0, help="seconds in which they count (%(default)s)")
    parser.add_argument("--plot", nargs=0, action=DrawPlot, help="draw docs/images/scale.svg from bench/results/")
    arguments = parser.parse_args()
    if arguments.rival:
        _, million, way = arguments.rival.split(", ")
        samples = int(float(million.split()[0]) * 1e6)
        folder = data_set(arguments.work, samples)
        times = (arguments.settle, arguments.window)
        found = run(folder, samples, *times) if way == "run" else resume(folder, samples)
        harness.report(arguments.report, found)
        return
    arguments.work.mkdir(parents=True, exist_ok=True)
    for million in arguments.millions:
        system.warm(data_set(arguments.work, int(million * 1e6)))
    names = [f"{arguments.label}, {million:g} million, {way}" for million in arguments.millions for way in WAYS]
    rivals = [Rival(name, "brand", "brand-data") for name in names]
    outcomes = harness.round_robin(rivals, arguments.repeat, partial(measure, arguments))
    outcomes = harness.kept(arguments.out, without=names) + outcomes
    harness.show(table_of(outcomes))
    if arguments.out:
        settings = {"batch": BATCH, "memory": MEMORY, "settle_s": arguments.settle, "window_s": arguments.window}
        harness.save(arguments.out, __doc__, settings, rivals, outcomes)


if __name__ == "__main__":
    main()
