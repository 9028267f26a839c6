"""What a hostile writer does: any change, with the checksums made right again, so that only layout checks can tell.

take_apart -> Parts -> put_together     a chunk file with right sums, whatever its parts say
set_preamble, set_row                   one number of a front changed, the front signed again
edit_manifest                           brand.json changed and signed again
sign_index                              samples.npy, chunks.npy and the manifest made to agree with the chunks
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.formats.chunk import front_size, pack_front
from brand.formats.constants import (
    CHUNK_ROW,
    CHUNKS_NAME,
    MANIFEST_NAME,
    PREAMBLE_CHECKSUM_AT,
    PREAMBLE_SIZE,
    ROW,
    SAMPLES_NAME,
)
from brand.formats.header import canonical_json
from brand.formats.publish import file_digest

_PREAMBLE: Final = {
    "magic": ("8s", 0),
    "major": ("H", 8),
    "minor": ("H", 10),
    "header_size": ("I", 12),
    "dictionary_size": ("I", 16),
    "samples": ("I", 20),
    "number": ("Q", 24),
    "file_size": ("Q", 32),
    "data_set_id": ("16s", 40),
    "checksum": ("Q", 56),
}
"""Field of the preamble -> `struct` letter and offset."""


@dataclass
class Stored:
    """One sample of a chunk."""

    index: int
    raw_size: int
    data: bytes
    """The stored bytes."""


@dataclass
class Parts:
    """A chunk file taken apart."""

    number: int
    data_set_id: bytes
    header: bytes
    """The packed header."""
    dictionary: bytes
    samples: list[Stored]


def take_apart(path: Path) -> Parts:
    """The parts of a whole chunk file; checks nothing."""
    data = path.read_bytes()
    header_end = PREAMBLE_SIZE + preamble(path, "header_size")
    rows = table(path)
    samples = [
        Stored(index, raw_size, data[offset : offset + size]) for offset, size, raw_size, _, index in rows.tolist()
    ]
    dictionary = data[header_end : header_end + preamble(path, "dictionary_size")]
    identity = preamble(path, "data_set_id")
    return Parts(preamble(path, "number"), identity, data[PREAMBLE_SIZE:header_end], dictionary, samples)


def put_together(path: Path, parts: Parts) -> None:
    """Write a chunk file with sizes, offsets and checksums that fit its parts."""
    rows = np.zeros(len(parts.samples), ROW)
    offset = front_size(len(parts.header), len(parts.dictionary), len(rows))
    for slot, sample in enumerate(parts.samples):
        digest = xxhash.xxh3_64_intdigest(sample.data)
        rows[slot] = (offset, len(sample.data), sample.raw_size, digest, sample.index)
        offset += len(sample.data)
    front = pack_front(parts.header, parts.dictionary, rows, number=parts.number, data_set_id=parts.data_set_id)
    path.write_bytes(front + b"".join(sample.data for sample in parts.samples))


def preamble(path: Path, field: str) -> Any:
    """One field of a chunk's preamble, unchecked."""
    letter, offset = _PREAMBLE[field]
    return struct.unpack_from("<" + letter, path.read_bytes(), offset)[0]


def table(path: Path) -> NDArray[np.void]:
    """A chunk's table, unchecked."""
    start = PREAMBLE_SIZE + preamble(path, "header_size") + preamble(path, "dictionary_size")
    return np.frombuffer(path.read_bytes(), ROW, preamble(path, "samples"), start)


def set_preamble(path: Path, **fields: Any) -> None:
    """Change fields of a chunk's preamble, and sign as much of its front as the file holds again."""
    data = bytearray(path.read_bytes())
    for name, value in fields.items():
        letter, offset = _PREAMBLE[name]
        struct.pack_into("<" + letter, data, offset, value)
    path.write_bytes(data)
    if "checksum" not in fields:
        sign_front(path)


def set_row(path: Path, slot: int, **fields: int) -> None:
    """Change fields of one row of a chunk's table and sign its front again."""
    data, rows = bytearray(path.read_bytes()), table(path).copy()
    for name, value in fields.items():
        rows[name][slot] = value
    start = PREAMBLE_SIZE + preamble(path, "header_size") + preamble(path, "dictionary_size")
    data[start : start + rows.nbytes] = rows.tobytes()
    path.write_bytes(data)
    sign_front(path)


def sign_front(path: Path) -> None:
    """Make the checksum of a chunk's front right."""
    data = bytearray(path.read_bytes())
    header, dictionary, samples = struct.unpack_from("<III", data, _PREAMBLE["header_size"][1])
    covered = data[:PREAMBLE_CHECKSUM_AT] + data[PREAMBLE_SIZE : front_size(header, dictionary, samples)]
    struct.pack_into("<Q", data, PREAMBLE_CHECKSUM_AT, xxhash.xxh3_64_intdigest(bytes(covered)))
    path.write_bytes(data)


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], object], *, sign: bool = True) -> None:
    """Change the object in brand.json and, unless `sign` is False, make its checksum right."""
    path = folder / MANIFEST_NAME
    value = json.loads(path.read_bytes())
    change(value)
    if sign:
        value.pop("checksum", None)
        value["checksum"] = xxhash.xxh3_64_hexdigest(canonical_json(value))
    path.write_bytes(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n")


def sign_files(folder: Path, names: Iterable[str] = ()) -> None:
    """Make the manifest's checksums of index, columns and companions (or of `names` only) right."""

    def change(value: dict[str, Any]) -> None:
        for group in (value["files"], value["companions"]):
            group.update({name: list(file_digest(folder / name)) for name in group if not names or name in names})

    edit_manifest(folder, change)


def sign_index(folder: Path) -> None:
    """Make samples.npy, chunks.npy and the manifest's sums and checksums agree with the chunks; its header stays."""
    chunks = sorted((folder / "chunks").iterdir())
    rows = np.concatenate([table(path) for path in chunks])
    np.save(folder / SAMPLES_NAME, rows)
    facts = [(preamble(path, "file_size"), preamble(path, "checksum")) for path in chunks]
    np.save(folder / CHUNKS_NAME, np.array(facts, CHUNK_ROW))
    sums = {
        "stored_bytes": int(rows["size"].sum(dtype=np.uint64)),
        "raw_bytes": int(rows["raw_size"].sum(dtype=np.uint64)),
        "largest_sample": int(rows["raw_size"].max()),
    }
    edit_manifest(folder, lambda value: value.update(sums))
    sign_files(folder)
