"""A URL names a store and a folder in it. Pure.

A URL is printed, logged and passed to other processes, so it must not hold a secret: a user name, a password or a query
is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from brand.errors import UsageError
from brand.printable import printable

_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_LONGEST: Final = 4096
_HUB_PARTS: Final = 2
"""Parts of a path on the Hub that name a repository: owner and name."""
_ENVIRONMENT: Final = (
    "credentials are read from the environment (docs/guides/object-stores.md), so that no log shows them"
)


@dataclass(frozen=True, slots=True)
class Url:
    """A folder of a store, without a slash at its end. `str()` gives the URL."""

    scheme: str
    """In small letters: `s3`, `gs`, `az`, `http`, `https`, `hf`, or a scheme of fsspec."""
    host: str
    """The bucket, the container, or the host with its port."""
    path: str
    """The folder below it; empty for the whole bucket or host."""

    def __str__(self) -> str:
        return "/".join(part for part in (f"{self.scheme}://{self.host}", self.path) if part)

    def key(self, name: str) -> str:
        return f"{self.path}/{name}" if self.path else name

    def child(self, name: str) -> str:
        """Return the URL of the object `name` of this folder, for messages."""
        return f"{self}/{name}"

    def split(self) -> tuple[str, str]:
        """Return the URL of the whole store, and the path below it. A repository of the Hub is a store of its own."""
        parts = self.path.split("/")
        count = _HUB_PARTS if self.scheme == "hf" else 0
        return "/".join([self.root, *parts[:count]]).rstrip("/"), "/".join(parts[count:])

    @property
    def root(self) -> str:
        """The URL of the whole store: one bucket, one host."""
        return f"{self.scheme}://{self.host}"


def is_url(text: object) -> bool:
    """Return whether a text is a URL; otherwise it is a path."""
    return isinstance(text, str) and _SCHEME.match(text) is not None


def parse_url(text: str) -> Url:
    """Return the folder that a URL names. Raises `UsageError`."""
    shown = printable(re.split("[?#]", text, maxsplit=1)[0])
    if len(text) > _LONGEST:
        raise UsageError(f"a URL of {len(text):,} characters; {_LONGEST:,} are allowed")
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError as error:
        raise UsageError(f"{shown} is not a URL: {error}") from None
    if "@" in parts.netloc:
        raise UsageError(
            f"{parts.scheme}://...@{parts.hostname}: a URL must not hold a user or password; {_ENVIRONMENT}"
        )
    if parts.query or parts.fragment:
        raise UsageError(f"{shown}: a URL must not hold a query (`?...`) or a fragment (`#...`); {_ENVIRONMENT}")
    if not parts.netloc and parts.scheme != "file":
        raise UsageError(f"{shown} names no bucket or host: write {parts.scheme}://bucket/folder")
    path = parts.path.strip("/")
    if any(part in ("", ".", "..") for part in unquote(path).split("/")) and path:
        raise UsageError(f"{shown}: the components of a path must not be empty, `.` or `..`")
    return Url(parts.scheme.lower(), parts.netloc, path)
