"""Brand: train from data sets larger than memory, in random order, at the speed of sequential storage.

`BrandDataset` is found here lazily, so that `import brand` loads neither torch nor gRPC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brand.chunker import pack as pack
from brand.errors import BrandError as BrandError

if TYPE_CHECKING:
    from brand.torch import BrandDataset as BrandDataset

__version__ = "0.1.0"
__all__ = ["BrandDataset", "BrandError", "__version__", "pack"]


def __getattr__(name: str) -> Any:
    if name == "BrandDataset":
        from brand.torch import BrandDataset

        return BrandDataset
    raise AttributeError(f"module 'brand' has no attribute {name!r}")
