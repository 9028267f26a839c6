"""A data set that lies in an object store, whichever way the store speaks, and in a folder: for tests of verbs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pytest

from tests.tools.objects import S3, Gcs, Http, Keys, ObjectStore

Speech = Literal["s3", "gs", "http"]
SPEECHES: Final[tuple[Speech, ...]] = ("s3", "gs", "http")
KEYS: Final = Keys("key", "secret")


@dataclass(frozen=True)
class Shop:
    """A bucket that is a folder."""

    store: ObjectStore
    bucket: Path
    speech: Speech

    def url(self, name: str = "set.brand") -> str:
        """The URL of a data set of the bucket."""
        home = (
            f"{self.store.url}/{self.bucket.name}" if self.speech == "http" else f"{self.speech}://{self.bucket.name}"
        )
        return f"{home}/{name}"

    def folder(self, name: str = "set.brand") -> Path:
        """Where its objects are files."""
        return self.bucket / name

    def asked(self, what: str = "") -> list[str]:
        """The operations so far on objects with `what` in their key."""
        return [request.operation for request in self.store.requests if what in request.key]


@contextmanager
def shop(speech: Speech, folder: Path, patch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """Open a shop below a folder, with its address and keys in the environment, and copies of indices in `folder`."""
    flavour = {"s3": S3(KEYS), "gs": Gcs(), "http": Http()}[speech]
    bucket = folder / "root" / "bucket"
    bucket.mkdir(parents=True)
    with ObjectStore(bucket.parent, flavour) as opened:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("AWS_ENDPOINT_URL", opened.url)
        patch.setenv("AWS_ACCESS_KEY_ID", KEYS.access)
        patch.setenv("AWS_SECRET_ACCESS_KEY", KEYS.secret)
        account = {"gcs_base_url": opened.url, "disable_oauth": True, "client_email": "", "private_key": ""}
        patch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps({**account, "private_key_id": ""}))
        yield Shop(opened, bucket, speech)
