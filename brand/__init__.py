"""Brand: train from data sets larger than memory, in random order, at the speed of sequential storage.

Names are imported on first use, so that `import brand` is fast and loads neither torch nor gRPC.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from brand.errors import BrandError as BrandError
from brand.version import __version__

if TYPE_CHECKING:
    from brand.chunker import pack as pack
    from brand.formats.audio import Waveform as Waveform
    from brand.formats.crops import CenterCrop as CenterCrop
    from brand.formats.crops import Pad as Pad
    from brand.formats.crops import RandomResizedCrop as RandomResizedCrop
    from brand.formats.crops import Resize as Resize
    from brand.formats.preparation import DecodeAudio as DecodeAudio
    from brand.formats.preparation import DecodeImage as DecodeImage
    from brand.formats.preparation import DecodeMask as DecodeMask
    from brand.node.setup.caching import Cache as Cache
    from brand.node.setup.server_spec import Tls as Tls
    from brand.storage.dataset.reader import Reader as Reader
    from brand.storage.dataset.reader import open as open  # noqa: A004 - as gzip.open
    from brand.torch import ArrayLoader as ArrayLoader
    from brand.torch import BrandDataset as BrandDataset
    from brand.torch import BrandLoader as BrandLoader
    from brand.torch import BrandSampler as BrandSampler
    from brand.torch import LengthBatchSampler as LengthBatchSampler
    from brand.torch import Mixture as Mixture
    from brand.torch import PackedBatchSampler as PackedBatchSampler
    from brand.torch.sampler.sampler import migrate_state as migrate_state

__all__ = [
    "ArrayLoader",
    "BrandDataset",
    "BrandError",
    "BrandLoader",
    "BrandSampler",
    "Cache",
    "CenterCrop",
    "DecodeAudio",
    "DecodeImage",
    "DecodeMask",
    "LengthBatchSampler",
    "Mixture",
    "PackedBatchSampler",
    "Pad",
    "RandomResizedCrop",
    "Reader",
    "Resize",
    "Tls",
    "Waveform",
    "__version__",
    "migrate_state",
    "pack",
]
"""The names of `from brand import *`. `brand.open` is public, too, but must not replace Python's `open`."""

if sys.platform == "win32":
    raise ImportError("Brand does not run on Windows, which has no flock and preadv: use WSL 2, which is Linux")

_TRAINING: Final = (
    *("ArrayLoader", "BrandDataset", "BrandLoader", "BrandSampler"),
    *("LengthBatchSampler", "Mixture", "PackedBatchSampler"),
)
_HOMES: Final = {
    **dict.fromkeys(_TRAINING, "brand.torch"),
    **dict.fromkeys(("CenterCrop", "Pad", "RandomResizedCrop", "Resize"), "brand.formats.crops"),
    **dict.fromkeys(("DecodeAudio", "DecodeImage", "DecodeMask"), "brand.formats.preparation"),
    **dict.fromkeys(("Reader", "open"), "brand.storage.dataset.reader"),
    "Cache": "brand.node.setup.caching",
    "Tls": "brand.node.setup.server_spec",
    "Waveform": "brand.formats.audio",
    "migrate_state": "brand.torch.sampler.sampler",
    "pack": "brand.chunker",
}
_PACKAGES: Final = ("brand.orders",)
"""Public packages that need no import of their own."""


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if f"brand.{name}" in _PACKAGES:
        return import_module(f"brand.{name}")
    raise AttributeError(f"module 'brand' has no attribute {name!r}")
