"""Which functions of other libraries does the core call? XXH3 of the package xxhash, and zstd of the package zstandard.

Both packages contain these libraries in their extension modules. The core is given the addresses, so Brand neither
copies nor links them. If a package was built in another way, and does not export a function, the core works without it.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from typing import Final

_ZSTD: Final = (
    "ZSTD_createDCtx",
    "ZSTD_freeDCtx",
    "ZSTD_createDDict",
    "ZSTD_freeDDict",
    "ZSTD_decompress_usingDDict",
    "ZSTD_isError",
    "ZSTD_findFrameCompressedSize",
    "ZSTD_getFrameContentSize",
)


def lend(names: tuple[str, ...], *modules: str) -> tuple[int, ...]:
    """Return the addresses of these functions in the first module that exports all of them; empty if none does."""
    for module in modules:
        with suppress(ImportError, OSError, AttributeError):
            spec = find_spec(module)
            if spec is not None and spec.origin:
                library = ctypes.CDLL(spec.origin)
                return tuple(ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in names)
    return ()


@cache
def zstd() -> tuple[int, ...]:
    """Return the functions that the core needs to unpack frames, in its order; empty if they are not available."""
    return lend(_ZSTD, "zstandard._cffi", "zstandard.backend_c")
