"""The address of a node: `host:port`, or `[host]:port` for IPv6. Other forms that gRPC accepts are refused."""

from __future__ import annotations

import re
import socket
from typing import Final

from brand.errors import ServerError, UsageError

_ADDRESS: Final = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([\w.-]+)):(\d{1,5})", re.ASCII)


def split_address(address: str) -> tuple[str, int]:
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match[3]) > 65535:
        raise UsageError(f"{address!r} is not an address; write it like 10.0.0.1:7000, node1:7000 or [::1]:7000")
    return match[1] or match[2], int(match[3])


def check_free(address: str) -> None:
    """Raise `ServerError`, with the reason, if this process cannot listen at `address`. gRPC gives no reason."""
    host, port = split_address(address)
    try:
        for family, kind, protocol, _, where in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(where)
                probe.listen(1)
    except OSError as error:
        raise ServerError(f"the data server cannot listen at {address}: {error.strerror or error}") from None
