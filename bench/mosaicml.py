"""How is mosaicml-streaming imported with a PyTorch without CUDA?

`import streaming` imports torchvision, though reading and writing MDS files needs nothing of it. The torchvision of
PyPI is built for the CUDA build of PyTorch. With the CPU build its extension does not load, and the import fails,
because torchvision annotates two operators that do not exist. This module declares the two operators, so the import
succeeds. No code ever calls them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

_MISSING: Final = ("nms", "qnms")
_KEPT_ALIVE: Final[list[Any]] = []
"""Objects that declared operators: an operator is removed with its object."""


def load_streaming() -> Any:
    """Import and return the module `streaming`."""
    try:
        return import_module("streaming")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        _declare_operators()
        return import_module("streaming")


def _declare_operators() -> None:
    from torch import library as torch_library

    library = torch_library.Library("torchvision", "FRAGMENT")
    _KEPT_ALIVE.append(library)
    for name in _MISSING:
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
