"""Looks at a server, of any data set: connects, asks for the statistics, and disconnects."""

from __future__ import annotations

from typing import Any

from brand.errors import ServerError
from brand.node.client.session import Session
from brand.node.wire.client_messages import AskStats, pack
from brand.node.wire.messages import Kind, unpack_json


def look_at(address: str, rows: int = 0) -> dict[str, Any]:
    """Return counters of the server at an address, for any data set, with the last `rows` rows of each training loop.

    Raises `ServerError` if there is no server.
    """
    try:
        connection = Session(address, None, None)
        try:
            return unpack_json(connection.request(pack(AskStats(rows)), Kind.STATS))
        finally:
            connection.close()
    except (ConnectionError, TimeoutError) as error:
        raise ServerError(f"no data server at {address}: {error}") from None
