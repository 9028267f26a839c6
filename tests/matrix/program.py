"""A process of a framework: it runs what it is asked for. `python -m tests.matrix.program FRAMEWORK DATA ADDRESS`.

The process connects to the address, says its rank, and gets a `Task` at a time. All runs of a framework are made in the
same processes, because its import takes long.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Client
from pathlib import Path

import torch

from brand.errors import BrandError
from brand.torch.job import rank_log
from tests.matrix.jobs import SAYS_S
from tests.matrix.loops import EndedRunError, MatrixRun, Outcome, Samples
from tests.matrix.ways.base import Way

WAYS = {
    "plain loop": "plain.PLAIN",
    "torchrun": "plain.TORCHRUN",
    "Lightning": "lightning.LIGHTNING",
    "Fabric": "fabric.FABRIC",
    "Accelerate": "accelerate.ACCELERATE",
    "HF Trainer": "transformers.TRAINER",
    "StatefulDataLoader": "torchdata.STATEFUL_LOADER",
    "torchdata.nodes": "torchdata.NODES",
    "Ray Train": "ray.RAY",
}
"""The module of each framework, and its name there."""
FEEDER_S = 10.0
"""Limit for a thread of a freed queue."""
INNERMOST = 4
"""Calls of an error that are shown."""


def way_of(framework: str) -> Way:
    """Import a framework."""
    module, _, name = WAYS[framework].partition(".")
    way: Way = getattr(importlib.import_module(f"tests.matrix.ways.{module}"), name)
    return way


def _end_feeders() -> None:
    """Wait until the threads of freed queues have closed their pipes.

    A DataLoader whose sampler refuses the first batch starts these threads while it is freed. If the garbage collector
    frees it, each pipe is closed twice: by the collector, and later by the thread, which would close a file of the
    next run if that has the same number.
    """
    for thread in threading.enumerate():
        if thread.name == "QueueFeederThread":
            thread.join(FEEDER_S)


def serve(framework: str, data: Path, address: str, rank: int, ranks: int) -> None:
    """Run tasks until there are no more."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    torch.set_num_threads(1)
    faulthandler.enable()
    warnings.simplefilter("ignore")
    logging.disable(logging.INFO)
    way, samples = way_of(framework), Samples(data)
    with Client(address, "AF_UNIX") as connection:
        connection.send((rank, os.getpid()))
        way.begin(ranks)
        gc.collect()
        gc.freeze()  # so that the collection after each run is of that run
        while (task := connection.recv()) is not None:
            connection.send(_one(way, MatrixRun(task, samples, ranks)))


class Heard(logging.Handler):
    """Notes the warnings of Brand in one run."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Note a line."""
        self.lines.append(record.getMessage())


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that it follows: Lightning ends its loops after an error, and may fail in that, too."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _told(error: Exception) -> tuple[str, str]:
    """Return how a run has ended with an error, and what it said."""
    cause = next((each for each in _chain(error) if isinstance(each, BrandError)), None)
    if cause is not None:
        return "refused", str(cause)
    traceback.print_exc()
    return "failed", f"{type(error).__name__}: {error} (at {_place(error)})"


def _place(error: BaseException) -> str:
    """Return the innermost calls of an error."""
    calls = traceback.extract_tb(error.__traceback__)[-INNERMOST:]
    return ", ".join(f"{Path(call.filename).name}:{call.lineno} {call.name}" for call in calls)


def _one(way: Way, run: MatrixRun) -> Outcome:
    outcome, task, heard = run.outcome, run.task, Heard()
    # Where does a run wait that does not end, and where do its workers? The run says it without a signal, because
    # Lightning removes the handlers of all signals when a run ends.
    faulthandler.unregister(signal.SIGUSR1)  # or `register` does not set the handler again
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    faulthandler.dump_traceback_later(SAYS_S)
    logging.getLogger("brand").addHandler(heard)
    rank_log._said.clear()  # a process says each line once, and has many runs here
    try:
        way.others.get(task.cell.use, way.fit)(run)
    except EndedRunError:
        outcome.end = "stopped"
    except Exception as error:  # noqa: BLE001 - told, and the next run goes on
        outcome.end, outcome.message = _told(error)
    logging.getLogger("brand").removeHandler(heard)
    outcome.facts["log"] = heard.lines
    outcome.facts["weights"] = [value.item().hex() for value in run.model.state_dict().values()]
    way.forget()
    gc.collect()
    _end_feeders()
    faulthandler.cancel_dump_traceback_later()
    return outcome


if __name__ == "__main__":
    ranks = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
    serve(sys.argv[1], Path(sys.argv[2]), sys.argv[3], *ranks)
