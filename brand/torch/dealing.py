"""What do frameworks do with the batches of a sampler: deal them out to the ranks, or skip some to resume?

Accelerate (and with it the Hugging Face Trainer) wraps the batch sampler of a loader that it prepares: each process
iterates over all batches and keeps its own. A `BrandSampler` behind such a loader must therefore yield the positions of
all ranks. While a prepared loader iterates, Accelerate names it (`GradientState.active_dataloader`), so a sampler can
look at what lies between that loader and itself. Lightning goes on inside an epoch with a loader that has no state by
training as many batches as were left, from the beginning of the epoch; that can be seen where it says which epoch it
is. No framework is imported here: where it is not in use, it does nothing.
"""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from typing import Any, Final

_FRAMES: Final = 5
"""So far away at the most is the loop of Lightning that calls."""


@dataclass(frozen=True, slots=True)
class Wrapping:
    """What lies between a sampler and the loader of Accelerate that iterates over it."""

    processes: int
    """Processes among which the batches are dealt out; 1: each process gets what the sampler yields."""
    skipped: int
    """Batches that are skipped at the beginning."""
    restored: bool
    """Whether the loader is about to go on from a state of its own, by skipping what was yielded."""


def accelerate_processes() -> int:
    """Processes to which Accelerate deals out the batches of the loaders that it prepares; 1 where it is not in use."""
    state = sys.modules.get("accelerate.state")
    if state is None or not state.is_initialized():
        return 1
    return int(state.PartialState().num_processes)


def wrapping_of(sampler: object) -> Wrapping | None:
    """How the loader of Accelerate that iterates just now wraps a sampler; None where none does."""
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
    if type(loader).__name__ == "DataLoaderDispatcher":  # the first process reads for all
        processes = accelerate_processes()
    base = getattr(loader, "base_dataloader", None)
    return Wrapping(processes, skipped, getattr(base, "next_iter_state", None) is not None)


def _first_layer(loader: Any) -> Any:
    """The batch sampler of a loader, wherever it was given."""
    sampler, batch_sampler = getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)
    return sampler if hasattr(sampler, "batch_sampler") else batch_sampler


def lightning_goes_on_without_state() -> bool:
    """Whether Lightning, which calls `set_epoch` just now, goes on inside an epoch with a loader that has no state.

    Its loop names neither itself nor the loader, so this looks at the variables of the two functions that call.
    """
    if "lightning.pytorch" not in sys.modules and "pytorch_lightning" not in sys.modules:
        return False
    frame, loader = inspect.currentframe(), None
    for _ in range(_FRAMES):
        frame = None if frame is None else frame.f_back
        if frame is None:
            return False
        loader = frame.f_locals.get("dataloader", loader)
        loop: Any = frame.f_locals.get("self")
        if loader is not None and hasattr(loop, "restarted_mid_epoch"):
            return bool(loop.restarted_mid_epoch) and not hasattr(loader, "load_state_dict")
    return False
