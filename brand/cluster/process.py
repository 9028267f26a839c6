"""The process of one of several node servers, where a training process started it."""

from __future__ import annotations

from brand.cluster.member import server_of
from brand.node.serve.process import serve


def main() -> None:
    """Read from standard input what to serve, and serve it until the owner processes have ended."""
    serve(server_of)
