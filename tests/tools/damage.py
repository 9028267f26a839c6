"""What storage does to files: a bit flips, the end is missing, a sector lies elsewhere. Checksums stay as they were.

flip_bit, overwrite, truncate, extend    one file, as the caller says
any_damage                               any such damage to a whole data set, drawn with a seed (`Damage`)

`python -m tests.tools.integrity` finds out what reads, draws and `verify` make of thousands of damages.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SECTORS: Final = (64, 512, 4096)
"""Bytes that devices and file systems move as a whole; with 64, small files have several sectors, too."""


@dataclass(frozen=True)
class Damage:
    """What is done to the files of a folder."""

    kind: str
    """One of `KINDS`."""
    story: str
    """What happened, for people."""
    files: Mapping[str, bytes]
    """Path below the folder -> what the file holds afterwards, for the files that change."""

    def apply(self, folder: Path, *, in_place: bool = False) -> None:
        """Replace files of a folder by new ones. With `in_place`, change the old files, which may be open."""
        write_files(folder, self.files, in_place=in_place)


def read_files(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def write_files(folder: Path, files: Mapping[str, bytes], *, in_place: bool = False) -> None:
    """Give files of a folder other contents."""
    for name, data in files.items():
        path = folder / name
        if not in_place:
            path.unlink(missing_ok=True)
            path.write_bytes(data)
            continue
        with path.open("r+b") as file:
            file.truncate(len(data))
            file.write(data)


def any_damage(files: Mapping[str, bytes], rng: random.Random, kind: str | None = None) -> Damage:
    """One damage to `files` (path -> contents). `kind` is one of `KINDS`; None: any.

    The damage always changes what a file means, which white space between the tokens of a JSON document does not. Every
    file has the same chance, whatever its size. Pure.
    """
    while True:
        chosen = kind or rng.choice(KINDS)
        found = _MAKERS[chosen](files, rng)
        if found is not None and any(_differ(name, files[name], data) for name, data in found.files.items()):
            return found


def _differ(name: str, before: bytes, after: bytes) -> bool:
    if before == after:
        return False
    try:
        return not name.endswith(".json") or bool(json.loads(before) != json.loads(after))
    except (ValueError, RecursionError):
        return True


def _flip(files: Mapping[str, bytes], rng: random.Random) -> Damage | None:
    name = _any_file(files, rng)
    bit, data = rng.randrange(8 * len(files[name])), bytearray(files[name])
    data[bit // 8] ^= 1 << bit % 8
    return Damage("flip", f"bit {bit} of {name}", {name: bytes(data)})


def _truncate(files: Mapping[str, bytes], rng: random.Random) -> Damage | None:
    name = _any_file(files, rng)
    size = rng.randrange(len(files[name]))
    return Damage("truncate", f"{name} cut to {size} bytes", {name: files[name][:size]})


def _swap(files: Mapping[str, bytes], rng: random.Random) -> Damage | None:
    """Two files, or two sectors of one or of two files, change places."""
    one, other = _any_file(files, rng), _any_file(files, rng)
    if rng.random() < 0.25:
        return Damage("swap", f"{one} and {other}", {one: files[other], other: files[one]})
    if rng.random() < 0.5:
        other = one
    place = _two_sectors(files, one, other, rng)
    if place is None:
        return None
    at, to, size = place
    changed = {name: bytearray(files[name]) for name in (one, other)}
    changed[one][at : at + size] = files[other][to : to + size]
    changed[other][to : to + size] = files[one][at : at + size]
    story = f"{size} bytes at {at} of {one} and at {to} of {other}"
    return Damage("swap", story, {name: bytes(data) for name, data in changed.items()})


def _misdirect(files: Mapping[str, bytes], rng: random.Random) -> Damage | None:
    """A sector was written to a wrong place; its right place holds what was there before (often zeros)."""
    one = _any_file(files, rng)
    other = one if rng.random() < 0.5 else _any_file(files, rng)
    place = _two_sectors(files, one, other, rng)
    if place is None:
        return None
    at, to, size = place
    changed = {name: bytearray(files[name]) for name in (one, other)}
    if rng.random() < 0.5:
        changed[one][at : at + size] = bytes(size)
    changed[other][to : to + size] = files[one][at : at + size]
    story = f"{size} bytes at {at} of {one} lie at {to} of {other}"
    return Damage("misdirect", story, {name: bytes(data) for name, data in changed.items()})


def _any_file(files: Mapping[str, bytes], rng: random.Random) -> str:
    return rng.choice([name for name, data in files.items() if data])


def _two_sectors(files: Mapping[str, bytes], one: str, other: str, rng: random.Random) -> tuple[int, int, int] | None:
    """Where two different whole sectors begin, one in each file, and their size."""
    size = rng.choice(SECTORS)
    rooms = len(files[one]) // size, len(files[other]) // size
    if not min(rooms):
        return None
    at, to = rng.randrange(rooms[0]) * size, rng.randrange(rooms[1]) * size
    return None if (one, at) == (other, to) else (at, to, size)


_MAKERS: Final[dict[str, Callable[[Mapping[str, bytes], random.Random], Damage | None]]] = {
    "flip": _flip,
    "truncate": _truncate,
    "swap": _swap,
    "misdirect": _misdirect,
}
KINDS: Final = tuple(_MAKERS)
"""The kinds of damage that `any_damage` makes."""


def flip_bit(path: Path, bit: int) -> None:
    """Flip one bit of a file: bit `bit % 8` of byte `bit // 8`."""
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Put other bytes in the place of those at `offset`."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def truncate(path: Path, size: int) -> None:
    """Keep the first `size` bytes of a file; where it is shorter, it grows a hole of zeros."""
    os.truncate(path, size)


def extend(path: Path, data: bytes) -> None:
    """Append bytes to a file."""
    with path.open("ab") as file:
        file.write(data)
