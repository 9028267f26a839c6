"""The same tests, with data sets in a folder and in an object store: how does a test run in both places?

`pytestmark = places.EVERYWHERE` runs each test of a module twice. The second time, each data set below pytest's folder
that is opened by its path lies in an object store: the store serves that same folder, so a test that damages a chunk
damages an object. Nothing else changes: what opens a data set gets the location of the URL in place of the path.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from brand.errors import UsageError
from brand.formats.constants import MANIFEST_NAME, SHARE_NAME
from brand.storage import catalogue, location
from brand.storage.dataset import StoredDataSet
from brand.storage.fetching import fetch_index
from brand.storage.indexcopy import copy_index
from brand.storage.location import Location, Where
from brand.storage.remote import Remote
from brand.testing import storage
from brand.testing.objects import Keys, ObjectStore

EVERYWHERE: Final = pytest.mark.usefixtures("lies_in")
IN_A_FOLDER: Final = pytest.mark.parametrize("lies_in", ["folder"], indirect=True)
"""Of a module that runs everywhere, a test of what only holds for folders."""
KEYS: Final = Keys("key", "secret")


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
