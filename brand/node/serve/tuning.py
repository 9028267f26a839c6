"""Settings of a data server's process: its threads switch quickly, and it keeps freed memory.

The settings hold for a whole process, so the `main` of a server's process applies them, and no constructor does. A
training or a test that runs a server inside its own process keeps its own settings.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

_SWITCH_S: Final = 0.0005
"""Maximum seconds that a thread waits for the interpreter lock after its read has ended. Python's default is 5 ms."""
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
"""Numbers of options of mallopt(3), in glibc's malloc.h."""
_LARGEST: Final = 32 << 20
_KEPT: Final = 64 << 20
_ARENAS: Final = 2


def tune_server_process() -> None:
    """Apply the settings to this process, which serves and does nothing else."""
    sys.setswitchinterval(_SWITCH_S)
    _use_memory_again()


def _use_memory_again() -> None:
    """Keep up to 64 MiB of freed memory, and return arrays of more than 32 MiB to the system at once. Needs glibc.

    By default, glibc returns a block of the size of a message as soon as it is freed, and the kernel clears each page
    of the next block again. A node that exchanges samples spends half of its time there. With its default settings,
    glibc also learns to keep large freed blocks, such as the arrays of a large plan, in each of many arenas.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST)
        mallopt(_TRIM_THRESHOLD, _KEPT)
        mallopt(_ARENA_MAX, _ARENAS)
