"""The same tests, with data sets in a folder and in an object store: how does a test run in both places?

`pytestmark = places.EVERYWHERE` runs each test of a module twice. The second time, each data set below pytest's folder
that is opened by its path lies in an object store: the store serves that same folder, so a test that damages a chunk
damages an object. Nothing else changes: what opens a data set gets the location of the URL in place of the path.

Each case of a test has one place, in turn a folder and a store (`deal`), so that `make test` stays short; a test with a
single case has the place that its name decides. Tests of commands take turns in the same way in the kinds of stores
(`tests/shop.py`). `@places.turns("ranks")` lets the values of a parameter take turns in place of a full product: each
case of the other parameters has one value. `--everywhere` has each case with every place and value (`make everywhere`).
"""

from __future__ import annotations

import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Final

import pytest

from brand.errors import UsageError
from brand.formats.constants import MANIFEST_NAME, SHARE_NAME
from brand.storage.dataset import catalogue
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io import location
from brand.storage.io.indexcopy import copy_index
from brand.storage.io.location import Location, Where
from brand.storage.io.remote import Remote, fetch_index
from brand.testing import storage
from tests.tools.objects import Keys, ObjectStore

EVERYWHERE: Final = pytest.mark.usefixtures("lies_in")
IN_A_FOLDER: Final = pytest.mark.parametrize("lies_in", ["folder"], indirect=True)
"""Of a module that runs everywhere, a test of what only holds for folders."""
KEYS: Final = Keys("key", "secret")
_PLACES: Final = ("lies_in", "any_shop")
"""Fixtures whose parameter says where data sets lie."""


def turns(name: str) -> pytest.MarkDecorator:
    """Deal the values of a parameter: each case of the other parameters has one of them, in turn."""
    return pytest.mark.turns(name)


def add_options(parser: pytest.Parser) -> None:
    """`--everywhere`."""
    parser.addoption("--everywhere", action="store_true", help="each case of a test in every place that it has")


def deal(cases: Sequence[tuple[Hashable, Hashable, Hashable]]) -> list[bool]:
    """Which cases run. A case is a test, its other parameters, and the place where its data sets lie, or another value.

    Each case runs in one of the places that it has; the cases of a test take turns, and its name decides the first.
    """
    places: dict[Hashable, dict[Hashable, list[Hashable]]] = defaultdict(lambda: defaultdict(list))
    for test, others, place in cases:
        places[test][others].append(place)
    numbers = {(test, others): number for test, found in places.items() for number, others in enumerate(found)}

    def runs(test: Hashable, others: Hashable, place: Hashable) -> bool:
        every = places[test][others]
        first = zlib.crc32(str(test).encode())
        return place == every[(first + numbers[test, others]) % len(every)]

    return [runs(*case) for case in cases]


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases that `deal` does not run: first of parameters that take turns, then of places."""
    if config.getoption("--everywhere"):
        return
    kept = list(items)
    for name_of in (_turning, _place):
        dealt = [item for item in kept if name_of(item) is not None]
        left_out = {
            item for item, keep in zip(dealt, deal([_case(i, name_of(i)) for i in dealt]), strict=True) if not keep
        }
        kept = [item for item in kept if item not in left_out]
    if len(kept) < len(items):
        left = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in left])
        items[:] = kept


def _case(item: pytest.Item, name: str | None) -> tuple[Hashable, Hashable, Hashable]:
    """A case of a test whose value of a parameter is dealt."""
    assert isinstance(item, pytest.Function)
    values = {each: id(value) for each, value in item.callspec.params.items()}  # a case has the object of the list
    others = sorted((each, value) for each, value in values.items() if each not in (name, *_PLACES))
    return item.nodeid.partition("[")[0], tuple(others), values[str(name)]


def _turning(item: pytest.Item) -> str | None:
    marker = item.get_closest_marker("turns")
    return None if marker is None else str(marker.args[0])


def _place(item: pytest.Item) -> str | None:
    values = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return next((name for name in _PLACES if name in values), None)


def environment(store: ObjectStore, folder: Path) -> dict[str, str]:
    """Variables by which a process finds the store, and keeps copies of indices in `folder`."""
    return {
        "AWS_ENDPOINT_URL": store.url,
        "AWS_ACCESS_KEY_ID": KEYS.access,
        "AWS_SECRET_ACCESS_KEY": KEYS.secret,
        "XDG_CACHE_HOME": str(folder),
    }


def url_of(path: Path, root: Path) -> str:
    """The URL in the store of a folder below its root."""
    return f"s3://{path.relative_to(root).as_posix()}"


def at_urls(root: Path, patch: pytest.MonkeyPatch) -> None:
    """From now on, data sets below `root` that are opened by their path are opened in the store."""

    def located(where: Where) -> Location:
        if not isinstance(where, str | os.PathLike):
            return where
        path = Path(where).absolute()
        if not path.is_relative_to(root) or not (path / MANIFEST_NAME).exists() or (path / SHARE_NAME).exists():
            return plain(where)
        url = url_of(path, root)
        try:
            return Remote(url, copy_index(url))  # in this process, which is much quicker
        except UsageError:  # a forked process may not speak to a store
            return Remote(url, fetch_index(url))

    plain: Callable[[Where], Location] = location.located
    for module in (catalogue, storage):
        patch.setattr(module, "located", located)


def named(data: StoredDataSet, chunk: int) -> Path | str:
    """A chunk as errors name it: by its path or by its URL."""
    name = data.location.chunk_file(chunk)
    return name if data.location.in_store else Path(name)
