"""Do two nodes belong together? The facts that a node sends about itself, and those that must be equal on both sides.

A greeting is a small JSON object. Its reader validates it: first the size, then every field.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from brand.errors import ProtocolError, counted
from brand.node.setup.memory import Memory, parse_size

PROTOCOL: Final = 1
"""Version of the protocol between nodes."""
MAX_GREETING: Final = 1024
"""Longest greeting in bytes."""
MAX_NODES: Final = 1024
"""Maximum number of nodes of a cluster."""
_MAX_TEXT: Final = 100
_LIMITS: Final = {
    "protocol": (0, 1 << 16),
    "node": (0, MAX_NODES - 1),
    "nodes": (1, MAX_NODES),
    "page": (1, 1 << 30),
    "shares": (1, 1 << 40),
}
"""Smallest and largest value of each number."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """The facts that a node sends to another node about itself."""

    data_set: str
    """Id of the data set."""
    node: int
    """The number of this node, from 0."""
    nodes: int
    """Number of nodes."""
    page: int
    """Size of a page of the node's arena in bytes."""
    shares: int | None
    """Chunks in a group, if each node holds a partition of the data; None if all nodes see one folder."""
    brand: str
    """Version of Brand; it may differ."""
    memory: str | None = None
    """The node's memory setting, in the words of `memory_text`; None from an older version of Brand, which does not
    send it.
    """
    protocol: int = PROTOCOL

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Greeting:
        """Invert `to_json`. Raises `ProtocolError`, also for another version of the protocol."""
        value = _object(text)
        node, protocol = _number(value, "node"), _number(value, "protocol")
        if protocol != PROTOCOL:  # the rest may be other fields
            raise ProtocolError(f"node {node} uses version {protocol} of the protocol between nodes, not {PROTOCOL}")
        return cls(
            data_set=_text(value, "data_set"),
            node=node,
            nodes=_number(value, "nodes"),
            page=_number(value, "page"),
            shares=None if value.get("shares") is None else _number(value, "shares"),
            brand=_text(value, "brand"),
            memory=None if value.get("memory") is None else _text(value, "memory"),
        )


def disagreement(mine: Greeting, theirs: Greeting) -> str:
    """Return why two nodes cannot work together, naming both; empty if they can."""
    if theirs.node == mine.node:
        return f"two nodes have the number {mine.node}: give each a number of its own"
    if theirs.nodes == mine.nodes <= theirs.node:
        return (
            f"node {theirs.node} greets node {mine.node}, but the last of {mine.nodes} nodes is node {mine.nodes - 1}"
        )
    differ = [
        f"node {theirs.node} {verb} {said}, node {mine.node} {meant}"
        for (verb, meant), (_, said) in zip(_facts(mine), _facts(theirs), strict=True)
        if said != meant
    ]
    if None not in (mine.memory, theirs.memory) and mine.memory != theirs.memory:
        differ.append(
            f"node {theirs.node} has {theirs.memory}, node {mine.node} has {mine.memory}: "
            "give all nodes the same --memory (in Python: memory=)"
        )
    return "; ".join(differ)


def memory_text(memory: Memory) -> str:
    """Return a node's memory setting in words; equal memory gives equal text. Raises `UsageError`."""
    if memory is None:
        return "no memory named, so a part of what is free"
    if isinstance(memory, str):
        memory = parse_size(memory)
    return f"memory for {memory!r} of the data" if isinstance(memory, float) else f"memory of {memory:,} bytes"


def _facts(greeting: Greeting) -> list[tuple[str, str]]:
    """Return the facts that must be equal on all nodes, each as a verb and its object."""
    shares = (
        "all chunks" if greeting.shares is None else f"a partition in groups of {counted(greeting.shares, 'chunk')}"
    )
    return [
        ("serves", f"data set {greeting.data_set}"),
        ("knows of", counted(greeting.nodes, "node")),
        ("holds", shares),
        ("has", f"pages of {counted(greeting.page, 'byte')}"),
    ]


def _object(text: bytes) -> dict[str, Any]:
    if len(text) > MAX_GREETING:
        raise ProtocolError(f"a greeting of {len(text):,} bytes; the limit is {MAX_GREETING:,}")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise ProtocolError("a greeting is not JSON") from None
    if not isinstance(value, dict):
        raise ProtocolError("a greeting is not a JSON object")
    return value


def _number(value: dict[str, Any], name: str) -> int:
    least, most = _LIMITS[name]
    number = value.get(name)
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number <= most:
        raise ProtocolError(f"a greeting in which {name} is not a number from {least} to {most:,}")
    return number


def _text(value: dict[str, Any], name: str) -> str:
    text = value.get(name)
    if not isinstance(text, str) or not 0 < len(text) <= _MAX_TEXT or not text.isprintable():
        raise ProtocolError(f"a greeting in which {name} is not a text of 1 to {_MAX_TEXT} characters")
    return text
