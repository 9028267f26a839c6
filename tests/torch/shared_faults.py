"""What becomes of jobs that share a server where one process is killed or stopped at any moment?

    python -m tests.torch.shared_faults [--rounds 100] [--first 0] [--seed 0] [--only FAULT ...] [--out FILE]
                                        [--orders ORDER ...] [--keep FOLDER]

A round has two to four jobs, each a process with its own batch size, loader, speed and begin, two epochs of a data set
of 900 pictures, and one fault. Their server is common to them, or was started by hand and prepares the pictures. A
round is right where each job gets each of its samples once an epoch, with the right pixels, and nothing is left of it:
a job that was killed goes on from its last checkpoint, and so do all jobs where a server that was started by hand is
killed, because then they end with an error that says so. A worker of a `DataLoader` that is killed ends its job, which
goes on, too. The target is any job, or the *leader*, which has got the most batches.

With `--orders coordl joader` the jobs draw in lock step, or by JOADER's rule. With `joader`, a job may be told to go on
under another name, where a server that was started after a kill knows another order.

The table has, for each fault, the longest time for which a job waited for a batch before the fault and after it: the
median and the maximum of the rounds. A job that was killed or stopped is left out, and so is the first batch of an
iteration whose workers have to start. `none` shows what the machine itself costs. `--seed` and the number of a round
fix all but the moment at which processes get the processor. `tests/torch/test_shared_faults.py` has some of these
rounds. `--keep` gets the folder of each round that was wrong: what its processes said, and the decisions of a server
that was started by hand, for `python -m tests.tools.replay`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import product
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import numpy as np

from brand import pack
from brand.torch.job.resolver import COMMON
from tests.leftovers import Leftovers
from tests.rounds import Chance
from tests.support import LIMIT_S, session_processes, wait_until
from tests.torch.shared_run import MEMORY, SharedJob, batches_of, count_batches, start, sums_of, trained

SAMPLES: Final = 900
EPOCHS: Final = 2
STOPPED_S: Final = 3.0
OTHER_NAME: Final = "a job of another name"
"""Of the error that a job gets where a server knows another order of its epoch."""
FAULTS: Final = (
    "none",
    "job killed",
    "server killed",
    "preparer stopped",
    "job stopped",
    "preparer killed",
    "preparing server killed",
    "worker killed",
    "worker stopped",
    "server stopped",
    "leader killed",
    "leader away",
)
ORDERS: Final = ("shared", "coordl", "joader")
_SERVE: Final = """
import faulthandler, signal
faulthandler.register(signal.SIGUSR1, all_threads=True)
from brand.cli.main import main
main()
"""
"""The command, which tells on demand where it is."""
PICTURES: Final = Path(__file__).parents[2] / "examples" / "data" / "fashion-mnist-small.zip"


@dataclass(frozen=True)
class Found:
    """What a round that was right has shown."""

    fault: str
    order: str
    before_s: float
    """The longest wait for a batch before the fault."""
    after_s: float
    """The longest wait of a job that was not the target, after the fault."""
    resumed: int
    """How many jobs were started again."""
    renamed: int
    """How many of these under another name."""


def images_of(count: int) -> list[bytes]:
    """Images that differ."""
    with zipfile.ZipFile(PICTURES) as archive:
        names = sorted(name for name in archive.namelist() if name.startswith("train/") and name.endswith(".png"))
        return [archive.read(name) for name in names[:: len(names) // count][:count]]


def make_pictures(folder: Path) -> tuple[Path, Path]:
    """A data set of pictures, and the file of their checksums. No other process has a data set with the same id."""
    samples = [{"image": image, "made_by": os.getpid()} for image in images_of(SAMPLES)]
    target, sums = folder / "pictures.brand", folder / "sums.npy"
    pack(samples, target, {"image": "image", "made_by": "int"}, chunk_size=32, jobs=1)
    np.save(sums, sums_of(target))
    return target, sums


@dataclass
class Round:
    """The processes of a round."""

    chance: Chance
    fault: str
    data: Path
    sums: Path
    folder: Path
    left: Leftovers
    limit_s: float = LIMIT_S
    order: str = "shared"
    jobs: list[SharedJob] = field(default_factory=list)
    runs: list[list[BaseProcess]] = field(default_factory=list)
    """Processes of each job, the last one runs."""
    servers: list[int] = field(default_factory=list)
    """Processes of servers that were started by hand."""
    renamed: int = 0

    def play(self) -> Found:
        """Let the jobs run, with the fault. Raises AssertionError where anything is wrong."""
        rng = self.chance.rng
        with ExitStack() as stack:
            address = self._address()
            if address != COMMON:
                stack.enter_context(self._serving(address))
            stack.callback(self._end)
            count = rng.randint(2, 4)
            self.jobs = [self._job(number, address, count) for number in range(count)]
            for job in self.jobs:
                self.runs.append([])
                self._start(job)
            self._moment()
            at_s, target = time.monotonic(), self._target()
            self._strike(target)
            if self.fault == "preparing server killed":
                self._wait_for_ends()
                assert all(self._ended_well(job) or "ServerError: " in self._said(job) for job in self.jobs), (
                    self.said()
                )
                stack.enter_context(self._serving(address))
                for job in self.jobs:
                    if not self._ended_well(job):
                        self._start(job)
            self._wait_for_ends()
            for job in self.jobs:
                if not self._ended_well(job) and OTHER_NAME in self._said(job):
                    self.renamed += 1
                    self.jobs[job.number] = replace(job, name=" again")
                    self._start(self.jobs[job.number])
            self._wait_for_ends()
            assert all(self._ended_well(job) for job in self.jobs), self.said()
        self.left.check()
        self._check()
        before_s, after_s = self._waits(at_s, target)
        return Found(self.fault, self.order, before_s, after_s, sum(len(runs) - 1 for runs in self.runs), self.renamed)

    def said(self) -> str:
        """What all processes have said."""
        return "\n".join(f"{path.name}\n{path.read_text()}" for path in sorted(self.folder.glob("*.txt")))

    # -- steps -------------------------------------------------------------------------------------------------------

    def _address(self) -> str:
        prepares = self.fault.startswith("prepar") or (self.fault != "server killed" and self.chance.rng.random() < 0.5)
        return f"unix:@brand-faults-{secrets.token_hex(8)}" if prepares else COMMON

    @contextmanager
    def _serving(self, address: str) -> Iterator[None]:
        """A server that was started by hand, and prepares."""
        command = [sys.executable, "-c", _SERVE, "serve", str(self.data), "--memory", str(MEMORY)]
        command += ["--decoded-memory", "1MB", "--decode-workers", "2", "--address", address]
        command += ["--record", str(self.folder / f"decisions-{len(self.servers)}.log")]
        environment = os.environ | self.left.environment
        with (
            (self.folder / "server.txt").open("ab") as said,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, env=environment) as process,
        ):
            try:
                assert process.stdout is not None
                assert process.stdout.readline().strip() == address, self.said()
                self.servers.append(process.pid)
                yield
            finally:
                process.terminate()

    def _job(self, number: int, address: str, count: int) -> SharedJob:
        rng = self.chance.rng
        batch, epoch_s = rng.randint(5, 40), rng.choice([0.5, 1.0, 1.0, 2.0])
        return SharedJob(
            number,
            self.data,
            self.sums,
            self.folder,
            address,
            batch,
            EPOCHS,
            workers=rng.choice([1, 2] if self.fault.startswith("worker") else [-1, -1, 0, 1, 2]),
            some=rng.random() < 0.3 and self.order != "coordl",
            step_s=epoch_s * batch / SAMPLES,
            late_s=rng.choice([0.0, rng.uniform(0, 1.5)]),
            every=rng.randint(1, 8),
            environment=self.left.environment,
            order=f"coordl {count}" if self.order == "coordl" else self.order,
        )

    def _start(self, job: SharedJob) -> None:
        runs = self.runs[job.number]
        runs.append(start(job, len(runs)))
        pid = runs[-1].pid
        assert pid is not None
        self.left.sessions.add(pid)

    def _moment(self) -> None:
        """Wait until any moment: while the jobs start, or once any of them has so many batches."""
        rng = self.chance.rng
        if rng.random() < 0.15:
            time.sleep(rng.uniform(0, 1.5))
        else:
            job = rng.choice(self.jobs)
            most = EPOCHS * (int(job.part(SAMPLES).sum()) // job.batch)
            batches = rng.randint(1, most - 1)
            self._wait(lambda: count_batches(job) >= batches or not self._runs(job), f"{batches} batches")
        time.sleep(rng.uniform(0, 0.01))
        self.left.note_sockets()

    def _strike(self, target: int) -> None:
        """The fault happens. A job that was killed is started again."""
        rng, session = self.chance.rng, self.runs[target][-1].pid
        assert session is not None
        if self.fault in ("job killed", "leader killed"):
            with suppress(ProcessLookupError):
                os.kill(session, signal.SIGKILL)
            self.runs[target][-1].join(self.limit_s)
            if not self._ended_well(self.jobs[target]):
                self._start(self.jobs[target])
        elif self.fault == "job stopped":
            _stop_and_go(session_processes(session))
        elif self.fault == "leader away":
            self._away(session)
        elif self.fault == "worker killed":
            self._kill(self._workers(session))
            self._wait(lambda: not self._runs(self.jobs[target]), "the job has lost a worker")
            if not self._ended_well(self.jobs[target]):
                self._start(self.jobs[target])
        elif self.fault == "worker stopped":
            _stop_and_go(self._workers(session))
        elif self.fault == "server stopped":
            _stop_and_go(self.left.servers() + self.servers)
        elif self.fault == "server killed":
            self._kill(self.left.servers())
        elif self.fault == "preparing server killed":
            self._kill(self.servers)
        elif self.fault == "preparer killed":
            self._kill(self._preparers(rng))
        elif self.fault == "preparer stopped":
            _stop_and_go(self._preparers(rng), goes_on=rng.random() < 0.5)

    def _target(self) -> int:
        """The job that is struck."""
        if self.fault.startswith("leader"):
            return max(range(len(self.jobs)), key=lambda number: count_batches(self.jobs[number]))
        return self.chance.rng.randrange(len(self.jobs))

    def _away(self, session: int) -> None:
        """A job does nothing until the others have ended."""
        others = [job for job in self.jobs if self.runs[job.number][-1].pid != session]
        stopped = session_processes(session)
        for process in stopped:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)
        try:
            self._wait(lambda: not any(map(self._runs, others)), "the others end")
        finally:
            for process in stopped:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)

    def _workers(self, session: int) -> list[int]:
        """One of the workers of a job, if there are any now."""
        found = [process for process in session_processes(session) if process != session]
        return self.chance.rng.sample(found, 1) if found else []

    def _preparers(self, rng: random.Random) -> list[int]:
        """One of the preparers."""
        return rng.sample(found, 1) if (found := self.left.programs(b"brand.node.serve.decode_worker")) else []

    def _kill(self, processes: list[int]) -> None:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def _wait_for_ends(self) -> None:
        self._wait(lambda: not any(map(self._runs, self.jobs)), "all jobs end")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait; where it takes too long, tell where the processes are."""

        def holds() -> bool:
            time.sleep(0.01)  # the processor is for the jobs
            return condition()

        try:
            wait_until(holds, what, limit_s=self.limit_s)
        except AssertionError:
            asked = [process for session in self.left.sessions for process in session_processes(session)]
            for process in [*asked, *self.servers]:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGUSR1)
            time.sleep(1)  # what they say has no end that could be waited for
            got = [count_batches(job) for job in self.jobs]
            raise AssertionError(f"still waiting: {what}; batches of the jobs: {got}\n{self.said()}") from None

    def _end(self) -> None:
        """End what still runs."""
        for process in (process for session in self.left.sessions for process in session_processes(session)):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        for runs in self.runs:
            runs[-1].join(self.limit_s)

    # -- questions ---------------------------------------------------------------------------------------------------

    def _runs(self, job: SharedJob) -> bool:
        return self.runs[job.number][-1].is_alive()

    def _ended_well(self, job: SharedJob) -> bool:
        return self.runs[job.number][-1].exitcode == 0

    def _said(self, job: SharedJob) -> str:
        return job.said(len(self.runs[job.number]) - 1).read_text()

    def _check(self) -> None:
        """Each sample once an epoch, and right."""
        for job in self.jobs:
            assert not [line["wrong"] for line in batches_of(job) if line["wrong"]], f"job {job.number}: wrong pixels"
            wanted = np.flatnonzero(job.part(SAMPLES)).tolist()
            for epoch, found in enumerate(trained(job)):
                assert sorted(found) == wanted, f"job {job.number}, epoch {epoch}: not each sample once"

    def _waits(self, at_s: float, target: int) -> tuple[float, float]:
        """The longest wait before the fault, and the longest one after it of jobs that are not its target."""
        before, after = [0.0], [0.0]
        for job in self.jobs:
            struck = self.fault.startswith(("job", "leader", "worker")) and job.number == target
            for line in batches_of(job):
                if not line["first"] or (job.workers <= 0 and line["run"] == 0 and line["epoch"] > 0):
                    wait_s = line["to_s"] - line["from_s"]
                    if line["to_s"] <= at_s:
                        before.append(wait_s)
                    elif not struck:
                        after.append(wait_s)
        return max(before), max(after)


def _stop_and_go(processes: list[int], *, goes_on: bool = True) -> None:
    """Stop processes for a while; those that do not go on are ended by others."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGSTOP)
    if goes_on:
        time.sleep(STOPPED_S)
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


def main() -> None:
    """Play rounds, and print what they have shown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=list(FAULTS), metavar="FAULT")
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=["shared"], metavar="ORDER")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the folders of wrong rounds go")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    found, failed = list[Found](), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as place:
        data, sums = make_pictures(given.keep or Path(place))
        for number in range(given.first, given.first + given.rounds):
            fault, chance = given.only[number % len(given.only)], Chance(given.seed, number)
            order = given.orders[number // len(given.only) % len(given.orders)]
            with (
                tempfile.TemporaryDirectory(prefix="brand-", dir="/tmp") as left,
                tempfile.TemporaryDirectory() as here,
            ):
                played = Round(chance, fault, data, sums, Path(here), Leftovers(Path(left)), 240, order)
                try:
                    found.append(played.play())
                    _say(f"{chance} {order}, {fault}: {found[-1].after_s:.2f} s")
                except Exception:  # noqa: BLE001 - the next rounds are of interest, too
                    if given.keep is not None:
                        shutil.copytree(here, given.keep / str(chance))
                    failed.append({"round": str(chance), "fault": fault, "order": order, "why": traceback.format_exc()})
                    _say(f"{chance} {order}, {fault}: FAILED\n{failed[-1]['why']}")
    _say(f"\n| order | {'fault':23} | rounds | failed | waited before, s | and after |\n|{' --- |' * 6}")
    for order, fault in product(given.orders, given.only):
        rounds = [each for each in found if (each.order, each.fault) == (order, fault)]
        wrong = sum((each["order"], each["fault"]) == (order, fault) for each in failed)
        waits = [
            _middle_and_most([each.before_s for each in rounds]),
            _middle_and_most([each.after_s for each in rounds]),
        ]
        _say(f"| {order} | {fault:23} | {len(rounds) + wrong} | {wrong} | {waits[0]} | {waits[1]} |")
    if given.out:
        rows = [vars(each) for each in found]
        given.out.write_text(json.dumps({"argv": sys.argv[1:], "rounds": rows, "failed": failed}, indent=1))
    sys.exit(bool(failed))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _middle_and_most(values: list[float]) -> str:
    return f"{statistics.median(values):.2f}, at most {max(values):.2f}" if values else ""


if __name__ == "__main__":
    main()
