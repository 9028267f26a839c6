"""One sample <-> its record: the bytes before compression (docs/reference/format.md, section 3).

    [8 bytes per fixed field][u32 length per variable field][payloads of the variable fields]

Encoding works on a run of samples, column by column, and joins once for all. `Records` passes many records on without
a Python object for each.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain, repeat
from typing import Any, Final, TypeVar, overload

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.errors import SchemaError
from brand.formats.constants import MAX_SAMPLE
from brand.formats.header import ELEMENTS, FIXED, Schema
from brand.formats.values import (
    DECODERS,
    LARGE,
    Buffer,
    as_float,
    decode_str,
    encode_column,
    instead,
    lengths,
    sizes_in,
)
from brand.native import CORE, XXH3
from brand.printable import printable

SMALL: Final = 4096
"""Pieces below this mean size are first copied together into bytes: slicing bytes is faster than slicing a view."""

COUNT_BYTES: Final = 4
"""Bytes of the number of elements at the front of a list."""

_Piece = TypeVar("_Piece", str, Buffer)


@dataclass(frozen=True, slots=True, eq=False)
class Records(Sequence[bytes]):
    """Records at any offsets of one memory. As a sequence it copies each record to bytes of its own."""

    memory: NDArray[np.uint8]
    starts: NDArray[np.int64]
    """Offset of each record in `memory`."""
    sizes: NDArray[np.int64]

    @classmethod
    def of(cls, pieces: Sequence[Buffer]) -> Records:
        """Return records of these bytes, which are copied together."""
        return cls.side_by_side(b"".join(pieces), lengths(pieces))

    @classmethod
    def side_by_side(cls, memory: Buffer, sizes: NDArray[np.int64]) -> Records:
        """Return records of these sizes, which fill the memory."""
        return cls(np.frombuffer(memory, np.uint8), np.cumsum(sizes) - sizes, sizes)

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, number: int) -> bytes: ...

    @overload
    def __getitem__(self, number: slice | NDArray[np.intp]) -> Records: ...

    def __getitem__(self, number: int | slice | NDArray[np.intp]) -> bytes | Records:
        if isinstance(number, slice | np.ndarray):
            return Records(self.memory, self.starts[number], self.sizes[number])
        return bytes(self.view(number))

    def __iter__(self) -> Iterator[bytes]:
        return map(bytes, self.pieces())

    def view(self, number: int) -> memoryview:
        """Return one record, without a copy."""
        start = int(self.starts[number])
        return self.memory.data[start : start + int(self.sizes[number])]

    def pieces(self) -> list[Buffer]:
        """Return the bytes of each record, without a copy if they are large."""
        data: Any = self.memory.data
        starts, sizes = self.starts, self.sizes
        if len(sizes) and int(sizes.mean()) < SMALL:
            if CORE is not None:
                pieces: list[Buffer] = CORE.pieces(
                    self.memory, np.ascontiguousarray(starts), np.ascontiguousarray(sizes)
                )
                return pieces
            first = int(starts.min())
            data, starts = self.memory[first : int((starts + sizes).max())].tobytes(), starts - first
        return [data[start:end] for start, end in zip(starts.tolist(), (starts + sizes).tolist(), strict=True)]

    def joined(self) -> Buffer:
        """Return the bytes of all records, one after the other: a copy."""
        if CORE is None:
            return b"".join(self.pieces())
        made = np.empty(int(self.sizes.sum()), np.uint8)
        CORE.gather(self.memory, np.ascontiguousarray(self.starts), np.ascontiguousarray(self.sizes), made)
        return made.data

    def checksums(self) -> NDArray[np.uint64]:
        if CORE is None or not XXH3:
            return np.fromiter(map(xxhash.xxh3_64_intdigest, self.pieces()), np.uint64, len(self))
        made = np.empty(len(self), np.uint64)
        starts, sizes = np.ascontiguousarray(self.starts), np.ascontiguousarray(self.sizes)
        CORE.digests(XXH3[0], self.memory, starts, sizes, made)
        return made


def together(pieces: Sequence[Buffer]) -> Buffer:
    """Return the bytes of all pieces, one after the other, in fresh, writable memory.

    Numpy asks for large memory pages, which are filled in a third of the time. If the pieces are small, that is not
    worth a Python call for each.
    """
    sizes = lengths(pieces)
    total = int(sizes.sum())
    if total <= LARGE * len(sizes):
        return bytearray().join(pieces)
    memory = np.empty(total, np.uint8)
    for piece, end, size in zip(pieces, np.cumsum(sizes).tolist(), sizes.tolist(), strict=True):
        memory.data[end - size : end] = piece
    return memory.data


def windows(memory: NDArray[np.uint8], size: int) -> NDArray[np.void]:
    """Return `size` bytes from each of these offsets of a memory on, without a copy."""
    return np.ndarray((max(0, len(memory) - size + 1),), f"V{size}", memory, strides=(1,))


@lru_cache(maxsize=64)
def head_struct(schema: Schema) -> struct.Struct:
    """Return the layout of a record's head: fixed fields, then the lengths of the variable ones."""
    return struct.Struct("<" + "".join(FIXED[c] for _, c in schema.fixed) + "I" * len(schema.variable))


class Numbered(Sequence[str]):
    """Names for samples that have only numbers, for messages: `sample 12`. Each is made on demand.

    `before` returns the number of samples before them, and is called only when a name is asked for.
    """

    def __init__(self, numbers: Sequence[int], word: str = "sample", before: Callable[[], int] | None = None) -> None:
        self._numbers, self._word, self._before = numbers, word, before

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, position: int) -> str: ...

    @overload
    def __getitem__(self, position: slice) -> Numbered: ...

    def __getitem__(self, position: int | slice) -> str | Numbered:
        if isinstance(position, slice):
            return Numbered(self._numbers[position], self._word, self._before)
        before = 0 if self._before is None else self._before()
        return f"{self._word} {before + self._numbers[position]}"


def encode_records(schema: Schema, samples: Sequence[Mapping[str, Any]], indices: Sequence[int]) -> Records:
    """Return the records of the samples with these indices. Raises `SchemaError` that names sample and field."""
    called = Numbered(indices)
    return encode_columns(schema, {name: _column(name, samples, called) for name in schema.names}, called)


def encode_columns(schema: Schema, columns: Mapping[str, Sequence[Any]], called: Sequence[str]) -> Records:
    """Return the records of samples whose values are in columns, one for each field.

    Raises `SchemaError` that names the field, and the sample at fault by its entry in `called`.
    """
    count = len(called)
    fixed = [_fixed_column(n, c, columns[n], called) for n, c in schema.fixed]
    variable = [columns[n] for n, _ in schema.variable]
    head, made = head_struct(schema).size, None
    if variable and all(codec == "str" for _, codec in schema.variable):
        made = _texts_together(variable, head)
    if made is None:
        payloads = [encode_column(n, c, v, called) for (n, c), v in zip(schema.variable, variable, strict=True)]
        columns_of_pieces = [pieces for payload in payloads for pieces in payload]
        made = (
            together(_side_by_side(bytes(head), columns_of_pieces, count)),
            [sum(map(lengths, payload), np.zeros(count, np.int64)) for payload in payloads],
        )
    memory, sizes_of = made
    sizes = head + sum(sizes_of, np.zeros(count, np.int64))
    if count and int(sizes.max()) > MAX_SAMPLE:
        position = int(sizes.argmax())
        what = f"{int(sizes[position]):,} bytes; the limit is {MAX_SAMPLE:,}"
        raise SchemaError(f"{called[position]} has {what}")
    records = Records.side_by_side(memory, sizes)
    windows(records.memory, head)[records.starts] = _heads(schema, fixed, sizes_of, count).view(f"V{head}")
    return records


def _side_by_side(head: _Piece, columns: Sequence[Sequence[_Piece]], count: int) -> list[_Piece]:
    """Return `head` and the fields of each sample, to be joined once: a join for each sample takes 3x the time."""
    width = 1 + len(columns)
    parts = [head] * (width * count)
    for position, column in enumerate(columns):
        parts[1 + position :: width] = column
    return parts


def _texts_together(columns: Sequence[Sequence[Any]], head: int) -> tuple[Buffer, list[NDArray[np.int64]]] | None:
    """Return records of `str` fields, with zeros for the heads, and the sizes of each field. None if any is not text.

    One call encodes all values. The sizes in bytes follow from the positions at which characters begin.
    """
    try:
        text = "".join(_side_by_side("\0" * head, columns, len(columns[0])))
        memory = bytearray(text.encode())
    except (TypeError, UnicodeEncodeError):
        return None
    sizes_of = list(map(lengths, columns))
    if len(memory) == len(text):
        return memory, sizes_of
    ends = np.cumsum(np.stack([np.full(len(columns[0]), head), *sizes_of], axis=1))
    begins = np.flatnonzero((np.frombuffer(memory, np.uint8) & 0xC0) != 0x80)
    sizes = np.diff(np.append(begins, len(memory))[ends], prepend=0).reshape(-1, 1 + len(columns))
    return memory, list(sizes.T[1:])


def _heads(schema: Schema, fixed: Sequence[Any], sizes_of: Sequence[NDArray[np.int64]], count: int) -> NDArray[np.void]:
    heads = np.empty(count, _head_dtype(schema))
    for (name, _), column in zip(schema.fixed, fixed, strict=True):
        heads[name] = column
    for (name, _), column in zip(schema.variable, sizes_of, strict=True):
        heads[f"length of {name}"] = column
    return heads


def record_parts(schema: Schema, fixed: Sequence[int | float], payloads: Sequence[Buffer]) -> tuple[Buffer, ...]:
    """Return the record of one sample in pieces, given its fixed fields and finished payloads in the schema's order."""
    return head_struct(schema).pack(*fixed, *map(len, payloads)), *payloads


def split_record(schema: Schema, record: bytes) -> tuple[list[int | float], list[bytes]]:
    """Return the fixed fields and the payloads of a record, in the schema's order: the reverse of `record_parts`."""
    numbers = head_struct(schema).unpack_from(record)
    payloads, start = [], head_struct(schema).size
    for length in numbers[len(schema.fixed) :]:
        payloads.append(record[start : start + length])
        start += length
    return list(numbers[: len(schema.fixed)]), payloads


class RecordDecoder:
    """Record -> values of its fields, images and audio as bytes.

    One decoder serves one schema and one choice of fields (`names`; None: all). With `views`, `columns` gives images
    and audio without a copy: as views of the records' memory (uint8 arrays).
    """

    def __init__(self, schema: Schema, names: Sequence[str] | None = None, *, views: bool = False) -> None:
        self.schema, self.names = schema, schema.names if names is None else tuple(names)
        self._views = {name for name, codec in schema.variable if views and codec in ("image", "audio")}
        self._head = head_struct(schema)
        self._fixed = tuple(name for name, _ in schema.fixed)
        self._variable = tuple(
            (name, DECODERS[codec] if name in self.names else None) for name, codec in schema.variable
        )
        made = (*self._fixed, *(name for name, decode in self._variable if decode is not None))
        self._in_order = made == self.names

    def __reduce__(self) -> tuple[object, ...]:
        return partial(RecordDecoder, views=bool(self._views)), (self.schema, self.names)

    def __call__(self, record: Buffer) -> dict[str, Any]:
        """Return values by name, in the requested order. Raises ValueError if the bytes do not fit the schema."""
        try:
            numbers = self._head.unpack_from(record)
        except struct.error as error:
            raise ValueError(
                f"a record of {len(record)} bytes is too short for its head of {self._head.size}"
            ) from error
        values: dict[str, Any] = dict(zip(self._fixed, numbers, strict=False))
        start = self._head.size
        for (name, decode), length in zip(self._variable, numbers[len(self._fixed) :], strict=True):
            end = start + length
            if decode is not None:
                values[name] = decode(record[start:end])
            start = end
        if start != len(record):
            raise ValueError(f"the fields end at byte {start} of a record of {len(record)}")
        return values if self._in_order else {name: values[name] for name in self.names}

    def columns(self, records: Records) -> list[NDArray[Any] | list[Any]]:
        """Decode records: one column for each field, in the requested order.

        `int` and `float` fields are arrays, other fields are lists. Raises ValueError as for one record, but the
        message does not name the record at fault.
        """
        memory, starts, sizes, size = records.memory, records.starts, records.sizes, self._head.size
        if len(sizes) and int(sizes.min()) < size:
            raise ValueError(f"a record of {int(sizes.min())} bytes is too short for its head of {size}")
        layout = _head_dtype(self.schema)
        heads = windows(memory, size)[starts].view(layout) if size and len(starts) else np.zeros(len(starts), layout)
        made: dict[str, Any] = {name: heads[name].copy() for name in self._fixed if name in self.names}
        begin = starts + size
        for name, decode in self._variable:
            end = begin + heads[f"length of {name}"]
            if decode is not None:
                if name in self._views:
                    made[name] = [memory[low:high] for low, high in zip(begin.tolist(), end.tolist(), strict=True)]
                else:
                    made[name] = _decoded(decode, Records(memory, begin, end - begin))
            begin = end
        if not np.array_equal(begin, starts + sizes):
            raise ValueError("the fields of a record do not end where it ends")
        return [made[name] for name in self.names]


def _decoded(decode: Callable[[Buffer], Any], payloads: Records) -> list[Any]:
    """Return `decode` of each payload, if possible without a Python call for each."""
    if decode is decode_str and CORE is not None:
        texts: list[str] = CORE.texts(payloads.memory, payloads.starts, payloads.sizes)
        return texts
    pieces = payloads.pieces()
    if decode is decode_str:
        return list(map(str, pieces, repeat("utf-8")))
    if decode is bytes and pieces and isinstance(pieces[0], bytes):
        return pieces
    return list(map(decode, pieces))


def payloads(schema: Schema, records: Records, name: str) -> Records:
    """Return the payloads of one variable field, without a copy. Raises ValueError if a record is too short for it."""
    layout = _head_dtype(schema)
    if len(records) and int(records.sizes.min()) < layout.itemsize:
        raise ValueError(f"a record of {int(records.sizes.min())} bytes is too short for its head of {layout.itemsize}")
    heads = windows(records.memory, layout.itemsize)[records.starts].view(layout)
    begin = records.starts + layout.itemsize
    for other, _ in schema.variable:
        size = heads[f"length of {other}"].astype(np.int64)
        if other == name:
            break
        begin = begin + size
    if (begin + size > records.starts + records.sizes).any():
        raise ValueError(f"field {name!r} does not end within its record")
    return Records(records.memory, begin, size)


def elements(lists: Records) -> tuple[Records, NDArray[np.intp]]:
    """Return the elements of payloads of lists, without a copy, and the number of the list that each is in.

    Lists of numbers have no such elements. Raises ValueError if a payload is no list.
    """
    runs = [sizes_in(piece) for piece in lists.pieces()]
    owner = np.repeat(np.arange(len(runs)), list(map(len, runs)))
    sizes = np.fromiter(chain.from_iterable(runs), np.int64, len(owner))
    heads = lists.starts + 4 * (1 + np.array(list(map(len, runs)), np.int64))
    before = np.cumsum(sizes) - sizes
    firsts = np.flatnonzero(np.diff(owner, prepend=-1))  # the first element of each list that has one
    starts = heads[owner] + before - np.repeat(before[firsts], np.diff(np.append(firsts, len(owner))))
    return Records(lists.memory, starts, sizes), owner


def fixed_columns(schema: Schema, records: Records) -> NDArray[np.void]:
    """Return the fixed fields of many records as one structured array (8 bytes a field). No other field is decoded."""
    dtype = fixed_dtype(schema)
    if not schema.fixed:
        return np.empty(len(records), dtype)
    return windows(records.memory, dtype.itemsize)[records.starts].view(dtype)


def fixed_dtype(schema: Schema) -> np.dtype[np.void]:
    """Return the structured dtype of the fixed fields at the front of a record."""
    return _dtype_of(schema.fixed)


def stored_columns(schema: Schema, records: Records) -> NDArray[np.void]:
    """Return the columns of many records: the fixed fields, and of each list its number of elements.

    Raises ValueError if a record or a list is too short.
    """
    fixed = fixed_columns(schema, records)
    if schema.columns == schema.fixed:
        return fixed
    found = np.empty(len(records), column_dtype(schema))
    for name, _ in schema.fixed:
        found[name] = fixed[name]
    for name, _ in schema.columns[len(schema.fixed) :]:
        found[name] = _counts_of(ELEMENTS[schema.codec(name)], payloads(schema, records, name))
    return found


def _counts_of(codec: str, lists: Records) -> NDArray[np.int64]:
    """Return the number of elements of each payload of a list."""
    if codec in FIXED:
        return lists.sizes // 8
    if len(lists) and int(lists.sizes.min()) < COUNT_BYTES:
        raise ValueError(f"a list of {int(lists.sizes.min())} bytes is too short for its number of elements")
    return windows(lists.memory, COUNT_BYTES)[lists.starts].view("<u4").astype(np.int64)


def column_dtype(schema: Schema) -> np.dtype[np.void]:
    """Return the structured dtype of the columns of a record."""
    return _dtype_of(schema.columns)


def _dtype_of(columns: Iterable[tuple[str, str]]) -> np.dtype[np.void]:
    return np.dtype([(name, "<i8" if codec == "int" else "<f8") for name, codec in columns])


def _head_dtype(schema: Schema) -> np.dtype[np.void]:
    return np.dtype([*fixed_dtype(schema).descr, *((f"length of {n}", "<u4") for n, _ in schema.variable)])


def _column(name: str, samples: Sequence[Mapping[str, Any]], called: Sequence[str]) -> list[Any]:
    try:
        return list(map(operator.itemgetter(name), samples))
    except (KeyError, TypeError, IndexError):
        for position, sample in enumerate(samples):
            if not isinstance(sample, Mapping):
                kind, fields = type(sample).__name__, "{'image': a, 'label': b}"
                how = f": give ({fields} for a, b in samples)" if isinstance(sample, tuple) else ""
                raise SchemaError(f"{called[position]} is a {kind}; each sample must be a dict{how}") from None
            if name not in sample:
                there = printable(", ".join(map(str, sample))) or "none"
                raise SchemaError(f"{called[position]} has no field {name!r}; its fields are: {there}") from None
        raise


def _fixed_column(name: str, codec: str, values: Sequence[Any], called: Sequence[str]) -> NDArray[Any]:
    convert, dtype = (operator.index, np.int64) if codec == "int" else (as_float, np.float64)
    if isinstance(values, np.ndarray) and values.dtype == dtype:
        return values
    try:
        return np.fromiter(map(convert, values), dtype, len(values))
    except Exception:  # also RuntimeError, which PyTorch raises for a tensor of several numbers
        for position, value in enumerate(values):
            try:
                np.fromiter((convert(value),), dtype, 1)
            except OverflowError:
                raise SchemaError(f"{called[position]}, field {name!r}: {value} does not fit 64 bits") from None
            except Exception:  # noqa: BLE001
                found = f"{type(value).__name__} ({value!r:.40}){instead(codec, value)}"
                raise SchemaError(f"{called[position]}, field {name!r}: expected {codec}, found {found}") from None
        raise
