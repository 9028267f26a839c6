"""How much does a cache folder speed up slow storage, for the default order and for a uniform one?

    python -m bench.training_data --data DATA --work SCRATCH --name images small-images --only plain sequential brand
    python -m bench.tiers --work SCRATCH --repeat 5 [--only NAME ...] [--out FILE]

The images of training_data.py (14,336 of 105 KB; 1.5 GB) are stored on a loop device (loop_device.py), which lab.py
limits to 120 MB/s and 400 operations a second: `nas`. The cache folder is on the machine's own disk, which
nothing limits. Arms whose name ends in `nvme` read a copy of the images on that disk, and have no folder.

1. `brand profile` measures the slow device, as a user would; the machine's disk is not measured. A run on that disk
   measures the memory that the idle processes of Brand and of plain files need.
2. All arms take turns, so each turn has one run of each. Each run is a fresh process in control groups of its own,
   after all caches were dropped. Its memory, page cache included, is the need of the idle processes and a tenth of the
   data. Brand takes 85 % of that tenth, as in training_reads.py. With a cache folder there are 64 MiB more, for pages
   on their way to it.
3. The process takes batches of 256 from a `BrandLoader` (plain files: a `DataLoader` with two workers) and notes when
   each arrived. It does nothing with them.

Arms: `no cache`; `cache 1/2` and `cache all`: a folder that is empty at the start, with capacity for half of the data
and for all; `after a restart`: new processes on the folder that `cache all` has filled in the same turn.

Columns. Figures are medians of the runs, with the lowest and the highest run in brackets.

- epoch 1: samples/s from `iter()` on, so the start of the server and the first batch count. later: samples/s from the
  last batch of the first epoch to the last batch of the last one (two epochs, with a cache folder three).
- model: the prediction of `brand simulate` for the same order, memory, folder and profile. The machine's disk has the
  speed that the arm `sequential limit, nvme` found in this run.
- first s: from `iter()` to the first batch, in the first epoch.
- storage x: bytes that the data's device has read (/sys/block/loopN/stat) over bytes delivered, in the first epoch and
  in later ones. Bytes that the server reads ahead count in the epoch in which they are read. KB/op: size of a read,
  from the same file.
- writing: processor time of the thread that writes the folder, as a fraction of one core during the first epoch; ms/MB:
  per MB that it wrote then. This includes the copying into the page cache, and not the kernel's own flushing.
- peak MB: memory of the processes, without page cache. room MB: the limit, page cache included.
- exact: images that were read one by one, because they were not in memory when they were drawn (0 is right).
- others: cores that other processes took meanwhile, the kernel's threads among them. stolen: cores that the machine's
  host gave to other machines while work waited here. Both are near 0 on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from bench import harness, system
from bench.harness import Outcome, Rival
from bench.loop_device import counted, loop_device
from bench.training_data import Store
from bench.training_loaders import BATCH, LIMIT, WAYS, WORKERS, Feed, Job, Way
from bench.training_loop import Epoch, rates, save_labels, shuffles, take
from brand import BrandDataset, BrandLoader, Cache
from brand.orders import Stripes
from brand.orders.policies.registry import OrderOption
from brand.simulate.pace import Machine
from brand.simulate.storages import BUILT_IN, Storage, StorageLimits, storage_below
from brand.simulate.whatif import Case, Prediction, answer, data_of
from brand.storage.dataset.dataset import StoredDataSet

MEMORY: Final = 1 / 10
"""Fraction of the data that fits in memory, page cache included."""
BRAND_PART: Final = 0.85
"""Fraction of that memory for Brand's arena; the limit also covers the server's tables and the page cache."""
IDLE_MEMORY: Final = 32_000_000
IDLE_S: Final = 10.0
SLACK: Final = 1.1
"""Factor on the memory of an idle process, because its runs vary."""
ON_THE_WAY: Final = 64 << 20
"""Page cache for pages on their way to the cache folder."""
PROFILE_S: Final = 30
"""Seconds that `brand profile` takes."""
IMAGE_OVERHEAD: Final = 1.15
"""Size of the device over that of its files."""
FORMS: Final = ("plain", "sequential", "brand")
PLAIN: Final = next(way for way in WAYS if way.rival.name == "plain files")
NAS: Final = "nas"
NVME: Final = "nvme"
LIMIT_NVME: Final = "sequential limit, nvme"
LAB_FACTS: Final = ("read_bytes", "read_ops", "max_memory_bytes", "memory_failcnt", "cpu_s")
SHARES: Final = {"cache 1/2": 0.5, "cache all": 1.01}
"""Capacity of the folder over the size of the data."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to train."""

    name: str
    way: Way | None = None
    """The rival's way to feed; None for Brand."""
    order: OrderOption = "stripes"
    storage: str = NAS
    cache: float = 0.0
    """Capacity of the cache folder over the size of the data; 0 if there is no folder."""
    filled: bool = False
    """Whether the folder is the one that an earlier run has filled."""
    epochs: int = 2

    @property
    def rival(self) -> Rival:
        """The arm for the harness."""
        return Rival(self.name) if self.way else Rival(self.name, "brand", "brand-data")


def _arms() -> Iterator[Arm]:
    yield Arm("sequential limit", LIMIT, epochs=1)
    yield Arm("plain files", PLAIN, epochs=1)
    for name in ("stripes", "uniform"):
        order: OrderOption = "stripes" if name == "stripes" else "uniform"
        yield Arm(f"{name}, no cache", order=order)
        for cache, share in SHARES.items():
            yield Arm(f"{name}, {cache}", order=order, cache=share, epochs=3)
        yield Arm(f"{name}, after a restart", order=order, cache=SHARES["cache all"], filled=True)
    yield Arm(LIMIT_NVME, LIMIT, storage=NVME)
    yield Arm("plain files, nvme", PLAIN, storage=NVME)
    yield Arm("stripes, nvme", storage=NVME)
    yield Arm("stripes of one, nvme", order=Stripes(length=1), storage=NVME)
    yield Arm("uniform, nvme", order="uniform", storage=NVME)


ARMS: Final = {arm.name: arm for arm in _arms()}


@dataclass(frozen=True, slots=True)
class Seen:
    """Counters at some moment."""

    at: float
    device: tuple[int, int]
    """Operations and bytes read from the loop device."""
    writer_s: float = 0.0
    """Processor time of the thread that writes the cache folder."""
    writer_bytes: int = 0
    server_s: float = 0.0
    """Processor time of all threads of the server."""
    stats: Mapping[str, Any] | None = None


def look(device: str, dataset: BrandDataset | None) -> Seen:
    """Count now; without a server if `dataset` is None."""
    read = counted(device) if device else (0, 0)
    if dataset is None:
        return Seen(time.perf_counter(), read)
    stats = dataset.stats()
    threads = list(threads_of(stats["process"]))
    writer = max(threads, key=lambda thread: thread[1]) if stats["cache"] else (0.0, 0)
    told = {name: stats[name] for name in ("reads", "read_bytes", "direct", "cache", "memory")}
    return Seen(time.perf_counter(), read, *writer, sum(cpu_s for cpu_s, _ in threads), told)


def threads_of(process: int) -> Iterator[tuple[float, int]]:
    """Yield the processor seconds, and the bytes written to files, of each thread of a process."""
    for task in Path(f"/proc/{process}/task").iterdir():
        io = dict(line.split(": ") for line in (task / "io").read_text().splitlines())
        yield int((task / "schedstat").read_text().split()[0]) / 1e9, int(io["write_bytes"])


def open_feed(arm: Arm, arguments: argparse.Namespace, memory: int) -> tuple[Feed, BrandDataset | None]:
    """Open the data set of an arm."""
    store = store_of(arm, arguments)
    if arm.way is not None:
        return arm.way.open(Job(store, memory, decode=False, cold=True)), None
    folder = str(store.folder / "brand")
    cache = Cache(cache_folder(arguments), int(arm.cache * stored_bytes(Path(folder)))) if arm.cache else None
    options = {"memory": int(BRAND_PART * memory), "order": arm.order, "cache": cache}
    dataset = BrandDataset(folder, fields=("image", "label"), decode=False, **options)  # type: ignore[arg-type]
    loader = BrandLoader(dataset, batch_size=BATCH, num_workers=WORKERS)

    def epoch(number: int) -> Iterable[Any]:
        loader.set_epoch(number)
        return loader

    return Feed(epoch), dataset


def stored_bytes(folder: Path) -> int:
    """Return the bytes of all stored samples."""
    data = StoredDataSet(folder)
    return round(data.mean_bytes * len(data))


def store_of(arm: Arm, arguments: argparse.Namespace) -> Store:
    """Return the data set that holds the images of an arm."""
    return Store(Path(arguments.mounted) if arm.storage == NAS else arguments.work, "images")


def cache_folder(arguments: argparse.Namespace) -> Path:
    """Return the cache folder, on the machine's disk; each order has one of its own."""
    order = ARMS[arguments.rival].order
    folder: Path = arguments.work / "tiers" / f"cache-{order}"
    return folder


def feed_once(arguments: argparse.Namespace, arm: Arm) -> dict[str, Any]:
    """Take all epochs, in the measured process."""
    if arm.cache and not arm.filled:
        shutil.rmtree(cache_folder(arguments), ignore_errors=True)
    if arm.cache:
        cache_folder(arguments).mkdir(parents=True, exist_ok=True)
    store = store_of(arm, arguments)
    device = arguments.device if arm.storage == NAS else ""
    feed, dataset = open_feed(arm, arguments, int(MEMORY * store.payload_bytes))
    seen, disturbance = [look(device, None)], system.Disturbance()

    def epoch(number: int) -> Iterator[Any]:
        yield from feed.epoch(number)
        seen.append(look(device, dataset))

    taken = take(Feed(epoch), arm.epochs, float("inf"))
    others = disturbance.cores([] if dataset is None else [dataset.stats()["process"]])
    save_labels(arguments.report.parent, taken)
    return {
        **others,
        **rates(taken),
        "seen": [asdict(each) for each in seen],
        **figures(taken, seen, store),
    }


def figures(taken: Sequence[Epoch], seen: Sequence[Seen], store: Store) -> dict[str, Any]:
    """Return the figures of storage and server."""
    mean = store.payload_bytes / store.samples
    read = [after.device[1] - before.device[1] for before, after in pairwise(seen)]
    share = [size / (sum(epoch.counts) * mean) for size, epoch in zip(read, taken, strict=True)]
    operations, size = seen[-1].device[0] - seen[0].device[0], sum(read)
    values: dict[str, Any] = {"first_x": share[0], "kb_per_op": size / max(1, operations) / 1e3}
    if share[1:]:
        values["later_x"] = statistics.mean(share[1:])
    last = seen[-1].stats
    if last is None:
        return values
    values["exact"] = last["direct"]
    values["kept_share"] = last["memory"]["cached"] / store.payload_bytes
    first = seen[1].stats
    written = first["cache"]["written_bytes"] if first and first["cache"] else 0
    if written:
        values["writer_share"] = seen[1].writer_s / (seen[1].at - taken[0].started)
        values["writer_ms_per_mb"] = 1e3 * seen[1].writer_s / (written / 1e6)
    return values


def idle_once(arguments: argparse.Namespace, arm: Arm) -> dict[str, Any]:
    """Take some batches, for the peak of the memory."""
    feed, _ = open_feed(arm, arguments, IDLE_MEMORY)
    return {"batches": sum(len(epoch.counts) for epoch in take(feed, 1, IDLE_S))}


def preload(arguments: argparse.Namespace, arm: Arm) -> None:
    """Read the libraries' files into the page cache; for `idle` the data, too, so that another group is charged."""
    small = Store(arguments.work, "small-images")
    if arm.way is not None:
        for _ in arm.way.open(Job(small, IDLE_MEMORY, decode=False, cold=True)).epoch(0):
            pass
    else:
        for _ in BrandLoader(BrandDataset(small.folder / "brand", memory=IDLE_MEMORY, decode=False), BATCH):
            pass
    if arguments.warm:
        system.warm(store_of(arm, arguments).folder / ("brand" if arm.way is None else arm.way.form))


def launch(arguments: argparse.Namespace, arm: Arm) -> dict[str, Any]:
    """Start the measured process in the lab, and join the measurements of both, in the child."""
    store, seen = store_of(arm, arguments), arguments.report.with_suffix(".lab.json")
    inner = [sys.executable, "-m", "bench.tiers", *sys.argv[1:]]
    lab = [
        *shlex.split(arguments.lab),
        "--path",
        str(store.folder),
        "--json",
        str(seen),
        "--timeout",
        str(arguments.limit - 60),
    ]
    warm = ["--warm"] if arguments.launch == "idle" else []
    if arguments.launch == "feed":
        lab += ["--cold", "--profile", arm.storage, "--memory", str(arguments.room), "--readahead-kb", "128"]
        lab += ["--inode-readahead-blks", "1"] if arm.storage == NAS else []
    lab += ["--preload", shlex.join([*inner, *warm, "--step", "preload"])]
    code = subprocess.run([*lab, "--", *inner, "--step", arguments.launch], check=False).returncode
    facts = json.loads(seen.read_text()) if seen.exists() else {}
    if facts.get("oom_kills"):
        sys.exit("out of memory")
    if code:
        sys.exit(code)
    values: dict[str, Any] = json.loads(arguments.report.read_text())
    values |= {f"lab_{name}": facts[name] for name in LAB_FACTS}
    values |= {"peak_bytes": facts["peak_rss_bytes"] + facts["peak_shmem_bytes"], "room_bytes": arguments.room}
    if arguments.launch == "feed":
        values |= shuffles(arguments.report.parent, store, "brand" if arm.way is None else arm.way.form)
    return values


def idle_arm(arm: Arm) -> Arm:
    """Return the arm whose idle memory counts for this one: of the same kind of loader, on the machine's disk."""
    if arm.way is not None:
        return ARMS["plain files, nvme"] if arm.way is PLAIN else ARMS[LIMIT_NVME]
    return ARMS["uniform, nvme" if arm.order == "uniform" else "stripes, nvme"]


class Measurements:
    """All arms, on a mounted device."""

    def __init__(self, arguments: argparse.Namespace, mounted: Path, device: str) -> None:
        self.arguments, self.where = arguments, ["--mounted", str(mounted), "--device", device]
        self.payload_bytes = Store(arguments.work, "images").payload_bytes
        self.idle: dict[str, Outcome] = {}

    def measure(self, rival: Rival) -> Outcome:
        """Measure one arm once."""
        idle = idle_arm(ARMS[rival.name])
        if idle.name not in self.idle:
            harness.progress(f"idle memory: {idle.name}")
            self.idle[idle.name] = self._run(idle, "idle", 0)
        found = self.idle[idle.name]
        if found.status != "ok":
            return Outcome(rival.name, found.status, found.reason)
        buffer = IDLE_MEMORY if idle.way is None else 0
        needed = int(SLACK * found.values["lab_max_memory_bytes"]) - buffer
        room = needed + int(MEMORY * self.payload_bytes) + (ON_THE_WAY if ARMS[rival.name].cache else 0)
        return self._run(ARMS[rival.name], "feed", room)

    def _run(self, arm: Arm, step: str, room: int) -> Outcome:
        more = [*self.where, "--launch", step, "--room", str(room)]
        return harness.run_fresh(arm.rival, "bench.tiers", more, self.arguments.limit)


def measured(arguments: argparse.Namespace, folder: Path) -> Storage:
    """Measure the slow device with `brand profile`, for the runs and for the model."""
    harness.progress("brand profile")
    lab = [
        *shlex.split(arguments.lab),
        "--path",
        str(folder),
        "--profile",
        NAS,
        "--readahead-kb",
        "128",
        "--json",
        os.devnull,
    ]
    ask = [sys.executable, "-m", "brand", "profile", str(folder), "--seconds", str(PROFILE_S), "--json"]
    subprocess.run([*lab, "--", *ask], check=True, stdout=subprocess.DEVNULL)
    storage = storage_below(folder)
    assert storage is not None
    return storage


def model(
    work: Path, arms: Sequence[Arm], nas: Storage, disk_bytes_per_s: float | None
) -> dict[str, tuple[float, float]]:
    """Return the samples/s that `brand simulate` predicts, of the first epoch and of later ones, by arm."""
    store = Store(work, "images")
    data = data_of(StoredDataSet(store.folder / "brand"))
    memory = int(BRAND_PART * MEMORY * store.payload_bytes)
    disk: Storage = BUILT_IN[NVME] if disk_bytes_per_s is None else StorageLimits("disk", disk_bytes_per_s, 60_000)
    found = {}
    for arm in arms:
        storage = nas if arm.storage == NAS else disk
        if arm.way is not None:
            continue
        cache = int(arm.cache * data.stored_bytes) if arm.cache else None
        case = Case(Machine(storage, disk), memory, None, cache, arm.order, batch=BATCH, epochs=max(2, arm.epochs))
        said: Prediction = answer(data, case)
        first, later = said.paces[1] if arm.filled else said.paces[0], said.later
        found[arm.name] = (store.samples / first.seconds, store.samples / later.seconds)
    return found


COLUMNS: Final[dict[str, tuple[str, float, str]]] = {
    "first s": ("first_batch_s", 1, ".2f"),
    "storage x, epoch 1": ("first_x", 1, ".2f"),
    "later ": ("later_x", 1, ".2f"),
    "KB/op": ("kb_per_op", 1, ",.0f"),
    "writing": ("writer_share", 1, ".1%"),
    "ms/MB": ("writer_ms_per_mb", 1, ".2f"),
    "peak MB": ("peak_bytes", 1e-6, ",.0f"),
    "room MB": ("room_bytes", 1e-6, ",.0f"),
    "exact": ("exact", 1, ",.0f"),
    "others": ("other_cores", 1, ".2f"),
    "stolen": ("stolen_cores", 1, ".2f"),
}


def table_of(outcomes: Sequence[Outcome], arms: Sequence[Arm], said: Mapping[str, tuple[float, float]]) -> str:
    """Tabulate the medians with the lowest and the highest run."""
    rows = []
    for arm in arms:
        good = [outcome.values for outcome in outcomes if outcome.rival == arm.name and outcome.status == "ok"]
        modelled = [f"{rate:,.0f}" for rate in said.get(arm.name, ())] or ["", ""]
        rows.append(
            [
                arm.name,
                harness.spread(good, "first_rate", 1, ",.0f"),
                modelled[0],
                harness.spread(good, "later_rate", 1, ",.0f"),
                modelled[1],
                *(harness.spread(good, key, scale, form) for key, scale, form in COLUMNS.values()),
            ]
        )
    names = ["arm", "epoch 1", "model", "later", "model ", *COLUMNS]
    return harness.table(names, rows) + harness.failures(outcomes)


def _median_rate(outcomes: Sequence[Outcome], name: str) -> float | None:
    return harness.median_of(outcomes, name, lambda outcome: float(outcome.values["later_rate"]))


def _parse() -> argparse.Namespace:
    parser = harness.parser("bench.tiers", __doc__, data=False, repeat=5)
    parser.add_argument("--lab", default=harness.LAB, help="the command that limits storage and memory (bench.lab)")
    parser.add_argument("--only", nargs="+", metavar="ARM", choices=tuple(ARMS), default=tuple(ARMS))
    parser.add_argument("--mounted", help=argparse.SUPPRESS)
    parser.add_argument("--device", help=argparse.SUPPRESS)
    parser.add_argument("--step", default="launch", help=argparse.SUPPRESS)
    parser.add_argument("--launch", help=argparse.SUPPRESS)
    parser.add_argument("--warm", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--room", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Run as parent, child, or measured process, as `--rival` and `--step` say."""
    arguments = _parse()
    if arguments.rival:
        arm = ARMS[arguments.rival]
        if arguments.step == "preload":
            preload(arguments, arm)
        else:
            steps: dict[str, Callable[[argparse.Namespace, Arm], dict[str, Any]]]
            steps = {"launch": launch, "feed": feed_once, "idle": idle_once}
            harness.report(arguments.report, steps[arguments.step](arguments, arm))
        return
    arms = [arm for arm in ARMS.values() if arm.name in arguments.only]
    store = Store(arguments.work, "images")
    sources = [(store.folder / form, f"training/images/{form}") for form in (*FORMS, "plain.bytes")]
    size = int(IMAGE_OVERHEAD * len(FORMS) * store.payload_bytes) >> 20 << 20
    rivals = [arm.rival for arm in arms]
    os.environ["XDG_CACHE_HOME"] = str(arguments.work / "tiers" / "profiles")  # profiles of these runs alone
    shutil.rmtree(os.environ["XDG_CACHE_HOME"], ignore_errors=True)
    with loop_device(arguments.work / "tiers" / "disk.img", size, sources) as device:
        nas = measured(arguments, Store(device.folder, "images").folder / "brand")
        measurements = Measurements(arguments, device.folder, device.name)
        outcomes = harness.round_robin(rivals, arguments.repeat, harness.calmly(measurements.measure, arguments.calm))
    mean = store.payload_bytes / store.samples
    disk = _median_rate(outcomes, LIMIT_NVME)
    said = model(arguments.work, arms, nas, None if disk is None else disk * mean)
    harness.show(f"{store.samples:,} images of {mean / 1e3:.0f} KB\n{table_of(outcomes, arms, said)}")
    if arguments.out:
        results = {"runs": outcomes, "idle": measurements.idle, "model": said}
        settings = {"batch": BATCH, "memory": MEMORY, "repeat": arguments.repeat, "mean_bytes": mean, "nas": nas}
        harness.save(arguments.out, __doc__, settings, rivals, results)


if __name__ == "__main__":
    main()
