"""Types for the numbers of clients, nodes and runs, so that they cannot be confused.

A number gets its type once, when it is received: from a connection, a message, a stream or a log. Only
`brand.node.decide.peers.announcements.as_client` converts a node's number to a client's.
"""

from __future__ import annotations

from typing import Final, NewType

ClientNumber = NewType("ClientNumber", int)
"""A connection of this server. Negative for another node, which draws as a client does."""
NodeNumber = NewType("NodeNumber", int)
"""A node of the cluster, from 0 on."""
RunNumber = NewType("RunNumber", int)
"""A run that a server knows. Each server assigns its own numbers."""

Key = tuple[RunNumber, int]
"""Number of a run, and an epoch."""

NO_CLIENT: Final = ClientNumber(0)
"""The number of no client: clients are counted from 1 on."""
FIRST_NODE: Final = NodeNumber(0)
"""The only node, if there are no others."""
