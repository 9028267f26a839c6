"""Thousands of damages, one after the other: what do `verify`, exact reads and draws make of them?

    python -m tests.tools.integrity [--trials 20000] [--seed N] [--first N] [--jobs 2] [--work FOLDER]

Child processes run the trials (`tests.tools.trials`), so a child that dies or hangs is counted and replaced. Prints
a table by kind of damage, and for each trial that went wrong the options that repeat it (`--seed S --first N --trials
1`). The exit code is 1 if any trial went wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import resource
import secrets
import selectors
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from brand.node.serve.process import tune_server_process
from tests.tools.damage import KINDS
from tests.tools.trials import make_sets, open_subjects, run_trial

STUCK_S: Final = 120.0
"""A process that writes nothing for so long counts as hung."""
LARGEST_BYTES: Final = 500_000_000
"""Memory that no process may exceed."""

Result = dict[str, Any]


def run(work: Path, seed: int, first: int, trials: int, jobs: int) -> Iterator[Result]:
    """Trials `first` to `first + trials - 1`, in the order in which they end."""
    make_sets(work / "sets")
    parts = [list(range(first + job, first + trials, jobs)) for job in range(jobs)]
    children = [_Child(work, seed, part) for part in parts if part]
    with selectors.DefaultSelector() as selector:
        for child in children:
            selector.register(child.start(), selectors.EVENT_READ, child)
        while selector.get_map():
            ready = selector.select(1.0)
            for key, _ in ready:
                child = key.data
                yield from child.results()
                if child.ended:
                    selector.unregister(key.fileobj)
                    yield from child.lost("died")
                    if child.left:
                        selector.register(child.start(), selectors.EVENT_READ, child)
            for child in children:
                if not child.ended and time.monotonic() - child.heard_s > STUCK_S:
                    child.process.kill()  # the loop then sees that it died


class _Child:
    """A process that runs trials. The parent starts it again when it dies."""

    def __init__(self, work: Path, seed: int, left: list[int]) -> None:
        self._work, self._seed, self.left = work, seed, left
        self.process: subprocess.Popen[bytes]
        self.ended, self.heard_s, self._rest = False, 0.0, b""

    def start(self) -> int:
        command = [
            sys.executable,
            "-m",
            "tests.tools.integrity",
            "--child",
            str(self._work),
            "--seed",
            str(self._seed),
        ]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(self.left).encode())
            self.process.stdin.close()
        self.ended, self.heard_s, self._rest = False, time.monotonic(), b""
        return self.process.stdout.fileno()

    def results(self) -> Iterator[Result]:
        """The results that it has written since the last call."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        self.heard_s, self.ended = time.monotonic(), not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            result = json.loads(line)
            self.left.remove(result["number"])
            yield result

    def lost(self, how: str) -> Iterator[Result]:
        """The trial in which the process died, if it did."""
        code = self.process.wait()
        if code and self.left:
            yield {
                "number": self.left.pop(0),
                "kind": "unknown",
                "story": "",
                "crashed": f"{how} with code {code}",
                "memory_bytes": 0,
            }


def _child(sets: Path, seed: int) -> None:
    """Run the trials that standard input names."""
    warnings.simplefilter("ignore")
    logging.getLogger("brand").addHandler(logging.NullHandler())
    logging.getLogger("brand").propagate = False
    tune_server_process()  # its threads serve
    subjects = open_subjects(sets)
    for number in json.load(sys.stdin):
        trial = run_trial(subjects, seed, number)
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        line = json.loads(trial.to_json()) | {"memory_bytes": most}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


def table(results: list[Result]) -> str:
    """Figures by kind."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        for kind in (result["kind"], "all"):
            counts = rows[kind]
            counts["trials"] += 1
            counts["live"] += result.get("live", False)
            counts["told"] += bool(result.get("told"))
            for name in ("read", "refused", "replaced"):
                counts[name] += result.get(name, 0)
            counts["wrong"] += len(result.get("wrong", ()))
            counts["crashed"] += bool(result.get("crashed"))
    names = ("trials", "live", "told", "read", "refused", "replaced", "wrong", "crashed")
    lines = [f"{'':10}" + "".join(f"{name:>12}" for name in names)]
    for kind in (*KINDS, "unknown", "all"):
        if kind in rows:
            lines.append(f"{kind:10}" + "".join(f"{rows[kind][name]:>12,}" for name in names))
    most = max((result.get("memory_bytes", 0) for result in results), default=0)
    return "\n".join([*lines, f"most memory of a process: {most / 1e6:,.0f} MB"])


def bad(result: Result) -> bool:
    """Whether a trial shows a defect."""
    untold = not result.get("told")
    return untold or bool(result.get("wrong")) or bool(result.get("crashed")) or result["memory_bytes"] > LARGEST_BYTES


def main() -> None:
    """Parent or child."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.integrity", description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=20_000)
    parser.add_argument("--seed", type=int, help="(a fresh one)")
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--work", type=Path, help="folder for the data sets (a temporary one)")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        _child(given.child / "sets", given.seed)
        return
    seed = secrets.randbits(32) if given.seed is None else given.seed
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="brand-integrity-", dir=given.work) as folder:
        for result in run(Path(folder), seed, given.first, given.trials, given.jobs):
            results.append(result)
            if bad(result):
                sys.stdout.write(f"--seed {seed} --first {result['number']} --trials 1: {json.dumps(result)}\n")
            if len(results) % 1000 == 0:
                sys.stderr.write(f"{len(results):,} of {given.trials:,}\n")
    sys.stdout.write(f"seed {seed}\n{table(results)}\n")
    sys.exit(any(map(bad, results)) or len(results) != given.trials)


if __name__ == "__main__":
    main()
