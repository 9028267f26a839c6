"""Nodes that do not belong together are told apart, and nothing that is not a greeting passes for one."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from brand.cluster.greeting import MAX_GREETING, MAX_NODES, PROTOCOL, Greeting, disagreement, memory_text
from brand.errors import ProtocolError
from tests.cluster.support import greeting

TEXTS = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=100)
GREETINGS = st.builds(
    Greeting,
    data_set=TEXTS,
    node=st.integers(0, MAX_NODES - 1),
    nodes=st.integers(1, MAX_NODES),
    page=st.integers(1, 1 << 30),
    shares=st.none() | st.integers(1, 1 << 40),
    brand=TEXTS,
    memory=st.sampled_from(["memory for 0.5 of the data", "memory of 1,000 bytes"]),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.slow
@given(GREETINGS)
def test_a_greeting_comes_back_as_it_was(said: Greeting) -> None:
    """Through JSON, where it is not too long."""
    text = said.to_json()
    if len(text) <= MAX_GREETING:
        assert Greeting.from_json(text) == said


@pytest.mark.slow
@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_what_is_no_greeting(text: bytes) -> None:
    """A clear error, whatever it is."""
    with pytest.raises(ProtocolError, match="a greeting"):
        Greeting.from_json(text)


@pytest.mark.slow
@given(st.sampled_from(sorted(asdict(greeting(0)))), JSON | st.just("missing"))
def test_a_greeting_with_a_wrong_field(name: str, value: Any) -> None:
    """Every field is checked: what passes is a value that the field may have."""
    fields = asdict(greeting(0))
    fields[name] = value
    if value == "missing":
        del fields[name]
    try:
        found = Greeting.from_json(json.dumps(fields).encode())
    except ProtocolError:
        return
    field = getattr(found, name)
    assert field == value or (name in ("shares", "memory") and value == "missing")
    assert field is None or type(field) is type(getattr(greeting(0, shares=1, memory="some"), name))


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 1000,
        greeting(0).to_json() + b" " * MAX_GREETING,
        b'{"node": ' + b"9" * 900 + b"}",
        b'{"node": 1e400}',
        b'{"node": NaN}',
        b"\xff\xfe",
        b'{"node": -1, "protocol": 1}',
        b'{"node": true, "protocol": 1}',
    ],
)
def test_texts_that_hurt_careless_readers(text: bytes) -> None:
    """Deep, long, large, not UTF-8."""
    with pytest.raises(ProtocolError, match="a greeting"):
        Greeting.from_json(text)


def test_a_greeting_of_another_version() -> None:
    """Says so first: its other fields may have changed."""
    text = json.dumps({"node": 2, "protocol": PROTOCOL + 1, "new": []}).encode()
    with pytest.raises(ProtocolError, match=f"node 2 uses version {PROTOCOL + 1} of the protocol"):
        Greeting.from_json(text)


@pytest.mark.slow
@given(GREETINGS, GREETINGS)
def test_nodes_agree_where_all_but_number_and_version_are_the_same(mine: Greeting, theirs: Greeting) -> None:
    """And their numbers are two of the cluster's."""
    alike = replace(theirs, node=mine.node, brand=mine.brand) == mine
    assert bool(disagreement(mine, theirs)) == (not alike or not mine.node != theirs.node < mine.nodes)
    other = replace(mine, node=(mine.node + 1) % MAX_NODES)
    assert bool(disagreement(mine, other)) == (other.node >= mine.nodes)


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        (greeting(2, 3, data_set="c0de"), "node 2 serves data set c0de, node 0 data set 2b5f"),
        (greeting(2, 4), "node 2 knows of 4 nodes, node 0 3 nodes"),
        (greeting(2, 3, page=512), "node 2 has pages of 512 bytes, node 0 pages of 4,096 bytes"),
        (greeting(2, 3, shares=16), "node 2 holds a partition in groups of 16 chunks, node 0 all chunks"),
        (
            greeting(2, 3, memory=memory_text("2GB")),
            "node 2 has memory of 2,000,000,000 bytes, node 0 has memory for 0.25 of the data: "
            "give all nodes the same --memory (in Python: memory=)",
        ),
        (
            greeting(2, 3, memory=memory_text(None)),
            "node 2 has no memory named, so a part of what is free, node 0 has memory for 0.25 of the data: "
            "give all nodes the same --memory (in Python: memory=)",
        ),
        (greeting(2, 3, memory=memory_text(0.25)), ""),
        (greeting(2, 3, memory=None), ""),
        (greeting(0, 3), "two nodes have the number 0: give each a number of its own"),
        (greeting(3, 3), "node 3 greets node 0, but the last of 3 nodes is node 2"),
    ],
)
def test_what_differs_is_named(theirs: Greeting, said: str) -> None:
    """And both nodes are."""
    assert disagreement(greeting(0, 3, memory=memory_text(0.25)), theirs) == said


def test_the_same_memory_is_the_same_however_it_is_written() -> None:
    """As a text, or as a number of bytes."""
    assert memory_text("2GB") == memory_text(2_000_000_000) == memory_text("2000 MB")
    assert memory_text(0.5) != memory_text(0.25)


def test_all_that_differs_is_named() -> None:
    """Not the first alone."""
    said = disagreement(greeting(0, 3), greeting(1, 3, data_set="c0de", page=512))
    assert "data set c0de" in said
    assert "pages of 512 bytes" in said
