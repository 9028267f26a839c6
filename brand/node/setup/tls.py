"""Certificates for the messages between nodes: files in PEM form, read and checked before gRPC gets them.

Without TLS, anyone on the network between two nodes can read and change their messages; the token only keeps strangers
out. With TLS, a node proves its address by its certificate. With `mutual`, the asking node also shows a certificate of
the same CA.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brand.errors import UsageError


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of a node. Raises `UsageError` if a file is missing or has other contents."""

    cert: str | os.PathLike[str]
    """The node's certificate, for the host names or IP addresses by which other nodes reach it.

    The file also holds the certificates between it and the CA, if there are any.
    """
    key: str | os.PathLike[str]
    """The certificate's private key, without a password."""
    ca: str | os.PathLike[str]
    """Certificates of the authorities that may sign the other nodes' certificates."""
    mutual: bool = False
    """Whether an asking node must show a certificate, too."""

    def __post_init__(self) -> None:
        bytes_of(self.cert), bytes_of(self.key), bytes_of(self.ca)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(self.ca)
        except ssl.SSLError:
            raise UsageError(f"{os.fspath(self.ca)}: no certificates in PEM form") from None
        try:
            context.load_cert_chain(self.cert, self.key, password=_no_password)
        except (ssl.SSLError, ValueError):
            raise UsageError(
                f"{os.fspath(self.cert)} and {os.fspath(self.key)}: not a certificate and its key in PEM form"
            ) from None

    def to_json(self) -> dict[str, Any]:
        return {"cert": _path(self.cert), "key": _path(self.key), "ca": _path(self.ca), "mutual": self.mutual}


def _path(path: str | os.PathLike[str]) -> str:
    return os.path.abspath(path)  # a server process may have another working folder


def bytes_of(path: str | os.PathLike[str]) -> bytes:
    """Return the contents of a file. Raises `UsageError`."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{os.fspath(path)}: cannot be read: {error.strerror}") from None


def _no_password() -> str:
    """Refuse a key that has a password; without this, OpenSSL would ask for it at the terminal."""
    raise ValueError
