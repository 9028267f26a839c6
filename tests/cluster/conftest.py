"""Two nodes that are connected both ways, and certificates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from brand.node.setup.server_spec import Tls
from tests.cluster.support import Node, asking, running


@dataclass(frozen=True)
class Certificates:
    """Files of two CAs that do not know each other."""

    ours: Tls
    theirs: Tls
    elsewhere: Tls
    """Of our CA, for another host."""


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Certificates for this host."""
    folder = tmp_path_factory.mktemp("certificates")
    ours, theirs = trustme.CA(), trustme.CA()
    return Certificates(
        ours=files(ours, folder / "ours", "127.0.0.1"),
        theirs=files(theirs, folder / "theirs", "127.0.0.1"),
        elsewhere=files(ours, folder / "elsewhere", "elsewhere.example"),
    )


def files(ca: trustme.CA, folder: Path, host: str) -> Tls:
    """A certificate, its key and its CA, as files."""
    folder.mkdir()
    issued = ca.issue_cert(host)
    ca.cert_pem.write_to_path(folder / "ca.pem")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    for number, part in enumerate(issued.cert_chain_pems):
        part.write_to_path(folder / "cert.pem", append=number > 0)
    return Tls(folder / "cert.pem", folder / "key.pem", folder / "ca.pem")


@pytest.fixture
def pair() -> Iterator[tuple[Node, Node]]:
    """Nodes 0 and 1; node 0 asks node 1."""
    with running(1) as answerer, asking(answerer) as asker:
        asker.opened(1, asks=True)
        answerer.opened(0, asks=False)
        yield asker, answerer
