"""All runs of one framework in one process of a job: `python -m torch.distributed.run ... -m tests.frameworks.program`.

Runs that stop come first. Then this job waits for the job with another number of processes, and goes on from the
checkpoints of both. What each step trained is written for each rank.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed

from brand.errors import BrandError
from brand.torch import BrandDataset, BrandSampler
from tests.frameworks.loops import LOOPS, Run, StoppedError, set_ranks

LIMIT_S = 900.0
SEED = 5
STOPS = {"first": (0, 7), "later": (1, 4)}
"""Epoch and step of the checkpoints."""
TWICE = (1, 3)
"""Where a run that went on from `later` is stopped again: so many steps later."""
LOADERS = ("DataLoader", "BrandLoader")

Job = dict[str, dict[str, Any]]


def main(framework: str, path: Path, folder: Path) -> None:
    """Run everything, and write `rank-of-ranks.json`."""
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    set_ranks(ranks)
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    if framework == "plain loop" and ranks > 1:
        torch.distributed.init_process_group("gloo", timeout=timedelta(seconds=LIMIT_S))
    results: Job = {}
    ways = [(way, loader) for way in LOOPS[framework] for loader in LOADERS]
    if framework == "StatefulDataLoader":  # a BrandLoader keeps its own state: it is a plain loop
        ways = [(way, loader) for way, loader in ways if loader == "DataLoader"]

    def run(way: str, loader: str, name: str, stop: Any = None, resume: Path | None = None) -> None:
        own = _folder(folder, way, loader, ranks)
        results[f"{way}|{loader}|{name}"] = _one(
            framework, way, Run(_open(path), loader, own / name, SEED, stop, resume)
        )
        (folder / f"run-{len(results)}-{rank}-of-{ranks}").touch()
        _wait(folder, [f"run-{len(results)}-{r}-of-{ranks}" for r in range(ranks)])  # its checkpoint is whole

    for way, loader in ways:
        run(way, loader, "whole")
        for name, stop in STOPS.items():
            run(way, loader, name, stop)
    (folder / f"stopped-{rank}-of-{ranks}").touch()
    _wait(folder, [f"stopped-{r}-of-{n}" for n in (1, 2) for r in range(n)])
    for way, loader in ways:
        for writers in (1, 2):
            for name in STOPS:
                from_ = _folder(folder, way, loader, writers) / name
                run(way, loader, f"{name} of {writers}", None, from_)
        run(way, loader, "again", TWICE, _folder(folder, way, loader, ranks) / "later")
        run(way, loader, "twice", None, _folder(folder, way, loader, ranks) / "again")
    results["order"] = BrandSampler(_open(path), seed=SEED).order.to_json()
    (folder / f"{rank}-of-{ranks}.json").write_text(json.dumps(results))
    (folder / f"done-{rank}-of-{ranks}").touch()
    _wait(folder, [f"done-{r}-of-{ranks}" for r in range(ranks)])  # no rank leaves its group before the others are done


def _open(path: Path) -> BrandDataset:
    return BrandDataset(path, memory=0.3)


def _folder(folder: Path, way: str, loader: str, ranks: int) -> Path:
    return folder / f"{way}-{loader}".replace(" ", "-").replace("=", "-") / str(ranks)


def _one(framework: str, way: str, run: Run) -> dict[str, Any]:
    """One run, and how it ended."""
    if run.resume is not None and not any(path.is_file() for path in run.resume.rglob("*")):
        return {"end": "no checkpoint", "steps": {}}
    end, message = "finished", ""
    try:
        LOOPS[framework][way](run)
    except StoppedError:
        end = "stopped"
    except BrandError as error:
        end, message = "refused", str(error)
    except Exception as error:  # noqa: BLE001 - told, and the next run goes on
        end, message = "failed", f"{type(error).__name__}: {error}"
    _forget_accelerate()
    gc.collect()
    return {"end": end, "message": message, "steps": run.steps}


def _forget_accelerate() -> None:
    """As a new process begins: Accelerate keeps what it knows in the class."""
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()


def _wait(folder: Path, names: list[str]) -> None:
    end = time.monotonic() + LIMIT_S
    while not all((folder / name).exists() for name in names):
        if time.monotonic() > end:
            raise TimeoutError(f"still waiting for {names}")
        time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
