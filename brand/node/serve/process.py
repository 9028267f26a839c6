"""The process of a server that a training process started: reads its `ServerSpec`, reports when it listens, serves.

`tune_server_process` has its threads switch quickly, and keeps freed memory. These settings hold for a whole process,
so the `main` of a server's process applies them, and no constructor does.
"""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from brand.errors import BrandError, pack_error
from brand.node.serve.server import NodeServer
from brand.node.setup.server_spec import ServerSpec
from brand.pythonchild import ignore_job_signals
from brand.starting import not_started
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.files import no_descriptor_left

_SWITCH_S: Final = 0.0005
"""Maximum seconds that a thread waits for the interpreter lock after its read has ended. Python's default is 5 ms."""
_ENDS_BEFORE_THE_TRAINING: Final = 800
"""If the system runs out of memory, it ends decode workers first, then this server (oom_score_adj)."""
_MALLOC: Final = {-3: 32 << 20, -1: 64 << 20, -8: 2}
"""Values of options of mallopt(3), by their numbers in glibc's malloc.h: mmap and trim threshold, number of arenas."""


def main() -> None:
    """Serve the specification from standard input until the client processes have ended."""
    serve(_make)


def _make(spec: ServerSpec) -> NodeServer:
    if spec.common:
        from brand.node.setup.decoding import for_common

        data_bytes = int(StoredDataSet(spec.where).chunk_rows["file_size"].sum())
        spec = replace(spec, prepared=for_common(spec.memory, data_bytes))
    return NodeServer(spec)


def serve(make: Callable[[ServerSpec], NodeServer]) -> None:
    """Serve the specification from standard input, with the server that `make` returns.

    If the process that started this process has ended meanwhile, this process ends silently, with its client processes.
    """
    try:
        spec = ServerSpec.from_json(sys.stdin.read())
    except ValueError:  # the starting process ended before it had sent everything
        os._exit(0)
    try:
        if not _detach():
            os._exit(0)
    except OSError as error:  # `fork` is refused
        _say({"error": not_started(error) or str(error)})
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _offer_to_end()
    ignore_job_signals()
    logging.basicConfig(format="brand server: %(message)s")
    tune_server_process()
    try:
        server = make(spec)
    except RuntimeError as error:
        if why := not_started(error):
            _say({"error": why})
            return
        raise
    except OSError as error:
        if error.errno != errno.EADDRINUSE or isinstance(error, BrandError):
            _say({"error": no_descriptor_left(error) or str(error)})
            return
        _say({"there": True})  # another server was faster
        return
    except BrandError as error:
        _say({"error": str(error), "raised": pack_error(error)})
        return
    signal.signal(signal.SIGTERM, lambda *_: server.drain())
    _say({"ready": True})
    server.run()


def _offer_to_end() -> None:
    """Ask the kernel to end this process first if memory runs out: the training starts it again, and continues."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(_ENDS_BEFORE_THE_TRAINING))


def _detach() -> bool:
    """Continue in a forked process that no process waits for. Returns True in that process, False in the first."""
    if os.fork():
        return False
    os.setsid()
    return True


def _say(value: dict[str, Any]) -> None:
    """Send a value to the process that started this process, if it still runs, and close the pipe."""
    with suppress(BrokenPipeError):
        os.write(1, f"{json.dumps(value)}\n".encode())  # not with `sys.stdout`, whose buffer is flushed at the end
    with suppress(OSError), open(os.devnull, "r+b", buffering=0) as null:  # no descriptor may be left
        os.dup2(null.fileno(), 0)
        os.dup2(null.fileno(), 1)


def tune_server_process() -> None:
    """Apply the settings to this process, which serves and does nothing else.

    Keep up to 64 MiB of freed memory, and return arrays of more than 32 MiB to the system at once, if the C library is
    glibc. By default, glibc returns a block of the size of a message as soon as it is freed, and the kernel clears each
    page of the next block again. A node that exchanges samples spends half of its time there. With its default
    settings, glibc also learns to keep large freed blocks, such as the arrays of a large plan, in each of many arenas.
    """
    sys.setswitchinterval(_SWITCH_S)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in _MALLOC.items():
            mallopt(option, value)
