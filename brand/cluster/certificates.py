"""The certificates of a node, for gRPC. Changed files are read again, for the connections made from then on.

A program that renews a certificate replaces its files while nodes run. A file that is missing or half written at that
moment is reported, and the certificates that were read before remain in use. Open connections are not affected.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import grpc

from brand.errors import UsageError
from brand.node.setup.server_spec import Tls, bytes_of
from brand.reprs import Reprs

_SAYS: Final = (
    (r"has expired", "the certificate of {who}, or of its CA, has expired: renew it on that node"),
    (r"not yet valid", "the certificate of {who} is not yet valid: compare the clocks of both hosts"),
    (r"hostname", "the certificate of {who} is for another host: make it for the name or address in the list of nodes"),
    (r"self.signed|issuer", "no CA in {ca} has signed the certificate of {who}: all nodes need one CA"),
    (r"wrong_version", "{who} does not use TLS: give certificates to all nodes or to none"),
    (r"certificate|handshake|socket closed|endpoint closing", "do both sides use TLS, with the same CA?"),
)
"""Patterns in the errors of gRPC, the first that fits counts, and the sentence about each."""

log = logging.getLogger("brand.cluster")


@dataclass(frozen=True, slots=True)
class _Pems:
    cert: bytes
    ca: bytes
    key: bytes = field(repr=False)


class CertificateFiles(Reprs, shows="_tls.cert _tls.key _tls.ca _told"):
    """The files of `tls`. Safe for several threads. Raises `UsageError` if a file is missing or wrong."""

    def __init__(self, tls: Tls) -> None:
        self._tls, self._lock = tls, threading.Lock()
        self._told = ""
        """The last problem that was reported, while it lasts."""
        self._seen = self._state()
        self._pems = self._read()

    def server(self) -> grpc.ServerCredentials:
        """Return credentials for the answering side."""
        last = self._pems

        def changed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal last
            pems = self._current()
            if pems is last:
                return None
            last = pems
            return _configuration(pems)

        credentials: grpc.ServerCredentials = grpc.dynamic_ssl_server_credentials(
            _configuration(last),
            changed,  # type: ignore[arg-type] # the stubs leave out that None stands for "unchanged"
            require_client_authentication=self._tls.mutual,
        )
        return credentials

    def channel(self) -> grpc.ChannelCredentials:
        """Return credentials for the asking side."""
        pems = self._current()
        if not self._tls.mutual:
            return grpc.ssl_channel_credentials(pems.ca)
        return grpc.ssl_channel_credentials(pems.ca, pems.key, pems.cert)

    def hint(self, details: str, who: str) -> str:
        """Return why a connection to `who` failed with an error of gRPC, as far as certificates are the reason."""
        mine = self.problem()
        if mine and self._tls.mutual:
            return mine
        return hint(details, who, os.fspath(self._tls.ca))

    def problem(self) -> str:
        """Return what is wrong with the files now, their dates included. Empty if nothing is."""
        try:
            replace(self._tls)
        except UsageError as error:
            return str(error)
        return ""

    def _current(self) -> _Pems:
        """Return the certificates, and read them again if the files have changed."""
        with self._lock:
            state = self._state()
            if state != self._seen:
                try:
                    pems = self._read()
                except UsageError as error:
                    self._tell(f"{error}; the certificates that were read before remain in use")
                    return self._pems
                if self._state() == state:  # else, another file is being written: read all at the next connection
                    self._pems, self._seen, self._told = pems, state, ""
                    log.info("%s: the certificate was read again", os.fspath(self._tls.cert))
            return self._pems

    def _read(self) -> _Pems:
        tls = replace(self._tls)  # checks the files
        return _Pems(bytes_of(tls.cert), bytes_of(tls.ca), bytes_of(tls.key))

    def _state(self) -> list[tuple[int, int, int] | None]:
        """Return values that differ after a file was written or replaced."""
        found: list[tuple[int, int, int] | None] = []
        for path in (self._tls.cert, self._tls.key, self._tls.ca):
            try:
                facts = Path(path).stat()
                found.append((facts.st_mtime_ns, facts.st_size, facts.st_ino))
            except OSError:
                found.append(None)
        return found

    def _tell(self, problem: str) -> None:
        if problem != self._told:
            self._told = problem
            log.warning("%s", problem)


def hint(details: str, who: str, ca: str) -> str:
    """Return a sentence about an error of gRPC that certificates have caused; empty if it has another cause."""
    for pattern, sentence in _SAYS:
        if re.search(pattern, details, re.IGNORECASE):
            return sentence.format(who=who, ca=ca)
    return ""


def _configuration(pems: _Pems) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(pems.key, pems.cert)], pems.ca)
