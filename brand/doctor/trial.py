"""The self-test: a data set is packed, read by index, trained from, and a training is resumed.

This is the child process of `selftest`. Standard input has the folder to work in. For each step the process writes a
JSON line: its name, its seconds, and its fault or the missing package, if any. The process ends after the first of
these.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from brand.chunker import pack
from brand.errors import BrandError, MissingExtraError
from brand.storage.dataset.dataset import StoredDataSet

if TYPE_CHECKING:
    from brand.torch import BrandLoader

SAMPLES: Final = 2000
BATCH: Final = 50
STEPS: Final = ("pack", "random access", "load PyTorch", "an epoch", "resume")
_CHUNK: Final = 32
_SEED: Final = 1


def main() -> None:
    """Run the steps, until one fails."""
    folder = Path(json.load(sys.stdin))
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        trial = _Trial(folder / "trial.brand")
        steps = (trial.pack, trial.exact, trial.load, trial.epoch, trial.resume)
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
        return {"error": str(error)}
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


def _bytes(index: int) -> bytes:
    return np.random.default_rng(index).bytes(500 + index % 500)


def _check(right: bool, what: str) -> None:  # noqa: FBT001 - as assert
    if not right:
        raise RuntimeError(what)
