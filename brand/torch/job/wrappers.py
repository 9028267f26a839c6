"""Does a function or wrapper of another library change a loader or a data set? They say nothing to either.

timm's `PrefetchLoader` and the loader of Ray's `prepare_data_loader` take a batch from a loader before they deliver the
one before it, so a loader state counts one batch less than the loader has delivered. `prepare_data_loader` makes a
loader of single samples of one with a batch sampler. timm's `create_loader` gives a data set a transform of the image
alone. This module inspects the callers. No library is imported here.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from itertools import islice
from typing import Any, Final

from brand.errors import UsageError

_HOLD_A_BATCH: Final = (
    ("timm.data.loader", "PrefetchLoader"),
    ("ray.train.torch.train_loop_utils", "_WrappedDataLoader"),  # both versions of Ray Train have it from here
)
"""Modules and classes whose iterations take a batch ahead of the one that they deliver."""


def batches_held() -> int:
    """Return the number of batches that the object which iterates over the calling `__iter__` takes ahead."""
    frames = islice(traceback.walk_stack(inspect.currentframe()), 2, None)  # without this function and the `__iter__`
    frame = next((frame for frame, _ in frames), None)
    wrapper = None if frame is None or frame.f_code.co_name != "__iter__" else frame.f_locals.get("self")
    kinds = {(kind.__module__, kind.__name__) for kind in type(wrapper).__mro__}
    return int(not kinds.isdisjoint(_HOLD_A_BATCH))


def refuse_distributed_sampler() -> None:
    """Raise `UsageError` if Ray makes a loader of single samples of one with a batch sampler, and so asks for `len`."""
    if "ray.train" not in sys.modules:
        return
    for frame, _ in traceback.walk_stack(inspect.currentframe()):
        if frame.f_code.co_name == "with_sampler" and str(frame.f_globals.get("__name__")).startswith("ray.train."):
            loader: Any = frame.f_locals.get("loader")
            if getattr(loader, "batch_size", 1) is None and getattr(loader, "batch_sampler", None) is not None:
                raise UsageError(
                    f"Ray's prepare_data_loader would replace the {type(loader.batch_sampler).__name__} by a "
                    "DistributedSampler of single samples: use BrandLoader(dataset, batch_sampler=...), or "
                    "prepare_data_loader(loader, add_dist_sampler=False) (docs/guides/more-frameworks.md)"
                )


def refuse_create_loader() -> None:
    """Raise `UsageError` if timm's `create_loader` assigns the transform of the calling setter."""
    create = getattr(sys.modules.get("timm.data.loader"), "create_loader", None)
    code = getattr(create, "__code__", None)
    if code is not None and any(frame.f_code is code for frame, _ in traceback.walk_stack(inspect.currentframe())):
        raise UsageError(
            "timm's create_loader gives a data set a transform of the image alone, and shuffles indices, each of which "
            "is then a read of its own. Give the data set this transform for its image: BrandDataset(path, "
            "fields=('image', 'label'), transform={'image': create_transform(...)}), and make the loader as "
            "PrefetchLoader(BrandLoader(dataset, batch_size, collate_fn=fast_collate)) (docs/guides/more-frameworks.md)"
        )
