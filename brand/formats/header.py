"""The schema and other facts about a data set in every chunk and the manifest (docs/reference/format.md, section 2.2).

A schema is an ordered list of (name, codec). `Schema.parse` checks the schema of a user or a file; the rest of Brand
may then rely on it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import zstandard

from brand.errors import LayoutError, OversizedError, SchemaError, VersionError
from brand.formats.constants import (
    MAX_CHUNK_SAMPLES,
    MAX_CHUNKS,
    MAX_FIELDS,
    MAX_HEADER,
    MAX_HEADER_UNPACKED,
    MAX_SAMPLES,
    VERSION_MAJOR,
    VERSION_MINOR,
    VERSION_OF_FACTS,
    VERSION_OF_LISTS,
)

FIXED: Final = {"int": "q", "float": "d"}
"""Codecs of fixed size (8 bytes), with their `struct` letter."""

ELEMENTS: Final = {f"list[{codec}]": codec for codec in ("image", "audio", "str", "ndarray", "int", "float")}
"""Codec of a list -> codec of its elements."""

VARIABLE: Final = ("str", "bytes", "json", "ndarray", "image", "audio", *ELEMENTS)
CODECS: Final = (*FIXED, *VARIABLE)
DECODE_MODES: Final = ("RGB", "L", "RGBA", "unchanged")
"""Forms of decoded images."""

NO_LABEL: Final = -1
"""The label of a sample that has none, as on the Hub."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


def is_field_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


@dataclass(frozen=True)
class Schema:
    """The fields of a data set, in storage order."""

    fields: tuple[tuple[str, str], ...]
    """(name, codec) of each field."""

    @classmethod
    def parse(cls, fields: Mapping[str, str] | Iterable[tuple[str, str]]) -> Schema:
        """Check names and codecs. Raises `SchemaError` that names the wrong one and lists the allowed ones."""
        items = tuple(fields.items()) if isinstance(fields, Mapping) else tuple((n, c) for n, c in fields)
        if not 1 <= len(items) <= MAX_FIELDS:
            raise SchemaError(f"a schema has 1 to {MAX_FIELDS} fields, this one has {len(items)}")
        seen: set[str] = set()
        for name, codec in items:
            if not isinstance(name, str) or not is_field_name(name):
                raise SchemaError(f"field name {name!r}: use letters, digits and '_', at most 63, not a digit first")
            if name in seen:
                raise SchemaError(f"field {name!r} occurs twice in the schema")
            if name == "index":
                raise SchemaError("field name 'index' is reserved: every sample has its index automatically")
            if codec not in CODECS:
                raise SchemaError(f"field {name!r}: unknown codec {codec!r}; there are {', '.join(CODECS)}")
            if name == "key" and codec != "str":
                raise SchemaError(f"field 'key' names a sample and must be 'str', not {codec!r}")
            seen.add(name)
        return cls(items)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.fields)

    @cached_property
    def fixed(self) -> tuple[tuple[str, str], ...]:
        """(name, codec) of the fields of fixed size."""
        return tuple(f for f in self.fields if f[1] in FIXED)

    @cached_property
    def variable(self) -> tuple[tuple[str, str], ...]:
        """(name, codec) of the fields of variable size."""
        return tuple(f for f in self.fields if f[1] not in FIXED)

    @cached_property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """(name, codec of the values) of the columns: the fixed fields, and of each list its number of elements."""
        return (*self.fixed, *((name, "int") for name, codec in self.variable if codec in ELEMENTS))

    def codec(self, name: str) -> str:
        """Return the codec of a field. Raises `SchemaError` for an unknown name."""
        for field_name, codec in self.fields:
            if field_name == name:
                return codec
        raise SchemaError(f"no field {name!r}; this data set has {', '.join(self.names)}")


@dataclass(frozen=True)
class DecodeDefault:
    """How a reader decodes the images of a field unless its user says otherwise."""

    mode: str = "RGB"
    """One of `DECODE_MODES`."""
    upright: bool = False
    """Whether images are turned as EXIF says."""

    @property
    def words(self) -> tuple[str, ...]:
        """The words in brackets behind the codec; none if nothing differs from the usual."""
        return (*((self.mode,) if self.mode != "RGB" else ()), *(("upright",) if self.upright else ()))

    def codec(self, codec: str) -> str:
        """Return the codec as it is stored: `image[upright]`."""
        return f"{codec}[{','.join(self.words)}]" if self.words else codec


def split_codec(text: str) -> tuple[str, DecodeDefault | None]:
    """Return the codec, and the decode default, of a stored codec; None if it has none."""
    codec, bracket, rest = text.rpartition("[")
    words = rest.removesuffix("]").split(",")
    mode = words[0] if words[0] in DECODE_MODES else "RGB"
    default = DecodeDefault(mode, "upright" in words)
    return (codec, default) if bracket and default.words and default.codec(codec) == text else (text, None)


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
    decode: Mapping[str, DecodeDefault] = field(default_factory=dict)
    """Field -> how its images are decoded; fields that are decoded as usual are left out."""
    field_classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the values of other fields than an `int` field `label`, by field; of numbers in JSON by their path."""

    @property
    def chunks(self) -> int:
        return -(-self.samples // self.chunk_size)

    @property
    def minor(self) -> int:
        """Minor version of the chunks and the manifest: the lowest one that has the contents of the header."""
        facts = VERSION_OF_FACTS if self.decode or self.field_classes else VERSION_MINOR
        lists = VERSION_OF_LISTS if any(codec in ELEMENTS for _, codec in self.schema.fields) else VERSION_MINOR
        return max(facts, lists)

    def chunk_samples(self, number: int) -> int:
        return min(self.chunk_size, self.samples - number * self.chunk_size)

    def _may_have_names(self, place: str) -> bool:
        """Whether a key of `field_classes` is a field that is no number `label`, or a path inside a `json` field."""
        field, dot, _ = place.partition(".")
        codec = dict(self.schema.fields).get(field)
        return codec == "json" if dot else codec is not None and (field, codec) != ("label", "int")

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that is written."""
        decode = {name: default.codec for name, default in self.decode.items()}
        fields = [(name, decode[name](codec) if name in decode else codec) for name, codec in self.schema.fields]
        left = (
            {"decode"} if self.field_classes else {"decode", "field_classes"}
        )  # without them, the bytes are as before
        return {name: value for name, value in asdict(self).items() if name not in left} | {"schema": fields}

    @classmethod
    def from_json(cls, value: Any, path: str | Path) -> Header:
        """Check a header object read from `path`, and return the header.

        Raises `LayoutError`, `OversizedError`, and `VersionError` for a codec of a newer version.
        """
        try:
            fields = [(str(name), *split_codec(codec)) for name, codec in value["schema"]]
            _check_codecs([codec for _, codec, _ in fields], path)
            classes = value["classes"]
            header = cls(
                samples=natural(value["samples"], "samples", positive=True),
                chunk_size=natural(value["chunk_size"], "chunk_size", positive=True),
                schema=Schema.parse([(name, codec) for name, codec, _ in fields]),
                classes=None if classes is None else tuple(map(str, classes)),
                compression=str(value["compression"]),
                seed=int(value["seed"]),
                source={str(k): str(v) for k, v in value["source"].items()},
                decode={name: default for name, _, default in fields if default is not None},
                field_classes={
                    str(name): tuple(map(str, names)) for name, names in value.get("field_classes", {}).items()
                },
            )
            wrong = [name for name in header.decode if "image" not in header.schema.codec(name)]
            if wrong:
                raise ValueError(f"field {wrong[0]!r} has no images")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, SchemaError) as error:
            raise LayoutError(f"the header is malformed: {error!r}", path=path) from error
        if header.compression not in ("none", "zstd"):
            raise LayoutError("the header is malformed", path=path, expected="none or zstd", found=header.compression)
        if not all(header._may_have_names(name) for name in header.field_classes):
            raise LayoutError("the header names classes of a field that is not in the schema", path=path)
        file_field = header.source.get("file_field")
        if file_field is not None and (file_field, file_field) not in header.schema.fields:
            raise LayoutError(f"the header's file field {file_field!r} is not an image or audio field", path=path)
        if header.samples > MAX_SAMPLES or header.chunk_size > MAX_CHUNK_SAMPLES or header.chunks > MAX_CHUNKS:
            raise OversizedError("the header exceeds a limit of the format", path=path)
        return header


def _check_codecs(codecs: Iterable[str], path: str | Path) -> None:
    """Raise `VersionError` for a codec that this library does not know: a newer minor version may have added it."""
    unknown = next((codec for codec in codecs if codec not in CODECS), None)
    if unknown is not None:
        what, hint = "a field has a codec that is not known", "Install the newest brand-data to read it"
        raise VersionError(what, path=path, expected=f"one of {', '.join(CODECS)}", found=unknown, hint=hint)


def check_major(found: int, path: str | Path, chunk: int | None = None) -> None:
    """Raise `VersionError` if a file has another major version of the format than this library reads."""
    if found != VERSION_MAJOR:
        hint = "Install the newest brand-data to read it"
        raise VersionError("format version", path=path, chunk=chunk, expected=VERSION_MAJOR, found=found, hint=hint)


def canonical_json(value: Any) -> bytes:
    """Return JSON in the form that Brand checksums: keys sorted, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def pack_header(header: Header) -> bytes:
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


def natural(number: Any, name: str, *, positive: bool = False) -> int:
    """Return `number` if it is a whole number from 0 or 1 on. Raises ValueError, also for booleans and floats."""
    if not isinstance(number, int) or isinstance(number, bool) or number < positive:
        raise ValueError(f"{name} is {number!r}, not a {'positive ' if positive else ''}whole number")
    return number
