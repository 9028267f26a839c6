"""The process of one of several node servers, where a training process started it."""

from __future__ import annotations

from brand.cluster.member import server_of
from brand.node.client.launch import Spec
from brand.node.serve.process import serve
from brand.node.serve.server import NodeServer
from brand.node.setup.caching import Cache
from brand.node.setup.member import Member


def main() -> None:
    """Read from standard input what to serve, and serve it until the owner processes have ended."""
    serve(_make)


def _make(spec: Spec) -> NodeServer:
    assert spec.cluster is not None
    member = Member.from_json(spec.cluster)
    cache = None if spec.cache is None else Cache(**spec.cache)
    return server_of(member, spec.path, spec.address, memory=spec.memory, owners=spec.owners, cache=cache)
