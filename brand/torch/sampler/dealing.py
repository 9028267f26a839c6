"""What do frameworks do with the batches of a sampler: deal them out to the ranks, or skip some to resume?

Accelerate (and with it the Hugging Face Trainer) wraps the batch sampler of a loader that it prepares: each process
iterates over all batches and keeps its own. A `BrandSampler` behind such a loader must therefore yield the positions of
all ranks. While a prepared loader iterates, Accelerate names it (`GradientState.active_dataloader`), so a sampler can
look at the layers between that loader and itself. Where a loader has no state, Lightning resumes inside an epoch by
training as many batches as were left, from the beginning of the epoch; this module sees that where Lightning calls
`set_epoch`. Where a batch sampler has no state, torchdata's `StatefulDataLoader` skips batches; this module sees that
where the loader asks for a batch. No framework is imported here: one that is not in use does nothing.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from itertools import islice
from typing import Any


@dataclass(frozen=True, slots=True)
class Wrapping:
    """The effect of the layers between a sampler and the loader of Accelerate that iterates over it."""

    processes: int
    """Processes among which the batches are dealt out; 1: each process gets all positions of the sampler."""
    skipped: int
    """Batches that are skipped at the beginning."""
    restored: bool
    """Whether the loader is about to go on from its own state, by skipping batches."""


def accelerate_processes() -> int:
    """Processes to which Accelerate deals out the batches of the loaders that it prepares; 1 where it is not in use."""
    state = sys.modules.get("accelerate.state")
    if state is None or not state.is_initialized():
        return 1
    return int(state.PartialState().num_processes)


def wrapping_of(sampler: object) -> Wrapping | None:
    """How the loader of Accelerate that iterates just now wraps a sampler; None: it does not."""
    state = sys.modules.get("accelerate.state")
    if state is None or not state.is_initialized():
        return None
    loader = state.GradientState().active_dataloader
    if loader is None:
        return None
    processes, skipped, layer = 1, 0, _first_layer(loader)
    while layer is not sampler:
        if layer is None:
            return None
        processes *= getattr(layer, "num_processes", 1)
        skipped += getattr(layer, "skip_batches", 0)
        layer = getattr(layer, "batch_sampler", None) or getattr(layer, "sampler", None)
    if type(loader).__name__ == "DataLoaderDispatcher":  # the first process reads for all of them
        processes = accelerate_processes()
    base = getattr(loader, "base_dataloader", None)
    return Wrapping(processes, skipped, getattr(base, "next_iter_state", None) is not None)


def _first_layer(loader: Any) -> Any:
    """The batch sampler of a loader; some loaders have it as `sampler`."""
    sampler, batch_sampler = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
    return sampler if hasattr(sampler, "batch_sampler") else batch_sampler


@dataclass(frozen=True, slots=True)
class Restart:
    """Lightning goes on inside an epoch."""

    loader: Any
    done: int
    """Batches of the epoch that Lightning has already trained, by its own count."""


def lightning_restart() -> Restart | None:
    """The restart that Lightning is about to make, where it calls the `set_epoch` that calls this; else None.

    Lightning tells a sampler only the number of the epoch, so this function looks at the variables of its callers:
    `_set_sampler_epoch(dataloader, epoch)`, which the training loop calls.
    """
    if "lightning.pytorch" not in sys.modules and "pytorch_lightning" not in sys.modules:
        return None
    here = inspect.currentframe()
    set_epoch = None if here is None else here.f_back
    sets = None if set_epoch is None else set_epoch.f_back
    calls = None if sets is None else sets.f_back
    if sets is None or calls is None:
        return None
    loader: Any = sets.f_locals.get("dataloader")
    loop: Any = calls.f_locals.get("self")
    if loader is None or not getattr(loop, "restarted_mid_epoch", False):
        return None
    return Restart(loader, int(loop.epoch_loop.batch_progress.current.ready))


def torchdata_skips() -> int:
    """Batches that a `StatefulDataLoader` skips to resume, where it asks for the next one just now; else 0.

    The loader tells the batch sampler nothing, so this function looks at the variables of its caller `_next_index`.
    """
    if "torchdata.stateful_dataloader" not in sys.modules:
        return 0
    frame = inspect.currentframe()
    while frame is not None:
        asking: Any = frame.f_locals.get("self") if frame.f_code.co_name == "_next_index" else None
        if isinstance(getattr(asking, "_sampler_iter", None), islice):
            return int(asking._sampler_iter_yielded)
        frame = frame.f_back
    return 0
