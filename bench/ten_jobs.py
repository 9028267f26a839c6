"""Do ten jobs of one user on one machine get each of their samples once an epoch, with ten servers or one, under kills?

    python -m bench.ten_jobs --rounds 10 --out bench/results/ten-jobs.json

A round has ten trainings of a data set of 900 images and 45 MB, two epochs each, with an order, a loader, a batch size
and a pace at random: `stripes`, `slots`, `uniform`, `pool`, `shared`, `joader`, and two with `coordl`. In odd rounds
all of them use one server (`server="common"`), in even rounds each has its own. Half of the trainings have a cache
folder; two of these have the same one. Six processes are killed with SIGKILL at random moments: trainings, workers,
servers. A training that ended goes on from its last checkpoint.

A round is right if each training got each sample once an epoch with the right pixels, and if no process, socket, shared
memory or temporary file is left. The columns have the largest memory of a server: the shared one, which may take what
`memory=` says and 5 MB for decoded images, and the rest, which may take 100 MB (docs/reference/memory.md).
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench import harness
from brand import pack
from brand.storage.dataset.dataset import StoredDataSet
from brand.torch.job.resolver import COMMON
from tests.leftovers import Leftovers
from tests.rounds import Chance
from tests.support import session_processes
from tests.torch.shared_faults import EPOCHS, OTHER_NAME, SAMPLES, images_of
from tests.torch.shared_run import MEMORY, SharedJob, batches_of, start, sums_of, trained

JOBS: Final = 10
KILLS: Final = 6
LIMIT_S: Final = 300.0
PADDING: Final = 50_000
DECODED_MB: Final = 5.0
"""For 900 decoded images, each in a page, and small memories that a server shares."""
ORDERS: Final = ("stripes", "slots", "uniform", "pool", "shared", "joader")


@dataclass
class Round:
    """The result of a round."""

    number: int
    server: str
    """"one", or "ten"."""
    killed: list[str] = field(default_factory=list)
    resumed: int = 0
    batches: int = 0
    most_servers: int = 0
    """The most servers at a time."""
    arena_mb: float = 0.0
    """The largest arena of a server."""
    rest_mb: float = 0.0
    """The largest private memory of a server."""
    seconds: float = 0.0
    wrong: str = ""


def make_data(folder: Path) -> tuple[Path, Path]:
    """Return a data set of images with padding, and the file of their checksums."""
    noise = np.random.default_rng(0)
    samples = [
        {"image": image, "padding": noise.bytes(PADDING), "made_by": os.getpid()} for image in images_of(SAMPLES)
    ]
    target, sums = folder / "images.brand", folder / "sums.npy"
    schema = {"image": "image", "padding": "bytes", "made_by": "int"}
    pack(samples, target, schema, chunk_size=32, compression="none", jobs=1)
    np.save(sums, sums_of(target))
    return target, sums


def play(number: int, seed: int, data: Path, sums: Path, folder: Path, left: Leftovers) -> Round:
    """Play a round."""
    played, rng = Round(number, "one" if number % 2 else "ten"), random.Random(str(Chance(seed, number)))
    orders = [*(rng.choice(ORDERS) for _ in range(JOBS - 2)), "coordl 2", "coordl 2"]
    if played.server == "ten":
        orders = [order.replace("coordl 2", "coordl 1") for order in orders]
    jobs = [_job(each, order, played, rng, data, sums, folder, left) for each, order in enumerate(orders)]
    runs: list[list[BaseProcess]] = [[] for _ in jobs]
    began_s = time.monotonic()
    kills = sorted(rng.uniform(2, 25) for _ in range(KILLS))
    try:
        for each in range(JOBS):
            _start(each, jobs, runs, left)
        while any(processes[-1].exitcode != 0 for processes in runs):
            now_s = time.monotonic() - began_s
            if now_s > LIMIT_S:
                raise AssertionError(
                    f"still running: {[jobs[n].order for n in range(JOBS) if runs[n][-1].exitcode != 0]}"
                )
            if kills and now_s > kills[0]:
                kills.pop(0)
                left.note_sockets()
                played.killed.append(_kill(rng, runs, left))
            for each, processes in enumerate(runs):
                code = processes[-1].exitcode
                if code not in (0, None):
                    said = jobs[each].said(len(processes) - 1).read_text() if code > 0 else ""
                    if code > 0 and "DataLoader worker" not in said and OTHER_NAME not in said:
                        raise AssertionError(f"{jobs[each].order}: ended with {code}\n{said}")
                    if OTHER_NAME in said:
                        jobs[each] = replace(jobs[each], name=f" {len(processes)}")
                    _start(each, jobs, runs, left)
                    played.resumed += 1
            _measure(played, left, StoredDataSet(data).manifest.stored_bytes * MEMORY)
            time.sleep(0.2)
    finally:
        for process in (process for session in left.sessions for process in session_processes(session)):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    left.check()
    for job in jobs:
        lines = batches_of(job)
        played.batches += len(lines)
        assert not [line["wrong"] for line in lines if line["wrong"]], f"{job.order}: wrong pixels"
        for epoch, found in enumerate(trained(job)):
            assert sorted(found) == list(range(SAMPLES)), f"{job.order}, epoch {epoch}: not each sample once"
    played.seconds = round(time.monotonic() - began_s, 1)
    return played


def _job(
    number: int, order: str, played: Round, rng: random.Random, data: Path, sums: Path, folder: Path, left: Leftovers
) -> SharedJob:
    batch = rng.randint(8, 40)
    cache = folder / f"cache-{max(1, number)}" if number < JOBS // 2 else None  # the first two have the same
    return SharedJob(
        number,
        data,
        sums,
        folder,
        COMMON if played.server == "one" else None,
        batch,
        EPOCHS,
        workers=rng.choice([-1, -1, -1, 0, 1, 2]),
        some=False,
        step_s=rng.uniform(4, 10) * batch / SAMPLES,
        late_s=rng.uniform(0, 3),
        every=rng.randint(1, 8),
        environment=left.environment,
        order=order,
        cache=cache,
    )


def _start(number: int, jobs: list[SharedJob], runs: list[list[BaseProcess]], left: Leftovers) -> None:
    runs[number].append(start(jobs[number], len(runs[number])))
    pid = runs[number][-1].pid
    assert pid is not None
    left.sessions.add(pid)


def _kill(rng: random.Random, runs: list[list[BaseProcess]], left: Leftovers) -> str:
    """Kill a training, a worker or a server."""
    trainings = [processes[-1].pid for processes in runs if processes[-1].is_alive()]
    workers = [each for pid in trainings if pid for each in session_processes(pid) if each != pid]
    kinds: dict[str, list[Any]] = {"training": trainings, "worker": workers, "server": left.servers()}
    kind = rng.choice([kind for kind, found in kinds.items() if found] or ["training"])
    for process in rng.sample(kinds[kind], min(1, len(kinds[kind]))):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return kind


def _measure(played: Round, left: Leftovers, limit: float) -> None:
    servers = left.servers()
    played.most_servers = max(played.most_servers, len(servers))
    for server in servers:
        with suppress(OSError, TypeError):
            status = Path(f"/proc/{server}/status").read_text()
            arena, rest = (int(re.search(rf"{name}:\s+(\d+)", status)[1]) / 1000 for name in ("RssShmem", "RssAnon"))  # type: ignore[index]
            played.arena_mb, played.rest_mb = max(played.arena_mb, arena), max(played.rest_mb, rest)
    assert played.arena_mb <= limit * 1.05 / 1e6 + DECODED_MB, f"shared memory of {played.arena_mb} MB"
    assert played.rest_mb <= 100, f"a server of {played.rest_mb} MB"


def main() -> None:
    """Play rounds, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--step", type=int, default=1, help="2: only rounds with one server, or with ten")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rounds, rows = [], []
    with tempfile.TemporaryDirectory() as place:
        data, sums = make_data(Path(place))
        for number in range(given.first, given.first + given.rounds * given.step, given.step):
            with (
                tempfile.TemporaryDirectory(prefix="brand-", dir="/tmp") as left,
                tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as here,
            ):
                try:
                    played = play(number, given.seed, data, sums, Path(here), Leftovers(Path(left)))
                except AssertionError:
                    played = Round(number, "one" if number % 2 else "ten", wrong=traceback.format_exc())
            rounds.append(asdict(played))
            row = [
                number,
                f"{played.server}, {played.most_servers} at a time",
                ", ".join(played.killed),
                played.resumed,
            ]
            row += [
                played.batches,
                f"{played.arena_mb:.1f}",
                f"{played.rest_mb:.1f}",
                played.seconds,
                bool(played.wrong),
            ]
            rows.append(list(map(str, row)))
            sys.stdout.write(f"{' | '.join(rows[-1])} {played.wrong}\n")
            sys.stdout.flush()
    columns = ["round", "servers", "killed", "resumed", "batches", "shared, MB", "rest, MB", "s", "wrong"]
    harness.show("Ten jobs\n" + harness.table(columns, rows))
    if given.out:
        harness.save(given.out, __doc__, {"seed": given.seed}, [], rounds)
    sys.exit(any(each["wrong"] for each in rounds))


if __name__ == "__main__":
    main()
