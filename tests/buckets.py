"""A bucket of an object store for tests that write: its URL, its files, and the variables by which programs find it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import tree_digest
from tests.tools.objects import S3, Flavour, Gcs, Keys, ObjectStore
from tests.tools.objects.faults import Operation

KEYS = Keys("key", "secret")


@dataclass(frozen=True)
class Bucket:
    """The bucket `bucket` of `store`. Programs keep what they can make again in `cache`."""

    store: ObjectStore
    cache: Path
    environment: dict[str, str]

    def url(self, name: str) -> str:
        """The URL of a folder."""
        scheme = {S3: "s3:/", Gcs: "gs:/"}.get(type(self.store.flavour), self.store.url)
        return f"{scheme}/bucket/{name}"

    def place(self, name: str) -> Path:
        """The folder whose files are these objects."""
        return self.store.folder.root / "bucket" / name

    def digest(self, name: str) -> dict[str, str]:
        """SHA-256 of each object below a folder."""
        return tree_digest(self.place(name))

    def chunks(self, name: str) -> int:
        """How many chunks, or the claim, a folder has."""
        found = self.place(name) / "chunks"
        return len(os.listdir(found)) if found.is_dir() else 0

    def asked(self) -> Counter[Operation]:
        """What was asked since the last call."""
        found = Counter(request.operation for request in self.store.requests)
        self.store.requests.clear()
        return found

    def works(self) -> list[Path]:
        """Work folders of conversions and copies that are not finished."""
        return [path for path in self.cache.glob("brand/*/*") if path.parent.name in ("conversions", "copies")]


@contextmanager
def bucket(folder: Path, patch: pytest.MonkeyPatch, flavour: Flavour | None = None) -> Iterator[Bucket]:
    """A bucket of a new store, which this process finds as well. `folder` is for what it needs, and for caches."""
    flavour = S3(KEYS) if flavour is None else flavour
    with ObjectStore(flavour=flavour) as store:
        store.folder.make_bucket("bucket")
        environment = {"XDG_CACHE_HOME": str(folder / "cache"), "AWS_ENDPOINT_URL": store.url}  # no proxy for this host
        match flavour:
            case S3(keys) if keys is not None:
                environment |= {"AWS_ACCESS_KEY_ID": keys.access, "AWS_SECRET_ACCESS_KEY": keys.secret}
            case Gcs():
                account = folder / "account.json"
                account.write_text(flavour.options(store.url)["service_account_key"])
                environment |= {"GOOGLE_SERVICE_ACCOUNT": str(account)}
        for name, value in environment.items():
            patch.setenv(name, value)
        yield Bucket(store, folder / "cache", environment)
