"""How do frameworks use the batches of a sampler? They divide them among the ranks, or skip some to resume.

Accelerate (and with it the Hugging Face Trainer) wraps the batch sampler of a loader that it prepares: each process
iterates over all batches and takes its own. A `BrandSampler` behind such a loader must therefore yield the positions of
all ranks. While a prepared loader iterates, Accelerate names it (`GradientState.active_dataloader`), so a sampler can
inspect the layers between that loader and itself. If a batch sampler has no state, torchdata's `StatefulDataLoader` skips batches; this module detects it
when the loader asks for a batch. No framework is imported here, so a framework that is not in use has no effect.
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
    """Number of processes among which the batches are divided; 1 if each process gets all positions of the sampler."""
    skipped: int
    """Number of batches that are skipped at the beginning."""
    restored: bool
    """Whether the loader is about to resume from its own state, by skipping batches."""


def accelerate_processes() -> int:
    """Return among how many processes Accelerate divides batches; 1 if Accelerate is not in use."""
    state = _accelerate()
    return 1 if state is None else int(state.PartialState().num_processes)


def _accelerate() -> Any:
    """Return Accelerate's module of states; None if it is not in use."""
    state = sys.modules.get("accelerate.state")
    return state if state is not None and state.is_initialized() else None


def wrapping_of(sampler: object) -> Wrapping | None:
    """Return how the loader of Accelerate that iterates just now wraps a sampler; None if it does not."""
    state = _accelerate()
    loader = None if state is None else state.GradientState().active_dataloader
    if loader is None:
        return None
    processes, skipped, layer = 1, 0, _first_layer(loader)
    while layer is not sampler:
        if layer is None:
            return None
        processes *= getattr(layer, "num_processes", 1)
        skipped += getattr(layer, "skip_batches", 0)
        inner = getattr(layer, "batch_sampler", None) or getattr(layer, "sampler", None)
        layer = None if inner is layer else inner
    if type(loader).__name__ == "DataLoaderDispatcher":  # the first process reads for all of them
        processes = accelerate_processes()
    base = getattr(loader, "base_dataloader", None)
    return Wrapping(processes, skipped, getattr(base, "next_iter_state", None) is not None)


def _first_layer(loader: Any) -> Any:
    """Return the batch sampler of a loader; some loaders store it as `sampler`."""
    sampler, batch_sampler = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
    return sampler if hasattr(sampler, "batch_sampler") else batch_sampler


def torchdata_skips() -> int:
    """Return the number of batches that a `StatefulDataLoader` skips to resume; 0 if it does not ask for one now.

    The loader tells the batch sampler nothing, so this function inspects the variables of its caller `_next_index`.
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
