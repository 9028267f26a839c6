"""What went wrong is a short list, the worst first; nothing is said of what is right."""

from __future__ import annotations

from typing import Any

import pytest

from brand.node.serve.reports import problems

FINE: dict[str, Any] = {"cluster": None, "cache": None, "failed_reads": 0, "replaced": [], "timeouts": 0}
CLUSTER = {"node": 1, "nodes": 4, "reachable": [0, 3]}
CACHE = {"folder": "/ssd", "state": "failed: no space"}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"cluster": CLUSTER}, "nodes that cannot be reached: 2"),
        ({"cache": CACHE}, "the cache folder /ssd: failed: no space"),
        ({"failed_reads": 1}, "1 large read of the storage failed; clients read their samples directly"),
        (
            {"replaced": [{"index": 5, "chunk": 1}, {"index": 5, "chunk": 1}, {"index": 6, "chunk": 1}]},
            "2 damaged samples of 1 chunk replaced by other samples: `brand verify` lists the damage",
        ),
        ({"timeouts": 3}, "3 samples not sent in time by other nodes"),
    ],
)
def test_each_problem_has_a_text(change: dict[str, Any], text: str) -> None:
    """With what to do, if that is not plain."""
    assert problems(FINE | change) == [text]


def test_without_problems_nothing_is_said() -> None:
    """Also if there are other nodes and a cache folder."""
    found = {"cluster": CLUSTER | {"reachable": [0, 2, 3]}, "cache": CACHE | {"state": "full"}}
    assert problems(FINE) == problems(FINE | found) == []


def test_the_worst_comes_first() -> None:
    """A node that is lost, before a sample that came late."""
    assert len(problems(FINE | {"cluster": CLUSTER, "timeouts": 1})) == 2
    assert problems(FINE | {"cluster": CLUSTER, "timeouts": 1})[0].startswith("nodes")
