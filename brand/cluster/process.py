"""The process of a node server, one of several, that a training process started."""

from __future__ import annotations

from brand.cluster.member import server_of
from brand.node.launch import Spec
from brand.node.member import Member
from brand.node.process import serve
from brand.node.server import NodeServer


def main() -> None:
    """Serve what standard input says, until the owners have ended."""
    serve(_make)


def _make(spec: Spec) -> NodeServer:
    assert spec.cluster is not None
    member = Member.from_json(spec.cluster)
    return server_of(member, spec.path, spec.address, memory=spec.memory, owners=spec.owners)
