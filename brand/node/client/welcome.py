"""A server's answer to HELLO: facts about the server, and the memories that it shares.

The client validates the answer: a memory that differs from its description raises `ProtocolError`.
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
    """Facts of a server about itself."""

    share: float
    """Fraction of the data that fits into its memory; 1 or more if all of it fits."""
    nodes: int
    """Number of nodes that serve the data set together."""
    remote_share: float
    """Fraction of the memory that other nodes may fill."""
    listens_at: str | None
    """Address at which other nodes reach it, `host:port`; None if there is one node."""
    joined: bool
    """Whether it knows the addresses of the other nodes."""
    node: int
    """Number of its node."""
    process: int
    """Its process id."""
    life: str = field(repr=False)
    """Distinguishes it from earlier and later servers at its address."""


@dataclass(frozen=True, slots=True)
class Memories:
    """The memories that a server shares, read-only."""

    pages: NDArray[np.uint8]
    """Shape (pages, page size)."""
    prepared: NDArray[np.uint8] | None
    """Pages of decoded samples, shape (pages, page size); None if it decodes nothing."""
    entries: Entries | None
    """Entries of the directory, shape (samples,); None if it has none."""


def unpack_welcome(welcome: Mapping[str, Any], descriptors: Sequence[int]) -> tuple[Memories, ServerFacts]:
    """Return the memories and the facts of a server. The caller keeps the descriptors. Raises `ProtocolError`."""
    page, count, every, nodes, remote, second, shown = (
        _number(welcome, name)
        for name in ("page", "pages", "all_pages", "nodes", "remote_pages", "prepared_pages", "entries")
    )
    if page < ROW_BYTES or every < 1 or count < 1:
        raise ProtocolError("the server's memory differs from its description")
    sizes = [(count, page), *([(second, PAGE)] if second else []), *([(shown, ENTRY_BYTES)] if shown else [])]
    if len(sizes) != len(descriptors):
        raise ProtocolError("the server sent no memory, or more than it describes")
    mapped = [_mapped(descriptor, *size) for descriptor, size in zip(descriptors, sizes, strict=True)]
    memories = Memories(mapped[0], mapped[1] if second else None, mapped[-1].view(np.uint64)[:, 0] if shown else None)
    listens_at, joined = welcome.get("listens_at"), bool(welcome.get("joined"))
    node, process = int(welcome.get("node") or 0), int(welcome.get("process") or 0)
    life = str(welcome.get("life"))
    return memories, ServerFacts(count / every, nodes, remote / count, listens_at, joined, node, process, life)


def _number(welcome: Mapping[str, Any], name: str) -> int:
    value = welcome.get(name)
    if not isinstance(value, int) or value < 0:
        raise ProtocolError(f"the server does not send its {name}")
    return value


def _mapped(descriptor: int, count: int, page: int) -> NDArray[np.uint8]:
    """Map a memory of a server, read-only, shape (count, page). Raises `ProtocolError`."""
    size = os.fstat(descriptor).st_size
    if count * page != size:
        raise ProtocolError("the server's memory differs from its description")
    return np.frombuffer(mmap.mmap(descriptor, size, prot=mmap.PROT_READ), np.uint8).reshape(count, page)
