"""Is a text file in UTF-8? If not, which encoding has it, and which command converts it?

All readers of text files (tables, JSON) ask here, so that each message names the cause.
"""

from __future__ import annotations

import shlex
from pathlib import PurePath
from typing import Final

from brand.errors import SourceError

BOM: Final = b"\xef\xbb\xbf"
"""The byte order mark with which UTF-8 files of Windows begin."""
_MARKS: Final = {
    b"\xff\xfe\0\0": "utf-32",
    b"\0\0\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
_PACKED: Final = {b"\x1f\x8b": "gz", b"\x28\xb5\x2f\xfd": "zst", b"BZh": "bz2", b"\xfd7zXZ": "xz", b"PK\x03\x04": "zip"}
_READERS: Final = {".gz": "zcat", ".zst": "zstdcat", ".bz2": "bzcat", ".xz": "xzcat"}


def check_encoding(file: str, name: str, head: bytes) -> None:
    """Check the first bytes of a text file, decompressed. `file` is its name without folders, `name` that in messages.

    Raises `SourceError` if they are not those of UTF-8 text.
    """
    wide = next((kind for mark, kind in _MARKS.items() if head.startswith(mark)), None) or _without_mark(head[:8])
    if wide is not None:
        raise SourceError(name, f"it is text in {wide.upper()}, and UTF-8 is read", hint=converted(file, wide))
    packed = next((kind for mark, kind in _PACKED.items() if head.startswith(mark)), None)
    if packed == "zip":
        raise SourceError(name, "it is a zip archive", hint=f"Unpack it first: unzip {shlex.quote(file)}")
    if packed is not None:
        what = f"its contents are compressed ({packed}), and its name does not say so"
        told = f"{file}.{packed}"
        raise SourceError(name, what, hint=f"Rename it: mv {shlex.quote(file)} {shlex.quote(told)}")


def _without_mark(head: bytes) -> str | None:
    """Return the encoding of a text without a mark: every other byte of English text in UTF-16 is 0."""
    if len(head) < 4 or head.count(0) < 2:
        return None
    nulls = [byte == 0 for byte in head[: len(head) // 4 * 4]]
    if nulls == [False, True] * (len(nulls) // 2):
        return "utf-16le"
    if nulls == [True, False] * (len(nulls) // 2):
        return "utf-16be"
    return None


def converted(file: str, encoding: str) -> str:
    """Return advice: the command that converts a file to UTF-8."""
    suffix = PurePath(file).suffix
    suffix = suffix if suffix in _READERS else ""
    target = shlex.quote(f"utf8-{file.removesuffix(suffix)}")
    source = shlex.quote(file)
    if suffix:
        return f"Convert it first: {_READERS[suffix]} {source} | iconv -f {encoding} -t utf-8 > {target}"
    return f"Convert it first: iconv -f {encoding} -t utf-8 {source} > {target}"


def not_utf8(file: str, line: bytes) -> tuple[str, str]:
    """Return in words why a line is not UTF-8, and advice."""
    try:
        line.decode()
    except UnicodeDecodeError as error:
        reason = f"it is not UTF-8: {error.reason} at byte {error.start + 1}"
    else:
        reason = "it is not UTF-8"
    return reason, f"If the file is in Latin-1, for example: {converted(file, 'latin1')}"
