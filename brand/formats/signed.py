"""A small JSON document with a version and a checksum: the frame that `brand.json`, `share.json` and the versions of a
collection have in common.

People can read it, and the checksum reveals an edit by hand. A reader refuses a newer major version before it reads
any other field.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xxhash

from brand.errors import ChecksumError, LayoutError, VersionError
from brand.formats.constants import VERSION_MAJOR, VERSION_MINOR
from brand.formats.header import canonical_json


def pack_signed(marker: str, facts: Mapping[str, Any], minor: int = VERSION_MINOR) -> bytes:
    """Return the document's bytes, indented for people. `marker` is its kind; the checksum is over the compact form."""
    value = {"format": marker, "version": [VERSION_MAJOR, minor], **facts}
    value["checksum"] = xxhash.xxh3_64_hexdigest(canonical_json(value))
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def parse_signed(data: bytes, path: str | Path, *, marker: str, name: str, hint: str) -> dict[str, Any]:
    """Return the document. Only its kind, version and checksum are checked.

    Messages call the document `name`, and advise with `hint`. Raises `LayoutError`, `VersionError`, `ChecksumError`.
    """
    try:
        value: dict[str, Any] = json.loads(data, parse_constant=_refuse)
        version = value["version"]
        if value["format"] != marker or type(version[0]) is not int:
            raise ValueError(f"not a {name} of Brand")
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise LayoutError(f"the {name} is not readable: {error}", path=path, hint=hint) from error
    if version[0] != VERSION_MAJOR:
        raise VersionError(
            "format version",
            path=path,
            expected=VERSION_MAJOR,
            found=version[0],
            hint="Install the newest brand-data to read it",
        )
    found = value.pop("checksum", None)
    try:
        expected = xxhash.xxh3_64_hexdigest(canonical_json(value))
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"the {name} is not readable: {error}", path=path, hint=hint) from error
    if found != expected:
        raise ChecksumError(f"checksum of the {name}", path=path, expected=expected, found=found, hint=hint)
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def identity(text: str) -> bytes:
    """Return the id of a data set from its 32 hexadecimal digits. Raises ValueError, TypeError."""
    found = bytes.fromhex(text)
    if len(found) != 16:
        raise ValueError(f"id {text!r} is not 32 hexadecimal digits")
    return found


def natural(number: Any, name: str) -> int:
    """Return `number` if it is a whole number from 0 on. Raises ValueError, also for booleans and floats."""
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(f"{name} is {number!r}, not a whole number")
    return number
