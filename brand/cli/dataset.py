"""What may a user name as a data set? A folder by its path, or one in a store by its URL.

A `Path` would make something else of a URL. So verbs get `Path | str`, and a `str` is a URL.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from brand.errors import UsageError
from brand.storage.location import place


class _Place(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A path or a URL."""

    name = "path or URL"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:  # noqa: ARG002
        """See `click.ParamType`. Raises `UsageError` for a URL that names nothing, or that holds a secret."""
        return place(value) if isinstance(value, str) else value


class _Folder(_Place):
    """A path; a URL is refused. `cure` says what helps, with the verb and the URL in it."""

    name = "path"

    def __init__(self, cure: str) -> None:
        self._cure = cure

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """See `click.ParamType`. Raises `UsageError`."""
        found = super().convert(value, param, ctx)
        if isinstance(found, Path):
            return found
        raise UsageError(self._cure.format(verb="" if ctx is None else ctx.info_name, url=found))


DATA_SET: Final = _Place()
DATA_SET_IN_FOLDER: Final = _Folder(
    "`brand {verb}` works on a folder: copy the data set to one first, `brand copy {url} FOLDER`"
)
"""For verbs that write into the data set, or make links to its files."""
FOLDER: Final = _Folder("{url}: `brand {verb}` writes to a folder of this machine, not to a store")
