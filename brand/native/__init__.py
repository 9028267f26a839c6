"""Does this process have the compiled loops over samples (core.c)? Brand works without them if it has none.

`CORE` is the extension module; None if it was not built, or if `BRAND_NATIVE=0` says so. Each caller has the same loop
in Python next to it, slower and with the same results (docs/dev/native.md).

borrowed  the functions of other libraries that the core calls
"""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from types import ModuleType
from typing import Final

# `np.unique` imports it when it is first called, and NumPy's import recurses without end if two threads do this at the
# same time. It is here because all of Brand that has threads imports this package.
import numpy.ma  # noqa: F401

from brand.native.borrowed import lend

WANTED: Final = os.environ.get("BRAND_NATIVE") != "0"
"""Whether the core is used if there is one."""


def _load() -> ModuleType | None:
    if WANTED:
        with suppress(ImportError):
            return importlib.import_module("brand.native._core")
    return None


CORE: Final = _load()
XXH3: Final = lend(("XXH3_64bits",), "xxhash._xxhash") if CORE is not None else ()
"""The address of the function that makes a sample's checksum; empty if it is not available."""
