"""Brand: train from data sets larger than memory, in random order, at the speed of sequential storage.

Names are found when they are first used, so that `import brand` is quick and loads neither torch nor gRPC.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from brand.errors import BrandError as BrandError
from brand.version import __version__

if TYPE_CHECKING:
    from brand.chunker import pack as pack
    from brand.formats.media import Waveform as Waveform
    from brand.formats.preparation import Picture as Picture
    from brand.formats.preparation import Sound as Sound
    from brand.node.setup.caching import Cache as Cache
    from brand.node.setup.choose import MinIO as MinIO
    from brand.node.setup.choose import Pool as Pool
    from brand.node.setup.choose import Shared as Shared
    from brand.node.setup.choose import Slots as Slots
    from brand.node.setup.choose import Stripes as Stripes
    from brand.node.setup.choose import Uniform as Uniform
    from brand.node.setup.tls import Tls as Tls
    from brand.storage.reader import Reader as Reader
    from brand.storage.reader import open as open  # noqa: A004 - as gzip.open
    from brand.torch import BatchPlan as BatchPlan
    from brand.torch import BrandDataset as BrandDataset
    from brand.torch import BrandLoader as BrandLoader
    from brand.torch import BrandSampler as BrandSampler
    from brand.torch import Mixture as Mixture
    from brand.torch.rebase import rebase as rebase

__all__ = [
    "BatchPlan",
    "BrandDataset",
    "BrandError",
    "BrandLoader",
    "BrandSampler",
    "Cache",
    "MinIO",
    "Mixture",
    "Picture",
    "Pool",
    "Reader",
    "Shared",
    "Slots",
    "Sound",
    "Stripes",
    "Tls",
    "Uniform",
    "Waveform",
    "__version__",
    "open",
    "pack",
    "rebase",
]

_HOMES: Final = {
    "BatchPlan": "brand.torch",
    "BrandDataset": "brand.torch",
    "BrandLoader": "brand.torch",
    "BrandSampler": "brand.torch",
    "Cache": "brand.node.setup.caching",
    "MinIO": "brand.node.setup.choose",
    "Mixture": "brand.torch",
    "Picture": "brand.formats.preparation",
    "Pool": "brand.node.setup.choose",
    "Reader": "brand.storage.reader",
    "Shared": "brand.node.setup.choose",
    "Slots": "brand.node.setup.choose",
    "Sound": "brand.formats.preparation",
    "Stripes": "brand.node.setup.choose",
    "Tls": "brand.node.setup.tls",
    "Uniform": "brand.node.setup.choose",
    "Waveform": "brand.formats.media",
    "open": "brand.storage.reader",
    "pack": "brand.chunker",
    "rebase": "brand.torch.rebase",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'brand' has no attribute {name!r}")
