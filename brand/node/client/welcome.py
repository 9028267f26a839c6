"""What does a server's answer to HELLO hold? Facts about the server, and the memories that it shares.

The client distrusts it: a memory that is not as the server says raises `ProtocolError`.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import ProtocolError
from brand.node.memory.directory import ENTRY_BYTES, Entries
from brand.node.memory.page_memory import ROW_BYTES
from brand.node.wire.preparer import PAGE

MOST_MEMORIES: Final = 3


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server tells about itself."""

    share: float
    """Which part of the data fits into its memory; 1 or more: all of it."""
    nodes: int
    """How many nodes serve the data set together."""
    remote_share: float
    """Part of the memory that other nodes may fill."""
    listens_at: str | None
    """Where other nodes reach it, `host:port`; None where it is alone."""
    joined: bool
    """Whether it knows where the other nodes are."""
    node: int
    """Number of its node."""
    process: int
    """Its process id."""
    life: str = field(repr=False)
    """Tells it from other servers at its address, before and after."""


@dataclass(frozen=True, slots=True)
class Memories:
    """What a server shares, read-only."""

    pages: NDArray[np.uint8]
    """Shape (pages, page size)."""
    prepared: NDArray[np.uint8] | None
    """Of prepared samples, shape (pages, page size); None where it prepares nothing."""
    entries: Entries | None
    """Of the directory, shape (samples,); None where it has none."""


def unpack_welcome(welcome: Mapping[str, Any], descriptors: Sequence[int]) -> tuple[Memories, ServerFacts]:
    """The memories and the facts of a server. The descriptors stay the caller's. Raises `ProtocolError`."""
    page, count, every, nodes, remote, second, shown = (
        _number(welcome, name)
        for name in ("page", "pages", "all_pages", "nodes", "remote_pages", "prepared_pages", "entries")
    )
    if page < ROW_BYTES or every < 1 or count < 1:
        raise ProtocolError("the server's memory is not as it says")
    sizes = [(count, page), *([(second, PAGE)] if second else []), *([(shown, ENTRY_BYTES)] if shown else [])]
    if len(sizes) != len(descriptors):
        raise ProtocolError("the server sent no memory, or more than it says")
    mapped = [_mapped(descriptor, *size) for descriptor, size in zip(descriptors, sizes, strict=True)]
    memories = Memories(mapped[0], mapped[1] if second else None, mapped[-1].view(np.uint64)[:, 0] if shown else None)
    listens_at, joined = welcome.get("listens_at"), bool(welcome.get("joined"))
    node, process = int(welcome.get("node") or 0), int(welcome.get("process") or 0)
    life = str(welcome.get("life"))
    return memories, ServerFacts(count / every, nodes, remote / count, listens_at, joined, node, process, life)


def _number(welcome: Mapping[str, Any], name: str) -> int:
    value = welcome.get(name)
    if not isinstance(value, int) or value < 0:
        raise ProtocolError(f"the server does not say its {name}")
    return value


def _mapped(descriptor: int, count: int, page: int) -> NDArray[np.uint8]:
    """A memory of a server, read-only, shape (count, page). Raises `ProtocolError`."""
    size = os.fstat(descriptor).st_size
    if count * page != size:
        raise ProtocolError("the server's memory is not as it says")
    return np.frombuffer(mmap.mmap(descriptor, size, prot=mmap.PROT_READ), np.uint8).reshape(count, page)
