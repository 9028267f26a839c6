"""The files of a tar archive in order: how is one read from its front, so that no damage passes for its end?

The library takes a missing end for an end, stops at the first archive where several lie behind each other, and skips
headers that it cannot read. Here each of these is an error, or is read on.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import Any, BinaryIO, Final, cast

from brand.errors import SourceError

_MEMBERS_KEPT: Final = 1024


class _Member(tarfile.TarInfo):
    """A header. What is wrong with one ends the reading, where the library would skip it."""

    @classmethod
    def fromtarfile(cls, tar: Any) -> Any:
        """Read the next header. Raises EOFError, besides what tells the library that there is none."""
        try:
            return super().fromtarfile(tar)
        except tarfile.HeaderError as error:
            kind = type(error).__name__
            if kind == "EOFHeaderError":  # a block of zeros; another archive may follow it
                tar.ended = True
            elif kind != "EmptyHeaderError":
                raise EOFError(f"a header in it is damaged: {error}") from None
            elif not getattr(tar, "ended", False):
                raise EOFError("it ends without the mark of its end: it is cut short") from None
            raise


def members(stream: BinaryIO, name: str) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the files, in order; also of archives that lie one behind the other.

    Raises `SourceError`.
    """
    try:
        with cast(Any, tarfile.open(fileobj=stream, mode="r|", tarinfo=_Member, ignore_zeros=True)) as tar:
            for member in tar:
                tar.ended = False
                if len(tar.members) > _MEMBERS_KEPT:
                    tar.members = []  # the library remembers all of them
                if member.isdir():
                    continue
                if not member.isreg():
                    raise SourceError(
                        name, f"{member.name!r} is a link or a special file, and only files can be samples"
                    )
                contents = tar.extractfile(member)
                data = contents.read() if contents is not None else b""
                if len(data) != member.size:
                    raise EOFError(f"it is cut short within {member.name!r}")
                yield member.name, data
    except EOFError as error:
        raise SourceError(name, str(error)) from error
    except tarfile.TarError as error:
        raise SourceError(name, f"it is cut short or damaged: {error}") from error
