"""Which cells are known to be wrong, and why?

A cell that is known to be wrong and is right fails the test, so that its line here is removed.
"""

from __future__ import annotations

from typing import Final

_STREAM = "a stream around a BrandLoader has no state that the framework saves: a resumed run begins with epoch 0"
_LAST = "the state that a StatefulDataLoader gives to Lightning at the last batch leaves an empty epoch"
_PLANNED = "the refusal to go back to an earlier epoch does not name the loader without setup_dataloaders"
_BATCHES = (
    "the state that a StatefulDataLoader(batch_sampler=) has after an epoch names no epoch: it begins with 0"
)
KNOWN: Final[dict[str, str]] = {
    "HF Trainer | iterable wrapper | 1 | 0 | accumulation | defaults": _STREAM,
    "Lightning | iterable wrapper | 1 | 0 | accumulation | use_distributed_sampler=False": _STREAM,
    "Lightning | iterable wrapper | 1 | 0 | inside | use_distributed_sampler=False": _STREAM,
    "Accelerate | iterable wrapper | 1 | 2 | accumulation | use_stateful_dataloader": _STREAM,
    "StatefulDataLoader | iterable wrapper | 1 | 2 | accumulation | defaults": _STREAM,
    "StatefulDataLoader | iterable wrapper | 2 | 2 | twice | defaults": _STREAM,
    "StatefulDataLoader | DataLoader | 1 | 0 | end | defaults": _BATCHES,
    "torchdata.nodes | iterable wrapper | 2 | 2 | end | defaults": _STREAM,
    "Lightning | length-grouped | 1 | 2 | last batch | as the page says": _LAST,
    "Fabric | length-grouped | 1 | 0 | accumulation | defaults": _PLANNED,
    "Fabric | packed | 1 | 0 | twice | defaults": _PLANNED,
}
"""By the name of a cell."""
