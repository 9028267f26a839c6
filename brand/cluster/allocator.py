"""Where does the memory of messages come from? From what was freed before, not anew from the kernel each time.

By default glibc gives blocks of such sizes back to the kernel as soon as they are freed. The kernel clears each page of
the next one again, and half of a node's time goes there: with this, streams move about twice as many bytes a second.
"""

from __future__ import annotations

import ctypes
from typing import Final

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Their numbers in glibc's malloc.h."""
_LARGEST: Final = 32 << 20
_KEPT: Final = 64 << 20


def keep_freed_memory() -> None:
    """For the whole process: keep up to 64 MiB of freed memory. Does nothing where the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST)
        mallopt(_TRIM_THRESHOLD, _KEPT)
