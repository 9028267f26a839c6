"""Settings of gRPC: methods, limits, and options that reveal a dead peer or lost link in seconds."""

from __future__ import annotations

import resource
from typing import Final

from brand.node.wire.messages import MAX_MESSAGE as MAX_MESSAGE
from brand.printable import printable

SERVICE: Final = "brand.Peers"
GREET: Final = f"/{SERVICE}/Greet"
"""Empty -> nonce."""
EXCHANGE: Final = f"/{SERVICE}/Exchange"
"""Messages <-> messages."""
HELLO: Final = "brand-hello-bin"
WELCOME: Final = "brand-welcome-bin"
PROOF: Final = "brand-proof-bin"
"""Keys of the metadata in which two nodes greet each other."""
ANSWER_LIMIT_S: Final = 3.0
"""Seconds that the other side may take for a step of the greeting."""
MAX_REASON: Final = 500
"""Longest reason of another node, in characters."""

Options = list[tuple[str, int]]

_BOTH: Final[Options] = [
    ("grpc.http2.max_frame_size", (1 << 24) - 1),  # a message is a frame or two, not one for each 16 KiB
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.max_metadata_size", 8 << 10),
    ("grpc.absolute_max_metadata_size", 8 << 10),
    # gRPC pings a peer that is silent for 2 s; the peer has 3 s to answer.
    ("grpc.keepalive_time_ms", 2000),
    ("grpc.keepalive_timeout_ms", 3000),
    ("grpc.http2.ping_timeout_ms", 3000),  # its default, a minute, would override the limit above
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
]
_ANSWERING: Final[Options] = [
    *_BOTH,
    ("grpc.so_reuseport", 0),  # otherwise two servers could share a port, and connections would alternate
    ("grpc.max_concurrent_streams", 8),
    ("grpc.server_handshake_timeout_ms", 5000),
    ("grpc.max_connection_idle_ms", 5000),  # the connection of a node has a call until it ends
]
MOST_CONNECTIONS: Final = 1024
"""Connections to a node, unless it has more other nodes."""
ASKING: Final[Options] = [
    *_BOTH,
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.use_local_subchannel_pool", 1),  # each attempt makes a new connection
    ("grpc.min_reconnect_backoff_ms", int(ANSWER_LIMIT_S * 1000)),  # the limit for one attempt to connect
]


def answering(nodes: int, most_files: int) -> Options:
    """Return the options of a server of one of several nodes, a process that may open this many files.

    Its peers, strangers among them, may take a quarter of the files: the rest is for its clients and for chunks.
    """
    share = MOST_CONNECTIONS if most_files == resource.RLIM_INFINITY else most_files // 4
    most = max(2 * nodes + 16, min(MOST_CONNECTIONS, share))
    return [*_ANSWERING, ("grpc.max_allowed_incoming_connections", most)]


def said(text: str | None) -> str:
    """Return text from another node, made safe for a message or a log."""
    return printable((text or "")[:MAX_REASON])[:MAX_REASON]
