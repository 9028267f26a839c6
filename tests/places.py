"""The same tests, with data sets in a folder and in an object store: how does a test run in both places?

`pytestmark = places.EVERYWHERE` runs each test of a module twice. The second time, each data set below pytest's folder
that is opened by its path lies in an object store: the store serves that same folder, so a test that damages a chunk
damages an object. Nothing else changes: what opens a data set gets the location of the URL in place of the path.

A test with several cases has them in turn in a folder and in a store (`deal`), so that `make test` stays short.
`--everywhere` has each case in both places (`make everywhere`).
"""

from __future__ import annotations

import os
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


def add_options(parser: pytest.Parser) -> None:
    """`--everywhere`."""
    parser.addoption("--everywhere", action="store_true", help="each case of a test in a folder and in a store")


def deal(cases: Sequence[tuple[Hashable, Hashable, str]]) -> list[bool]:
    """Which cases run. A case is a test, its other parameters, and the place where its data sets lie.

    Of a test with several cases, each one runs in one of the places that it has, in turn; a single case runs in all.
    """
    places: dict[Hashable, dict[Hashable, list[str]]] = defaultdict(lambda: defaultdict(list))
    for test, others, place in cases:
        places[test][others].append(place)
    turns = {(test, others): turn for test, found in places.items() for turn, others in enumerate(found)}

    def runs(test: Hashable, others: Hashable, place: str) -> bool:
        both = places[test][others]
        return len(places[test]) == 1 or place == both[turns[test, others] % len(both)]

    return [runs(*case) for case in cases]


def leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases that `deal` does not run."""
    placed = [item for item in items if "lies_in" in _parameters(item)]
    kept = deal([_case(item) for item in placed])
    left_out = {item for item, keep in zip(placed, kept, strict=True) if not keep}
    if left_out and not config.getoption("--everywhere"):
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _case(item: pytest.Item) -> tuple[Hashable, Hashable, str]:
    assert isinstance(item, pytest.Function)
    place = _parameters(item)["lies_in"]
    ids = [part for part in item.callspec.id.split("-") if part != place]
    return item.nodeid.partition("[")[0], tuple(ids), place


def _parameters(item: pytest.Item) -> dict[str, str]:
    return item.callspec.params if hasattr(item, "callspec") else {}


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
