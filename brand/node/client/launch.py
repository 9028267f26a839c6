"""How does a data server start, and how long does it live?

A process that finds no server at its address starts one, `python -c ...`, and sends it a `ServerSpec` on its standard
input. The server detaches (two forks, its own session), so no process has to wait for it, and Ctrl-C, which is sent to
all processes of a terminal, does not end it while others draw from it. The server ends when its client processes, the
training processes, have ended. If several processes start a server at the same time, the kernel gives the address to
one server, and the other processes connect to it.
"""

from __future__ import annotations

import json
import os
import subprocess
from typing import Final

from brand.errors import ServerDiedError as ServerDiedError
from brand.errors import ServerError as ServerError
from brand.node.setup.server_spec import ServerSpec
from brand.pythonchild import child_command
from brand.storage.io.files import no_descriptor_left

START_LIMIT_S: Final = 60.0
"""Seconds that a server may take until it listens."""


def start_server(spec: ServerSpec) -> None:
    """Start a server and wait until it listens. The new server ends at once if another server listens already.

    Raises `ServerError`; `ServerDiedError` if the server ended without a message.
    """
    module = "brand.node.serve.process" if spec.member is None else "brand.cluster.process"
    try:
        started = subprocess.Popen(
            child_command(module), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        why = no_descriptor_left(error) or str(error)
        raise ServerError(f"the data server for {spec.where} cannot be started: {why}") from None
    with started as process:
        try:
            said, _ = process.communicate(spec.to_json().encode(), START_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise ServerError(f"the data server for {spec.where} did not start within {START_LIMIT_S:.0f} s") from None
    try:
        answer = json.loads(said)
    except ValueError:
        raise ServerDiedError(
            f"the data server for {spec.where} ended before it listened; it may have said why"
        ) from None
    if "error" in answer:
        raise ServerError(f"the data server for {spec.where} did not start: {answer['error']}")


def detach() -> bool:
    """Continue in a forked process that no process waits for. Returns True in that process, False in the first."""
    if os.fork():
        return False
    os.setsid()
    return True
