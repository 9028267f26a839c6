"""How does a node server become one of several? It gets a network, and a greeting that tells the others what it is."""

from __future__ import annotations

import os

from brand.cluster.greeting import Greeting, memory_text
from brand.cluster.peers import Peers
from brand.node.serve.server import Among, NodeServer
from brand.node.setup.caching import Cache
from brand.node.setup.member import Member
from brand.node.setup.memory import Memory
from brand.node.setup.preparing import Prepared
from brand.storage.dataset import StoredDataSet
from brand.storage.location import Where
from brand.version import __version__


def server_of(
    member: Member,
    where: Where,
    address: str,
    *,
    memory: Memory = None,
    owners: tuple[int, ...] = (),
    depth: int | None = None,
    page_cache: bool | None = None,
    record: str | os.PathLike[str] | None = None,
    cache: Cache | None = None,
    prepared: Prepared | None = None,
) -> NodeServer:
    """The node server of a member. The other arguments, and what it raises, are those of `NodeServer`."""

    def network(data: StoredDataSet, page: int) -> Peers:
        shares = None if data.share is None else data.share.group_chunks
        greeting = Greeting(data.id, member.node, member.nodes, page, shares, __version__, memory_text(memory))
        return Peers(greeting, member.token, member.bind, member.tls)

    return NodeServer(
        where,
        address,
        memory=memory,
        owners=owners,
        depth=depth,
        page_cache=page_cache,
        among=Among(member.node, member.nodes, network, member.remote_memory),
        record=record,
        cache=cache,
        prepared=prepared,
    )
