"""The process of a node server that a training process started: reads its `Spec`, says when it listens, serves."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import sys
from typing import Any

from brand.errors import BrandError
from brand.node.launch import Spec, detach
from brand.node.server import NodeServer


def main() -> None:
    """Serve what standard input says, until the owners have ended."""
    spec = Spec.from_json(sys.stdin.read())
    if not detach():
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    logging.basicConfig(format="brand server: %(message)s")
    try:
        server = NodeServer(spec.path, spec.address, memory=spec.memory, owners=spec.owners)
    except OSError as error:
        if error.errno != errno.EADDRINUSE or isinstance(error, BrandError):
            _say({"error": str(error)})
            return
        _say({"there": True})  # somebody else was faster
        return
    except BrandError as error:
        _say({"error": str(error)})
        return
    signal.signal(signal.SIGTERM, lambda *_: server.stop())
    _say({"ready": True})
    server.run()


def _say(value: dict[str, Any]) -> None:
    """Tell who started this process, and let go of the pipe."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
