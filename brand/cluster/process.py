"""Makes a data server one of several, in the process that a training starts, or in that of `brand serve`.

The server gets a network, and a greeting that tells the other nodes its settings.
"""

from __future__ import annotations

from brand.cluster.greeting import Greeting, memory_text
from brand.cluster.peers import PeerStreams
from brand.node.serve.process import serve
from brand.node.serve.server import NodeServer
from brand.node.setup.server_spec import ServerSpec
from brand.storage.dataset.dataset import StoredDataSet
from brand.version import __version__


def main() -> None:
    """Serve the specification from standard input until the client processes have ended."""
    serve(server_of)


def server_of(spec: ServerSpec) -> NodeServer:
    member = spec.member
    assert member is not None

    def network(data: StoredDataSet, page: int) -> PeerStreams:
        shares = None if data.share is None else data.share.group_chunks
        greeting = Greeting(data.id, member.node, member.nodes, page, shares, __version__, memory_text(spec.memory))
        return PeerStreams(greeting, member.token, member.bind, member.tls)

    return NodeServer(spec, network)
