"""Parse the name of a data set, the path of a folder or the URL of a data set in an object store; add options.

A `Path` would change a URL. Commands therefore receive `Path | str`, and a `str` is a URL.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from brand.errors import UsageError
from brand.formats.media import load_plugin
from brand.storage.io.location import place


class _Place(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    name = "path or URL"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:  # noqa: ARG002
        """Parse the argument for click. Raises `UsageError` for a URL without a name or with a secret in it."""
        return place(value) if isinstance(value, str) else value


class _Folder(_Place):
    """Parses a path, and refuses a URL. `cure` is the next step for the user, with the command and the URL in it."""

    name = "path"

    def __init__(self, cure: str) -> None:
        self._cure = cure

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Parse the argument, as `click.ParamType` requires. Raises `UsageError`."""
        found = super().convert(value, param, ctx)
        if isinstance(found, Path):
            return found
        command = "" if ctx is None else ctx.command_path.partition(" ")[2]
        raise UsageError(self._cure.format(command=command, url=found))


_F = TypeVar("_F", bound=Callable[..., Any])


def options(*added: Callable[[Any], Any]) -> Callable[[_F], _F]:
    """Return a decorator that adds these arguments and options; the help lists them in this order."""

    def decorated(command: _F) -> _F:
        for add in reversed(added):
            command = add(command)
        return command

    return decorated


def _load(context: click.Context, parameter: click.Parameter, modules: tuple[str, ...]) -> None:  # noqa: ARG001
    for module in modules:
        load_plugin(module)


PLUGIN: Final = click.option(
    "--plugin",
    metavar="MODULE",
    multiple=True,
    expose_value=False,
    callback=_load,
    help="Decode with a plug-in of Pillow, too: pillow_heif for HEIC, pillow_jxl for JPEG XL.",
)
DATA_SET: Final = _Place()
DATA_SET_IN_FOLDER: Final = _Folder(
    "`brand {command}` works on a folder: copy the data set to one first, `brand copy {url} FOLDER`"
)
"""For commands that write into the data set, or link to its files."""
FOLDER: Final = _Folder("{url}: `brand {command}` writes to a folder of this machine, not to a store")
CACHE_FOLDER: Final = _Folder("{url}: a cache is a folder on a local disk, not in a store")
COLLECTION: Final = _Folder(
    "{url}: a collection is a folder of a file system, not of a store. `brand {command}` takes the path of that folder"
)
