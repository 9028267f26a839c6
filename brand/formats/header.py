"""The header: facts about the data set as a whole, in every chunk and in the manifest (docs/format.md, section 2.2)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from brand.errors import LayoutError, OversizedError, SchemaError
from brand.formats.constants import MAX_CHUNK_SAMPLES, MAX_CHUNKS, MAX_HEADER, MAX_HEADER_UNPACKED, MAX_SAMPLES
from brand.formats.schema import Schema


@dataclass(frozen=True)
class Header:
    """Facts about the data set that do not change from chunk to chunk."""

    samples: int
    chunk_size: int
    """Samples in every chunk but the last, which may hold fewer."""
    schema: Schema
    classes: tuple[str, ...] | None
    """Names of the values of field `label`."""
    compression: str
    """`"none"`, or `"zstd"`: samples may be compressed."""
    seed: int
    source: Mapping[str, str]
    """`kind` of source, and the `file_field` that holds the source file's bytes, if there is one."""

    @property
    def chunks(self) -> int:
        return -(-self.samples // self.chunk_size)

    def chunk_samples(self, number: int) -> int:
        return min(self.chunk_size, self.samples - number * self.chunk_size)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that is written."""
        return {
            "samples": self.samples,
            "chunk_size": self.chunk_size,
            "schema": [list(f) for f in self.schema.fields],
            "classes": None if self.classes is None else list(self.classes),
            "compression": self.compression,
            "seed": self.seed,
            "source": dict(self.source),
        }

    @classmethod
    def from_json(cls, value: Any, path: str | Path) -> Header:
        """Check a header object read from `path`, and return the header. Raises `LayoutError`, `OversizedError`."""
        try:
            classes = value["classes"]
            header = cls(
                samples=_natural(value, "samples"),
                chunk_size=_natural(value, "chunk_size"),
                schema=Schema.parse([(str(n), str(c)) for n, c in value["schema"]]),
                classes=None if classes is None else tuple(map(str, classes)),
                compression=str(value["compression"]),
                seed=int(value["seed"]),
                source={str(k): str(v) for k, v in value["source"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, SchemaError) as error:
            raise LayoutError(f"the header is malformed: {error!r}", path=path) from error
        if header.compression not in ("none", "zstd"):
            raise LayoutError("the header is malformed", path=path, expected="none or zstd", found=header.compression)
        file_field = header.source.get("file_field")
        if file_field is not None and (file_field, file_field) not in header.schema.fields:
            raise LayoutError(f"the header's file field {file_field!r} is not an image or audio field", path=path)
        if header.samples > MAX_SAMPLES or header.chunk_size > MAX_CHUNK_SAMPLES or header.chunks > MAX_CHUNKS:
            raise OversizedError("the header exceeds a limit of the format", path=path)
        return header


def canonical_json(value: Any) -> bytes:
    """Return JSON in the form that Brand checksums: keys sorted, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def pack_header(header: Header) -> bytes:
    """Return the bytes of the header, as stored in a chunk file."""
    packed = zstandard.ZstdCompressor(level=19).compress(canonical_json(header.to_json()))
    if len(packed) > MAX_HEADER:
        raise SchemaError(
            f"class names and schema take {len(packed):,} bytes in each chunk; the limit is {MAX_HEADER:,}"
        )
    return packed


def unpack_header(packed: bytes, path: str | Path) -> Header:
    """Parse the bytes of `pack_header`. Raises `LayoutError`, `OversizedError`."""
    try:
        size = zstandard.frame_content_size(packed)
        if not 0 <= size <= MAX_HEADER_UNPACKED:
            raise OversizedError(
                "size of the unpacked header", path=path, expected=f"<= {MAX_HEADER_UNPACKED}", found=size
            )
        value = json.loads(zstandard.ZstdDecompressor().decompress(packed, allow_extra_data=False))
    except (zstandard.ZstdError, ValueError, RecursionError) as error:
        raise LayoutError(f"the header does not unpack: {error}", path=path) from error
    return Header.from_json(value, path)


def _natural(value: Mapping[str, Any], key: str) -> int:
    number = value[key]
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ValueError(f"{key} is {number!r}, not a positive whole number")
    return number
