"""Certificates in gRPC's form. `brand.node.setup.tls` has their files, and checks them."""

from __future__ import annotations

import grpc

from brand.node.setup.tls import Tls, bytes_of


def server_credentials(tls: Tls) -> grpc.ServerCredentials:
    """Return credentials for the answering side. Raises `UsageError`."""
    pair = (bytes_of(tls.key), bytes_of(tls.cert))
    return grpc.ssl_server_credentials([pair], bytes_of(tls.ca), require_client_auth=tls.mutual)


def channel_credentials(tls: Tls) -> grpc.ChannelCredentials:
    """Return credentials for the asking side. Raises `UsageError`."""
    if not tls.mutual:
        return grpc.ssl_channel_credentials(bytes_of(tls.ca))
    return grpc.ssl_channel_credentials(bytes_of(tls.ca), bytes_of(tls.key), bytes_of(tls.cert))
