"""What do jobs gain that train on one data set at the same time, and share a node server?

    python -m bench.sharing --data images.brand --images FOLDER [--jobs 2] [--seconds 25] [--repeat 3] [--out FILE]

Each job is a process of its own. It decodes pictures to a shorter side of 256 pixels, and cuts 224 x 224 pixels out of
each at random: the first part is the same for all jobs, the second is each job's own. Training costs nothing, so the
processors decide. All jobs of an arm begin together and run for so many seconds after their first batch. The arms take
turns; the table has the medians of the sums of all jobs, and the ratio to the first arm within each turn.

    plain     a DataLoader with one worker process for each job, over the folder of pictures
    apart     a node server for each job, which prepares for itself
    reading   one node server; each job prepares for itself
    shared    one node server, which prepares once for all jobs (`--prepared`)
    common    `server="common"`: the first job starts the server, which prepares from the second job on
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from bench.harness import machine, progress, show, table
from brand import BrandDataset, BrandLoader, BrandSampler, Picture

ARMS: Final = ("plain", "apart", "reading", "shared", "common")
BATCH, SIDE = 64, 224
PREPARE: Final = Picture(shorter=256)


def cut(picture: np.ndarray[Any, Any]) -> torch.Tensor:
    """224 x 224 pixels at random, perhaps mirrored; a picture that is smaller is repeated at its edges."""
    height, width = picture.shape[:2]
    if height < SIDE or width < SIDE:
        picture = np.pad(picture, ((0, max(0, SIDE - height)), (0, max(0, SIDE - width)), (0, 0)), "edge")
        height, width = picture.shape[:2]
    top, left = random.randint(0, height - SIDE), random.randint(0, width - SIDE)
    found = picture[top : top + SIDE, left : left + SIDE]
    return torch.from_numpy(np.ascontiguousarray(found[:, ::-1] if random.random() < 0.5 else found))


class Folder(Dataset[torch.Tensor]):
    """Pictures of a folder, decoded by Pillow as most trainings do."""

    def __init__(self, folder: str) -> None:
        self.paths = sorted(str(path) for path in Path(folder).rglob("*") if path.is_file())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.paths[index]) as opened:
            picture = opened.convert("RGB")
            scale = 256 / min(picture.size)
            size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
            return cut(np.asarray(picture.resize(size, Image.Resampling.BILINEAR)))


def loader_of(arm: str, data: str, images: str, server: str, name: str) -> Any:
    """The loader of a job."""
    if arm == "plain":
        return DataLoader(Folder(images), BATCH, shuffle=True, num_workers=1)
    more = {} if arm == "apart" else {"server": server, "job": name}
    data_set = BrandDataset(
        data,
        fields=("image", "label"),
        prepare={"image": PREPARE},
        transform={"image": cut},
        protocol="stripes" if arm == "apart" else "shared",
        memory=0.25 if arm in ("apart", "common") else None,
        **more,  # type: ignore[arg-type]
    )
    return BrandLoader(data_set, BATCH, sampler=BrandSampler(data_set), threads=1, ahead=4)


def work(arm: str, data: str, images: str, server: str, name: str, seconds: float) -> None:
    """One job: say `ready` at the first batch, begin at a line of standard input, and print how many came."""
    loader = loader_of(arm, data, images, server, name)
    batches = iter(loader)
    next(batches)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    started, done = time.perf_counter(), 0
    for batch in batches:
        done += len(batch) if arm == "plain" else len(batch[0])
        if time.perf_counter() - started > seconds:
            break
    sys.stdout.write(json.dumps({"images": done, "seconds": time.perf_counter() - started}) + "\n")
    sys.stdout.flush()
    os._exit(0)  # workers of a DataLoader would finish their batches first


@contextmanager
def serving(data: str, prepared: str | None) -> Iterator[str]:
    """A server, and where it listens."""
    address = f"unix:@bench-sharing-{os.getpid()}"
    command = [sys.executable, "-m", "brand", "serve", data, "--memory", "0.25", "--address", address]
    with subprocess.Popen(
        command + (["--prepared", prepared] if prepared else []), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield address
        finally:
            process.terminate()


def turn(arm: str, jobs: int, given: argparse.Namespace) -> dict[str, float]:
    """Let all jobs of an arm run."""
    with ExitStack() as stack:
        server = "common" if arm == "common" else ""
        if arm in ("reading", "shared"):
            server = stack.enter_context(serving(given.data, given.prepared if arm == "shared" else None))
        base = [sys.executable, "-m", "bench.sharing", "--data", given.data, "--images", given.images]
        processes = [
            subprocess.Popen(
                [*base, "--seconds", str(given.seconds), "--work", arm, server or "-", f"job {number}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(jobs)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        found = [json.loads(process.communicate()[0]) for process in processes]
        served = arm in ("reading", "shared")  # a common server ends with its jobs
        facts = BrandDataset(given.data, server=server)._node.stats() if served else {}
    prepared = facts.get("prepared") or {}
    return {
        "images_per_s": sum(each["images"] / each["seconds"] for each in found),
        "least": min(each["images"] / each["seconds"] for each in found),
        "prepared_per_draw": prepared.get("made", 0) / max(1, facts.get("draws", 0)) if prepared else float("nan"),
        "read_per_draw": facts["amplification"] if facts else float("nan"),
    }


def main() -> None:
    """Run the arms and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", required=True, help="a data set of pictures")
    parser.add_argument("--images", required=True, help="the folder of the same pictures")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=25)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--prepared", default="1GB", help="memory for prepared pictures")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        arm, server, name = given.work
        work(arm, given.data, given.images, server, name, given.seconds)
    found: dict[str, list[dict[str, float]]] = {arm: [] for arm in given.arms}
    for _ in range(given.repeat):
        for arm in given.arms:
            found[arm].append(turn(arm, given.jobs, given))
            progress(f"{arm}: {found[arm][-1]['images_per_s']:.0f} images/s")
    first = found[given.arms[0]]
    rows = []
    for arm, turns in found.items():
        ratio = statistics.median(
            mine["images_per_s"] / theirs["images_per_s"] for mine, theirs in zip(turns, first, strict=True)
        )
        middle = {name: statistics.median(each[name] for each in turns) for name in turns[0]}
        rows.append([arm, *(f"{middle[name]:.2f}" for name in middle), f"{ratio:.2f}"])
    heads = ["arm", "images/s, all jobs", "slowest job", "prepared per draw", "read per draw", f"/ {given.arms[0]}"]
    show(table(heads, rows))
    if given.out:
        given.out.write_text(json.dumps({"machine": machine(), "jobs": given.jobs, "turns": found}, indent=1))


if __name__ == "__main__":
    main()
