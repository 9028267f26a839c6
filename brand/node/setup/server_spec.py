"""The specification of a data server: one value, which a process that starts a server sends to it.

A node of a cluster has a few more values (`Member`), among them certificates for the messages between nodes: files in
PEM form, read and checked before gRPC gets them (`Tls`). Without TLS, anyone on the network between two nodes can read
and change their messages; the token only keeps strangers out. With TLS, a node proves its address by its certificate.
With `mutual`, the asking node also shows a certificate of the same CA.
"""

from __future__ import annotations

import json
import os
import ssl
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from brand.errors import UsageError
from brand.node.setup.caching import Cache
from brand.node.setup.memory import Memory
from brand.storage.io.location import Where

if TYPE_CHECKING:
    from brand.node.setup.decoding import Prepared


_DATE_ERRORS: Final = (9, 10)
"""Codes of OpenSSL for a certificate that is not yet valid, and for one that has expired."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of a node. Raises `UsageError` if a file is missing, has other contents, or is not valid at this time.

    Nodes read them again after they have changed, for the connections that they make from then on.
    """

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
        for file in (self.cert, self.ca):
            problem = _date_problem(self.cert, self.key, file)
            if problem:
                raise UsageError(f"{os.fspath(file)}: {problem}: renew it, or set the clock of this host")


def _date_problem(cert: str | os.PathLike[str], key: str | os.PathLike[str], trusted: str | os.PathLike[str]) -> str:
    """Return whether a certificate, or one of its CA, has expired or is not yet valid, in words of OpenSSL; else empty.

    `trusted` are the certificates to trust; only their dates count. Two ends in memory shake hands.
    """
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(cert, key, password=_no_password)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(trusted)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True)
    for end in ends * 2:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLCertVerificationError as error:
            return error.verify_message if error.verify_code in _DATE_ERRORS else ""
        except ssl.SSLError:  # the other end reports it
            return ""
    return ""


def bytes_of(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{os.fspath(path)}: cannot be read: {error.strerror}") from None


def _no_password() -> str:
    """Refuse a key that has a password; without this, OpenSSL would ask for it at the terminal."""
    raise ValueError


@dataclass(frozen=True)
class Member:
    """One node of a cluster."""

    node: int
    """Number of the node, from 0."""
    nodes: int
    token: str
    """A secret that only the nodes of the cluster know."""
    bind: str = "127.0.0.1:0"
    """Address at which the node listens for other nodes, `host:port`; port 0 for any free port."""
    peer_memory: Memory = None
    """How much of the node's memory other nodes may fill; None for a tenth."""
    tls: Tls | None = None
    """Certificates; None if messages are not encrypted."""

    def __post_init__(self) -> None:
        if not 0 <= self.node < self.nodes:
            raise UsageError(f"node {self.node} of {self.nodes}: nodes are 0 to {self.nodes - 1}")


@dataclass(frozen=True)
class ServerSpec:
    """The specification of a data server at its start."""

    where: Where
    """The data set."""
    address: str
    memory: Memory = None
    owners: tuple[int, ...] = ()
    """The server ends with the last of these processes."""
    member: Member | None = field(default=None, repr=False)
    """The node of several that it is; None if there is one node."""
    cache: tuple[Cache, ...] = ()
    """The cache folders, the fastest one first."""
    prepared: Prepared | None = None
    """Resources with which it decodes samples for its clients; None if they decode themselves."""
    common: bool = False
    """Whether several jobs may draw from it, for which it then decodes."""
    depth: int | None = None
    """Reads in flight; None for as many as raise the throughput of the storage."""
    page_cache: bool | None = None
    """Whether large reads use the page cache; None to use it if it can hold all the data."""
    plugins: tuple[str, ...] = ()
    """Modules of the plug-ins of Pillow with which it decodes."""
    record: str | os.PathLike[str] | None = None
    """The file for a log of all decisions (`brand.node.serve.recording`)."""

    def to_json(self) -> str:
        """Return the text for the standard input of the server, which has the same working folder."""
        return json.dumps(asdict(self), default=os.fspath)

    @classmethod
    def from_json(cls, text: str) -> ServerSpec:
        value = json.loads(text)
        member, prepared = value["member"], value["prepared"]
        if member is not None:
            value["member"] = Member(**member | {"tls": None if member["tls"] is None else Tls(**member["tls"])})
        value["cache"] = tuple(Cache(**cache) for cache in value["cache"])
        if prepared is not None:
            from brand.node.setup.decoding import Prepared

            value["prepared"] = Prepared(**prepared)
        return cls(**value | {"owners": tuple(value["owners"]), "plugins": tuple(value["plugins"])})
