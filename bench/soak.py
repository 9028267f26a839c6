"""Does a training that runs for hours need more descriptors, threads, memory or files from hour to hour?

    python -m bench.soak run  --data DATA --work SCRATCH --hours 4 --samples soak.jsonl
    python -m bench.soak show --samples soak.jsonl --epochs SCRATCH/epochs.jsonl --out bench/results/soak.json \\
        --plot docs/images/soak.svg

Four trainings take epoch after epoch at a low pace, each with `memory=` smaller than its data:

| training | data | loader | server |
|---|---|---|---|
| images | DATA/images, decoded to 32 x 32 | `BrandLoader` | its own, with a cache folder |
| records | 40,000 texts of DATA/text | `DataLoader` with two workers, new ones each epoch | common with `guest` |
| guest | the same texts | `DataLoader` with one worker | common with `records`, `order="shared"` |
| store | the same texts in a store on loopback, 5 ms an answer | `BrandLoader` | its own, with a cache folder |

Every few minutes a process is killed with SIGKILL: `guest`, the worker of `guest` or the server of `store`, in turns. A
training that ended goes on from its last checkpoint. `images` and `records` and their servers live as long as the run;
in each third epoch they return to their own state halfway. At the end of each epoch a training checks that it got each
sample once, with the right bytes, also over a kill.

A line of the samples has, for each role (training, workers or server of a training), the number of processes,
descriptors, threads, private and proportional memory (`smaps_rollup`), and processor seconds; and the files in
/dev/shm, the temporary folder and the caches. `run` starts itself in a mount namespace of its own, so that /dev/shm
has no files of others (root only).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench import harness

PERIOD_S: Final = 15.0
KILL_S: Final = 240.0
RECORDS: Final = 40_000
SEED: Final = 11
ROLE: Final = "BRAND_SOAK_ROLE"
"""Variable by which the server of a training is known."""
COUNTS: Final = ("processes", "descriptors", "threads", "private_mb", "pss_mb", "cpu_s")
MEASURED: Final = ("descriptors", "threads", "private_mb")
LONG: Final = ("images", "records", "server of images", "server of records", "store")
"""Roles of processes that are never killed."""


@dataclass(frozen=True)
class Course:
    """How one training runs."""

    data: str
    """Name of the data set."""
    batch: int
    step_s: float
    """Pause after each batch."""
    workers: int
    """Worker processes of its `DataLoader`; 0: it uses a `BrandLoader`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of its `BrandDataset`."""
    returns: bool = False
    """Whether it returns to its own state in each third epoch."""


def courses(work: Path) -> dict[str, Course]:
    """Return the trainings, by name."""
    common = {"server": "common", "order": "shared", "memory": "4MB"}
    return {
        "images": Course(
            "images.brand", 32, 1.0, 0, {"memory": "40MB", "cache": (work / "cache-images", "60MB")}, returns=True
        ),
        "records": Course("texts.brand", 256, 1.0, 2, common | {"job": "records"}, returns=True),
        "guest": Course("texts.brand", 200, 1.0, 1, common | {"job": "guest"}),
        "store": Course(
            "s3://bucket/texts.brand", 256, 1.0, 0, {"memory": "3MB", "cache": (work / "cache-store", None)}
        ),
    }


# -- a training --------------------------------------------------------------------------------------------------------


def train(name: str, work: Path) -> None:
    """Take epochs until this process is ended, and write a line for each."""
    from torch.utils.data import DataLoader

    from brand import BrandDataset, BrandLoader, BrandSampler, Cache, DecodeImage

    course = courses(work)[name]
    options = dict(course.options)
    if "cache" in options:
        options["cache"] = Cache(*options["cache"])
    content = "image" if name == "images" else "text"
    if content == "image":
        options["decode"] = {"image": DecodeImage(size=(32, 32))}
    path = course.data if "://" in course.data else work / course.data
    dataset = BrandDataset(path, fields=("index", content), **options)
    sums = np.load(work / f"{content}-sums.npy")
    sampler = BrandSampler(dataset, seed=SEED)
    checkpoint = work / f"{name}.checkpoint"
    seen = np.zeros(len(dataset), np.uint8)
    with suppress(FileNotFoundError):
        stored = json.loads(checkpoint.read_text())
        sampler.load_state_dict(stored["state"])
        seen[stored["seen"]] = 1
    loader: Any
    if course.workers:
        loader = DataLoader(dataset, course.batch, sampler=sampler, num_workers=course.workers)
    else:
        loader = BrandLoader(dataset, course.batch, sampler=sampler, num_workers=1)
    while True:
        begun = sampler.state_dict()
        done, began_s, wrong = 0, time.monotonic(), 0
        halfway = len(dataset) // course.batch // 2 if course.returns and begun["epoch"] % 3 == 2 else None
        batches = iter(loader)
        for number, (indices, contents) in enumerate(batches if halfway is None else islice(batches, halfway), 1):
            done += len(indices)
            wrong += _take(indices.numpy(), contents, seen, sums)
            if number % 16 == 0:
                _save(checkpoint, sampler.state_dict(samples=done), seen)
            time.sleep(course.step_s * random.uniform(0.8, 1.2))
        if halfway is not None:
            sampler.load_state_dict(json.loads(json.dumps(sampler.state_dict(samples=done))))
            del batches
            for indices, contents in loader:
                wrong += _take(indices.numpy(), contents, seen, sums)
                time.sleep(course.step_s)
        line = {"training": name, "epoch": begun["epoch"], "exact": bool((seen == 1).all()), "wrong": wrong}
        line |= {"resumed": begun["position"] > 0, "returned": halfway is not None}
        line |= {"seconds": round(time.monotonic() - began_s, 1), "at_s": round(time.time(), 1)}
        seen[:] = 0
        with (work / "epochs.jsonl").open("a") as out:
            out.write(json.dumps(line) + "\n")
        sampler.set_epoch(begun["epoch"] + 1)
        _save(checkpoint, sampler.state_dict(), seen)


def _take(indices: Any, contents: Any, seen: Any, sums: Any) -> int:
    """Count the samples of a batch, and return how many have wrong bytes."""
    np.add.at(seen, indices, 1)
    found = [zlib.crc32(each.encode() if isinstance(each, str) else each.numpy().tobytes()) for each in contents]
    return int((sums[indices] != found).sum())


def _save(path: Path, state: dict[str, Any], seen: Any) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps({"state": state, "seen": np.flatnonzero(seen).tolist()}))
    fresh.replace(path)


# -- the run -----------------------------------------------------------------------------------------------------------


def prepare(data: Path, work: Path) -> None:
    """Convert the data, and note the checksum of each sample."""
    import brand
    from brand.chunker import Options, convert_images

    convert_images(data / "images", work / "images.brand", Options(jobs=1))
    texts: list[dict[str, Any]] = []
    for path in sorted((data / "text").glob("*.jsonl")):
        with path.open() as lines:
            texts += [{"text": json.loads(line)["text"]} for line in islice(lines, RECORDS - len(texts))]
    texts.append({"text": f"written by process {os.getpid()}"})  # other runs have another common server
    bucket = work / "objects" / "bucket"
    bucket.mkdir(parents=True)
    for place in (work / "texts.brand", bucket / "texts.brand"):
        brand.pack(texts, place, {"text": "str"}, chunk_bytes=64 << 10, jobs=1)
    np.save(work / "text-sums.npy", np.array([zlib.crc32(each["text"].encode()) for each in texts], np.int64))
    decode = {"image": brand.DecodeImage(size=(32, 32))}
    images = brand.BrandDataset(work / "images.brand", fields=("image",), decode=decode)
    found = [zlib.crc32(np.ascontiguousarray(images[index][0]).tobytes()) for index in range(len(images))]
    np.save(work / "image-sums.npy", np.array(found, np.int64))


class Soak:
    """The trainings of a run, and the samples of their processes."""

    def __init__(self, work: Path, out: Path) -> None:
        self.work, self.out, self.random = work, out, random.Random(SEED)
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.kills = 0

    def __repr__(self) -> str:
        return f"Soak({str(self.work)!r}, {len(self.running)} running, {self.kills} killed)"

    def start(self, name: str) -> None:
        """Start a training, or continue it from its checkpoint."""
        command = [sys.executable, "-m", "bench.soak", "train", name, "--work", str(self.work)]
        with (self.work / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                command, env=os.environ | {ROLE: name}, stdout=log, stderr=log, start_new_session=True
            )

    def restart(self) -> None:
        """Start every training again that has ended."""
        for name, process in list(self.running.items()):
            if process.poll() is not None:
                self.say({"ended": name, "code": process.returncode})
                self.start(name)

    def kill(self) -> None:
        """Kill the next process."""
        target = ("guest", "workers of guest", "server of store")[self.kills % 3]
        self.kills += 1
        found = [pid for pid, role in self.roles().items() if role == target]
        for pid in found[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.say({"killed": target, "pids": found[:1]})

    def roles(self) -> dict[int, str]:
        """Return the role of each process, by its number."""
        leaders = {process.pid: name for name, process in self.running.items()}
        found = {os.getpid(): "store service"}
        for place in Path("/proc").iterdir():
            if place.name.isdigit():
                with suppress(OSError):
                    marks = (place / "environ").read_bytes().split(b"\0")
                    name = next((m.partition(b"=")[2].decode() for m in marks if m.startswith(ROLE.encode())), None)
                    if name is not None:
                        pid, command = int(place.name), (place / "cmdline").read_bytes()
                        kind = "workers" if b"bench.soak" in command else "server"
                        if b"serve.process" not in command and kind == "server":
                            kind = "helpers"
                        name = "records" if kind == "server" and name == "guest" else name
                        found[pid] = name if pid in leaders else f"{kind} of {name}"
        return found

    def sample(self) -> None:
        """Write a line with the sums by role."""
        by_role: dict[str, dict[str, float]] = {}
        for pid, role in self.roles().items():
            with suppress(OSError, ValueError):
                figures = by_role.setdefault(role, dict.fromkeys(COUNTS, 0))
                for name, value in zip(COUNTS, _figures(pid), strict=True):
                    figures[name] = round(figures[name] + value, 2)
        places = {"shm": Path("/dev/shm"), "tmp": self.work / "tmp", "caches": self.work}
        files = {name: _files(place, "cache-*/**/*" if name == "caches" else "**/*") for name, place in places.items()}
        self.say({"roles": by_role, "files": files})

    def say(self, line: dict[str, Any]) -> None:
        """Write a line."""
        with self.out.open("a") as out:
            out.write(json.dumps({"at_s": round(time.time(), 1)} | line) + "\n")

    def end(self) -> None:
        """End the trainings; their servers end with them."""
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            process.wait()
        until = time.monotonic() + 120
        while len(self.roles()) > 1 and time.monotonic() < until:
            time.sleep(1)
        self.say({"after_the_end": {str(pid): role for pid, role in self.roles().items() if pid != os.getpid()}})


def _figures(pid: int) -> tuple[float, ...]:
    place = Path(f"/proc/{pid}")
    rollup = dict(line.split()[:2] for line in (place / "smaps_rollup").read_text().splitlines()[1:])
    status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
    ticks = (place / "stat").read_text().rpartition(")")[2].split()
    private = int(rollup["Private_Clean:"]) + int(rollup["Private_Dirty:"])
    seconds = (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")
    descriptors = len(os.listdir(place / "fd"))
    return 1, descriptors, int(status["Threads"]), private / 1024, int(rollup["Pss:"]) / 1024, seconds


def _files(place: Path, pattern: str) -> list[int]:
    """Count files, and the bytes that they take."""
    sizes = []
    for path in place.glob(pattern):
        with suppress(OSError):
            if not path.is_dir():
                sizes.append(path.stat().st_blocks * 512)
    return [len(sizes), sum(sizes)]


def run(data: Path, work: Path, hours: float, out: Path) -> None:
    """Prepare, train, sample and kill."""
    from tests.tools.objects import ObjectStore

    work.mkdir(parents=True)
    (work / "tmp").mkdir()
    os.environ |= {"TMPDIR": str(work / "tmp"), "XDG_CACHE_HOME": str(work / "home"), "OMP_NUM_THREADS": "1"}
    prepare(data, work)
    with ObjectStore(str(work / "objects"), latency_s=0.005) as store:
        os.environ |= {"AWS_ENDPOINT_URL": store.url, "AWS_SKIP_SIGNATURE": "true"}
        soak = Soak(work, out)
        for name in courses(work):
            soak.start(name)
            time.sleep(5)
        ends, kills = time.monotonic() + hours * 3600, time.monotonic() + KILL_S
        try:
            while (now := time.monotonic()) < ends and not (work / "stop").exists():
                store.requests.clear()
                soak.restart()
                soak.sample()
                if now >= kills:
                    soak.kill()
                    kills += KILL_S * soak.random.uniform(0.7, 1.3)
                time.sleep(PERIOD_S)
        finally:
            soak.end()


# -- the result --------------------------------------------------------------------------------------------------------


def slopes(samples: list[dict[str, Any]]) -> list[list[str]]:
    """Return a row for each role that is never killed: its figures, their change per hour, and those that grow.

    Only the last two thirds of the run count. A figure grows if it gains more than 2 % and more than one in an hour,
    and its last quarter is above all before.
    """
    table = []
    for role in (*LONG, "workers of records"):
        medians, changes, growing = [], [], []
        for name in MEASURED:
            rows = [(line["at_s"], line["roles"][role][name]) for line in samples if role in line["roles"]]
            at_s, values = np.array(rows[len(rows) // 3 :]).T
            slope, level = float(np.polyfit(at_s / 3600, values, 1)[0]), float(np.median(values))
            last = len(values) * 3 // 4
            if slope > max(1.0, 0.02 * level) and np.median(values[last:]) > np.quantile(values[:last], 0.95):
                growing.append(name)
            medians.append(f"{level:.1f}")
            changes.append(f"{slope:+.2f}")
        table.append([role, *medians, *changes, ", ".join(growing) or "none"])
    return table


def show(path: Path, epochs: Path, out: Path | None, plot: Path | None) -> None:
    """Print the result of a run, write it as JSON, and draw it."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    samples, events = [line for line in lines if "roles" in line], [line for line in lines if "roles" not in line]
    ended = [json.loads(line) for line in epochs.read_text().splitlines()]
    hours = (samples[-1]["at_s"] - samples[0]["at_s"]) / 3600
    columns = ["role", *MEASURED, *(f"{name} an hour" for name in MEASURED), "grows"]
    harness.show("After a third of the run\n" + harness.table(columns, slopes(samples)))
    cpu_s = sum(sum(b["cpu_s"] - a["cpu_s"] for a, b in _pairs(samples, role)) for role in LONG)
    facts = {
        "hours": round(hours, 2),
        "samples": len(samples),
        "epochs": len(ended),
        "epochs exact": sum(each["exact"] and not each["wrong"] for each in ended),
        "epochs that go on from a checkpoint": sum(each["resumed"] for each in ended),
        "epochs that return to their own state": sum(each["returned"] for each in ended),
        "processes killed": sum("killed" in each for each in events),
        "most files in /dev/shm": max(line["files"]["shm"][0] for line in samples),
        "most temporary files": max(line["files"]["tmp"][0] for line in samples),
        "processes left after the end": sum(len(each.get("after_the_end", ())) for each in events),
        "cores of the long processes": round(cpu_s / hours / 3600, 3),
    }
    harness.show("All\n" + harness.table(["figure", "value"], [[name, str(value)] for name, value in facts.items()]))
    if out is not None:
        harness.save(out, __doc__, {"hours": facts["hours"]}, [], facts)
    if plot is not None:
        draw(samples, events, plot)


def _pairs(samples: list[dict[str, Any]], role: str) -> list[tuple[dict[str, float], dict[str, float]]]:
    found = [line["roles"][role] for line in samples if role in line["roles"]]
    return [(a, b) for a, b in pairwise(found) if b["cpu_s"] >= a["cpu_s"]]


def draw(samples: list[dict[str, Any]], events: list[dict[str, Any]], path: Path) -> None:
    """Draw descriptors, threads and memory of each role over time; a grey line is a kill."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(3, 1, figsize=(8, 8), sharex=True)
    start_s = samples[0]["at_s"]
    roles = (*LONG, "server of store", "workers of records", "guest")
    for axis, name in zip(axes, MEASURED, strict=True):
        for number, role in enumerate(roles):
            rows = [(line["at_s"] - start_s, line["roles"][role][name]) for line in samples if role in line["roles"]]
            at_s, values = np.array(rows).T
            axis.plot(at_s / 60, values, color=f"C{number}", lw=1, label=role)
        for each in events:
            if "killed" in each:
                axis.axvline((each["at_s"] - start_s) / 60, color="0.85", lw=0.7, zorder=0)
        axis.set(ylabel={"private_mb": "private memory, MB"}.get(name, name), ylim=(0, None))
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(fontsize=7, ncols=4, frameon=False, loc="lower right", bbox_to_anchor=(1, 1))
    axes[-1].set(xlabel="minutes; grey: a process is killed")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def isolate() -> None:
    """Start this program again with a /dev/shm of its own."""
    script = 'mount -t tmpfs -o size=2g tmpfs /dev/shm && exec "$0" -m bench.soak "$@"'
    os.environ["BRAND_SOAK_ISOLATED"] = "1"
    os.execvp("unshare", ["unshare", "--mount", "sh", "-c", script, sys.executable, *sys.argv[1:]])


def main() -> None:
    """Run, train or show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run")
    runs.add_argument("--data", type=Path, required=True)
    runs.add_argument("--hours", type=float, default=4.0)
    runs.add_argument("--samples", type=Path, required=True)
    trains = commands.add_parser("train")
    trains.add_argument("name")
    shows = commands.add_parser("show")
    shows.add_argument("--samples", type=Path, required=True)
    shows.add_argument("--epochs", type=Path, required=True, help="epochs.jsonl of the scratch folder")
    shows.add_argument("--out", type=Path)
    shows.add_argument("--plot", type=Path)
    for each in (runs, trains):
        each.add_argument("--work", type=Path, required=True)
    given = parser.parse_args()
    if given.command == "show":
        show(given.samples, given.epochs, given.out, given.plot)
    elif given.command == "train":
        train(given.name, given.work)
    elif os.environ.get("BRAND_SOAK_ISOLATED"):
        run(given.data, given.work, given.hours, given.samples)
    else:
        isolate()


if __name__ == "__main__":
    main()
