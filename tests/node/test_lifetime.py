"""A server lives as long as its owners, ends earlier where its clients have left it, and never while it is started."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
from collections.abc import Iterator

import pytest

from brand.node.serve.lifetime import LINGER_S, Lifetime


@pytest.fixture
def selector() -> Iterator[selectors.BaseSelector]:
    """The selector of a loop."""
    with selectors.DefaultSelector() as made:
        yield made


@pytest.fixture
def owned(selector: selectors.BaseSelector) -> Iterator[Lifetime]:
    """The lifetime of a server that this process owns."""
    lifetime = Lifetime(selector, (os.getpid(),))
    yield lifetime
    lifetime.close()


def test_a_server_that_is_being_started_waits_for_its_clients_as_long_as_it_takes(owned: Lifetime) -> None:
    """The clock begins when its clients have left, not before the first has come; one that comes back stops it."""
    assert not owned.over(0, used=False, starting=True)
    assert not owned.over(1000, used=False, starting=True)
    assert not owned.over(1001, used=True, starting=False)
    assert not owned.over(2000, used=False, starting=False)
    assert not owned.over(2000 + LINGER_S, used=False, starting=False)
    assert not owned.over(2001 + LINGER_S, used=True, starting=False)
    assert not owned.over(3000, used=False, starting=False)
    assert owned.over(3001 + LINGER_S, used=False, starting=False)


def test_it_ends_with_the_last_of_its_owners(selector: selectors.BaseSelector) -> None:
    """Also while it is being started, and while it is used."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        lifetime = Lifetime(selector, (process.pid,))
        lifetime.own(process.pid)
        assert not lifetime.over(0, used=False, starting=True)
        process.communicate(b"\n")
        for key, events in selector.select(60):
            key.data(events)
    assert lifetime.over(0, used=True, starting=True)
    assert not selector.get_map()


def test_without_owners_it_lives_until_it_is_told_to_end(selector: selectors.BaseSelector) -> None:
    """`brand serve`."""
    lifetime = Lifetime(selector, ())
    assert not lifetime.over(0, used=False, starting=False)
    assert not lifetime.over(1e9, used=False, starting=False)
