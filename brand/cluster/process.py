"""The process of one of several data servers, started by a training process."""

from __future__ import annotations

from brand.cluster.member import server_of
from brand.node.serve.process import serve


def main() -> None:
    """Serve the specification from standard input until the client processes have ended."""
    serve(server_of)
