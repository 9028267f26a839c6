"""Does Brand work here? A child process packs a data set, reads it by index, trains from it, and resumes a training.

It works in a temporary folder. `brand doctor` loads no PyTorch itself, so it survives a crash of the child, and ends a
child that takes too long. The child reads the folder to work in from standard input. For each step it writes a JSON
line: its name, its seconds, and its fault or the missing package, if any. It ends after the first of these.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from brand.chunker import pack
from brand.doctor.packages import NO_TEMPORARY, CheckResult
from brand.doctor.system import temporary_folder
from brand.errors import BrandError, MissingExtraError, NoThreadError, counted
from brand.pythonchild import child_command
from brand.starting import not_started
from brand.storage.dataset.dataset import StoredDataSet

if TYPE_CHECKING:
    from brand.torch import BrandLoader

_PART: Final = "self-test"
SAMPLES: Final = 2000
BATCH: Final = 50
STEPS: Final = ("pack", "random access", "load PyTorch", "an epoch", "resume", "statistics", "DataLoader")
_CHUNK: Final = 32
_SEED: Final = 1
LIMIT_S: Final = 120.0
"""Maximum time of the whole self-test: it takes some seconds, and more if PyTorch is on a network drive."""
_REPORT: Final = "report it with the output of `brand doctor --json`"

OnStep = Callable[[int, int], None]
"""Receives the number of steps that are done, and the number of all steps."""


def run_selftest(on_step: OnStep, *, limit_s: float = LIMIT_S) -> list[CheckResult]:
    """Run the steps of the self-test, up to the first that fails."""
    if not temporary_folder():
        told = "there is no folder for a small data set, so nothing was tried"
        return [CheckResult(_PART, STEPS[0], "missing", told, NO_TEMPORARY)]
    with tempfile.TemporaryDirectory(prefix="brand-doctor-", ignore_cleanup_errors=True) as folder:
        return list(judge(*_run(folder, on_step, limit_s)))


def _run(folder: str, on_step: OnStep, limit_s: float) -> tuple[list[dict[str, Any]], str]:
    """Return the child's reports about its steps, and how it ended."""
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryFile() as errors:  # a pipe would stay open as long as the server that the child starts
        command, begun = child_command("brand.doctor.selftest"), time.monotonic()
        started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        with started as process, _ended_after(limit_s, process):
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(folder))
                process.stdin.close()
            for line in process.stdout:
                lines.append(json.loads(line))
                on_step(len(lines), len(STEPS))
        if time.monotonic() - begun >= limit_s:
            return lines, f"it did not finish within {counted(round(limit_s), 'second')}"
        errors.seek(0)
        last = errors.read().decode(errors="replace").strip().splitlines()[-1:]
    return lines, ": ".join([f"the process ended with code {process.returncode}", *last])


@contextmanager
def _ended_after(limit_s: float, process: subprocess.Popen[str]) -> Iterator[None]:
    watch = threading.Timer(limit_s, process.kill)
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


def judge(lines: list[dict[str, Any]], ending: str) -> Iterator[CheckResult]:
    """Yield a result for each completed step, and one for the step at which the process ended too early. Pure."""
    for line in lines:
        if "missing" in line:
            told, _, cure = line["missing"].rpartition(": ")  # as in `brand.torch needs PyTorch: pip install ...`
            yield CheckResult(_PART, line["step"], "missing", told, cure)
            return
        if "error" in line:
            yield CheckResult(_PART, line["step"], "problem", line["error"], line.get("cure", _REPORT))
            return
        yield CheckResult(_PART, line["step"], "ok", "", seconds=line["seconds"])
    if len(lines) < len(STEPS):
        yield CheckResult(_PART, STEPS[len(lines)], "problem", ending, _REPORT)


def main() -> None:
    """Run the steps, until one fails."""
    folder = Path(json.load(sys.stdin))
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        trial = _Trial(folder / "trial.brand")
        steps = (trial.pack, trial.exact, trial.load, trial.epoch, trial.resume, trial.statistics, trial.workers)
        for name, step in zip(STEPS, steps, strict=True):
            told = {"step": name, **_taken(step)}
            out.write(json.dumps(told) + "\n")
            out.flush()
            if "error" in told or "missing" in told:
                return


def _taken(step: Callable[[], None]) -> dict[str, Any]:
    """Return the duration of a step, and why it failed."""
    started = time.monotonic()
    try:
        step()
    except MissingExtraError as error:
        return {"missing": str(error)}
    except (RuntimeError, BrandError) as error:
        why = not_started(error)
        known = why or isinstance(error, NoThreadError)
        return {"error": why or str(error)} | ({"cure": ""} if known else {})
    except Exception as error:  # noqa: BLE001 - whatever does not work here is the result
        return {"error": f"{type(error).__name__}: {error}"}
    return {"seconds": time.monotonic() - started}


class _Trial:
    """The steps, and the data that they pass on."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._loader: BrandLoader
        self._epoch: list[int] = []

    def pack(self) -> None:
        """Pack samples whose contents follow from their index."""
        pack(
            ({"key": f"{index:04}", "number": index, "data": _bytes(index)} for index in range(SAMPLES)),
            self._target,
            schema={"key": "str", "number": "int", "data": "bytes"},
            chunk_size=_CHUNK,
            jobs=1,
        )

    def exact(self) -> None:
        """Read every sample by its index, in random order."""
        order = list(range(SAMPLES))
        random.Random(_SEED).shuffle(order)
        for sample, index in zip(StoredDataSet(self._target).samples(order), order, strict=True):
            _check(sample["number"] == index and sample["data"] == _bytes(index), f"sample {index} is a different one")

    def load(self) -> None:
        """Import PyTorch, and open the data set for a training."""
        from brand.torch import BrandDataset, BrandLoader, BrandSampler

        data = BrandDataset(self._target, fields=("number", "data"), memory=0.5)
        self._loader = BrandLoader(data, BATCH, sampler=BrandSampler(data, seed=_SEED, num_replicas=1, rank=0))

    def epoch(self) -> None:
        """Fetch an epoch from a data server: each sample once, with its own bytes, in random order."""
        for numbers, data in self._loader:
            for number, found in zip(numbers.tolist(), data, strict=True):
                _check(bytes(found) == _bytes(number), f"sample {number} was delivered with other bytes")
            self._epoch += numbers.tolist()
        _check(sorted(self._epoch) == list(range(SAMPLES)), "an epoch did not deliver each sample once")
        _check(self._epoch != sorted(self._epoch), "an epoch was delivered in the order of the source")

    def resume(self) -> None:
        """Stop the same epoch half-way, and resume it from its state as JSON."""
        loader, half = self._loader, SAMPLES // BATCH // 2
        loader.set_epoch(0)
        batches = iter(loader)
        drawn = [number for _ in range(half) for number in next(batches)[0].tolist()]
        state = json.loads(json.dumps(loader.state_dict()))
        batches.close()  # type: ignore[attr-defined]
        loader.load_state_dict(state)
        drawn += [number for numbers, _ in loader for number in numbers.tolist()]
        _check(drawn == self._epoch, "a resumed epoch is not the one that was stopped")

    def statistics(self) -> None:
        """Ask the data server for its statistics, as a training does that logs them."""
        found = json.loads(json.dumps(self._loader.dataset.stats()))
        _check(found.get("fetched", 0) >= SAMPLES, "the statistics do not say how many samples were delivered")

    def workers(self) -> None:
        """Fetch an epoch in worker processes of a `DataLoader`. Brand works without them."""
        data_loader = importlib.import_module("torch.utils.data").DataLoader
        self._loader.set_epoch(0)
        found: list[int] = []
        try:
            for numbers, _ in data_loader(self._loader.dataset, BATCH, sampler=self._loader.sampler, num_workers=2):
                found += numbers.tolist()
        except (OSError, RuntimeError) as error:
            what = str(error).partition("\n")[0].replace(": ", " - ")
            raise MissingExtraError(f"workers of a DataLoader end here ({what}): use BrandLoader") from None
        _check(sorted(found) == list(range(SAMPLES)), "workers of a DataLoader did not deliver each sample once")


def _bytes(index: int) -> bytes:
    return np.random.default_rng(index).bytes(500 + index % 500)


def _check(right: bool, what: str) -> None:  # noqa: FBT001 - as assert
    if not right:
        raise RuntimeError(what)
