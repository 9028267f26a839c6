"""Whose number is it? Clients, nodes and runs are all counted, and each count has a type of its own.

A number gets its type once, where it comes in: from a connection, a message, a stream or a log. Only
`brand.node.decide.peers.telling.as_client` makes a client's number of a node's.
"""

from __future__ import annotations

from typing import Final, NewType

ClientNumber = NewType("ClientNumber", int)
"""A connection of this server. Negative: another node, which draws as a client does."""
NodeNumber = NewType("NodeNumber", int)
"""A node of the cluster, from 0 on."""
RunNumber = NewType("RunNumber", int)
"""A run that a server knows. Each server numbers its runs for itself."""

Key = tuple[RunNumber, int]
"""Number of a run, and an epoch."""

NO_CLIENT: Final = ClientNumber(0)
"""The number of no client: they are counted from 1 on."""
FIRST_NODE: Final = NodeNumber(0)
"""The only node, where a server is alone."""
