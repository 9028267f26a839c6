"""Token files, as language models are trained from: a source that is read in any order, through memory maps.

    PREFIX.bin with PREFIX.idx   Megatron: the index has the type, the sequences and the documents
    NAME.bin                     nanoGPT: nothing but tokens, so the user says their type
    NAME.bin with a head         llm.c, modded-nanogpt: 1,024 bytes that say type and number of tokens
    NAME.npy, NAME.npz           NumPy: one row of tokens, or a matrix with a document in each row

A sample is a document, or a block of a fixed number of tokens. `TokenFile.spans` says where the tokens of samples are.
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.chunker.importers.files import find_files
from brand.chunker.sources.source import Indices, Source
from brand.chunker.sources.splits import ALL
from brand.errors import BrandError, SourceError, UsageError, cause_of, counted
from brand.formats.header import Schema
from brand.formats.noticed import Noticed
from brand.formats.record import Records, encode_columns, head_struct
from brand.printable import printable

DTYPES: Final = ("uint8", "uint16", "uint32", "int32", "int64")
"""Types of tokens in files that do not say their type."""

_SUFFIXES: Final = (".bin", ".npy", ".npz")
_MEGATRON: Final = struct.Struct("<9sQBQQ")
_MEGATRON_MAGIC: Final = b"MMIDIDX\0\0"
_MEGATRON_DTYPES: Final = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_LLM_C_BYTES: Final = 1024
_LLM_C_MAGICS: Final = {20240520: "<u2", 20240801: "<u4"}
_AT_ONCE: Final = 1 << 22
"""Tokens that are searched for the end of documents in one step."""
_LOOKED_AT: Final = 1 << 16
"""Tokens that are inspected to find out whether the type is half as wide as that of the file."""
_ARRAY_HEAD: Final = 6
"""Bytes of the head of a stored array of one dimension."""

Spans = tuple[NDArray[np.int64], NDArray[np.int64]]
"""First token and number of tokens of some samples."""


@dataclass(frozen=True, slots=True)
class TokenOptions:
    """The options of a user for token files."""

    dtype: str | None = None
    """Type of the tokens in files that do not say it, one of `DTYPES`."""
    block: int | None = None
    """Tokens of each sample; None: a sample is a document."""
    stride: int | None = None
    """Tokens from the beginning of a block to that of the next one; None: `block`."""
    end_of_text: int | None = None
    """The token at the end of each document, in files that do not say where documents end."""
    vocabulary: int | None = None
    """Number of different tokens; None: do not check."""

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in DTYPES:
            raise UsageError(f"dtype {self.dtype!r}: give one of {', '.join(DTYPES)}")
        if self.stride is not None and self.block is None:
            raise UsageError("a stride is for blocks: give the tokens of a block, too")
        if self.block is not None and self.end_of_text is not None:
            raise UsageError("blocks do not end with documents: give the tokens of a block, or the end-of-text token")
        for name in ("block", "stride", "vocabulary"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} {value}: give a number of tokens, at least 1")


@dataclass(frozen=True, slots=True)
class TokenFile:
    """One file of tokens, and where its samples are."""

    path: Path
    name: str
    """The path below the source, for messages."""
    offset: int
    """Offset of the first token in the file, in bytes."""
    dtype: np.dtype[Any]
    tokens: int
    mark: str
    """Size and date of the file."""
    samples: int = 0
    spans: Callable[[Indices], Spans] | None = None
    """Returns the spans of samples of this file, by their number in the file."""

    def open(self) -> NDArray[Any]:
        """Return all tokens, mapped. Raises `SourceError`."""
        try:
            facts = self.path.stat()
            if f"{facts.st_size} {facts.st_mtime_ns}" != self.mark:
                raise SourceError(self.name, "the file changed while it was being converted")
            if not self.tokens:
                return np.empty(0, self.dtype)
            return np.memmap(self.path, self.dtype, "r", self.offset, (self.tokens,))
        except OSError as error:
            raise SourceError(self.name, f"cannot be read: {error.strerror}") from error


class TokenSource(Source):
    """The samples of token files. Picklable: each process maps the files itself."""

    def __init__(self, files: tuple[TokenFile, ...], options: TokenOptions, noticed: tuple[Noticed, ...]) -> None:
        self.files, self.noticed, self._options = files, noticed, options
        self.stretches = (sum(file.samples for file in files),)
        count = [("count", "int")] if options.block is None else []
        self.schema = Schema.parse([("tokens", "ndarray"), *count])
        self._ends = np.cumsum([file.samples for file in files])
        self._open: dict[int, NDArray[Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_open": {}}

    @property
    def tokens(self) -> int:
        """Number of tokens in the files."""
        return sum(file.tokens for file in self.files)

    def sizes(self, indices: Indices, _place: int, /) -> NDArray[np.int64]:
        """Return the exact sizes."""
        sizes = np.empty(len(indices), np.int64)
        head = head_struct(self.schema).size + _ARRAY_HEAD
        for number, at, _, tokens in self._spans(indices):
            sizes[at] = head + tokens * self.files[number].dtype.itemsize
        return sizes

    def records(self, indices: Indices, _place: int, /) -> Records:
        """Return records of these samples. Raises `SourceError` that names the file and the position of a token."""
        arrays: list[NDArray[Any]] = [np.empty(0)] * len(indices)
        for number, at, first, tokens in self._spans(indices):
            mapped = self._mapped(number)
            for place, begin, length in zip(at.tolist(), first.tolist(), tokens.tolist(), strict=True):
                arrays[place] = mapped[begin : begin + length]
                self._check(number, begin, arrays[place])
        columns: dict[str, Any] = {"tokens": arrays}
        if self._options.block is None:
            columns["count"] = np.fromiter(map(len, arrays), np.int64, len(arrays))
        return encode_columns(self.schema, columns, [f"sample {index}" for index in indices.tolist()])

    def fingerprint(self, *, times: bool) -> str:
        """Return a digest of the files' names, sizes and types, and of the options; with `times`, of the dates."""
        facts = [(f.name, f.tokens, f.offset, f.dtype.str, f.samples, f.mark if times else "") for f in self.files]
        return xxhash.xxh3_128_hexdigest(repr((facts, self._options)).encode("utf-8", "surrogateescape"))

    def release(self) -> None:
        """Release the maps, and so the pages that they hold."""
        self._open.clear()

    def _spans(self, indices: Indices) -> Iterator[tuple[int, NDArray[np.intp], NDArray[np.int64], NDArray[np.int64]]]:
        """Yield file by file: its number, the positions in `indices` of its samples, and their spans."""
        of = np.searchsorted(self._ends, indices, side="right")
        for number in np.unique(of).tolist():
            file, at = self.files[number], np.flatnonzero(of == number)
            assert file.spans is not None
            first, tokens = file.spans(indices[at] - (int(self._ends[number]) - file.samples))
            yield number, at, first, tokens

    def _mapped(self, number: int) -> NDArray[Any]:
        if number not in self._open:
            self._open[number] = self.files[number].open()
        return self._open[number]

    def _check(self, number: int, begin: int, tokens: NDArray[Any]) -> None:
        most = self._options.vocabulary
        if most is None or not len(tokens):
            return
        if tokens.max() >= most or tokens.min() < 0:
            wrong = int(np.flatnonzero((tokens >= most) | (tokens < 0))[0])
            where = f"token {int(tokens[wrong]):,} at position {begin + wrong:,}"
            raise SourceError(
                self.files[number].name,
                f"{where} is outside of the vocabulary of {most:,}",
                hint="The type of the tokens may be another one (--dtype), or the vocabulary larger (--vocabulary)",
            )


def open_tokens(src: str | os.PathLike[str], options: TokenOptions, scratch: Path) -> TokenSource:
    """Return the source of the token files at `src`: a file, or a pattern. `scratch` takes the ends of documents.

    Raises `UsageError`, and `SourceError` for a file that cannot be read or says nothing of its documents.
    """
    if Path(src).is_dir():
        there = ", ".join(file.name for file in find_files(src, _SUFFIXES, "token file", ALL)[:8])
        raise UsageError(
            f"{printable(os.fspath(src))} is a folder, which may hold training and validation data: name a file, or a "
            f"pattern in quotes. It holds {printable(there)}"
        )
    found = find_files(src, _SUFFIXES, "token file", ALL)
    noticed: list[Noticed] = []
    files: list[TokenFile] = []
    for entry in found:
        if not isinstance(entry.path, Path) or entry.path.suffix not in _SUFFIXES:
            raise SourceError(entry.name, f"the name of a token file ends with {', '.join(_SUFFIXES)}")
        for file in _opened(entry.path, entry.name, entry.mark, options):
            _check_width(file)
            ends = scratch / f"ends-{len(files):06d}.bin"
            files.append(_divided(file, options, ends, noticed))
    kinds = {file.dtype.name: file.name for file in files}
    if len(kinds) > 1:
        named = "; ".join(f"{kind} in {name}" for kind, name in kinds.items())
        raise SourceError(os.fspath(src), f"the types of tokens differ: {named}", hint="Convert them one by one")
    if not any(file.samples for file in files):
        raise SourceError(os.fspath(src), "there is no sample: the files are empty, or shorter than a block")
    return TokenSource(tuple(files), options, tuple(noticed))


def _opened(path: Path, name: str, mark: str, options: TokenOptions) -> Iterator[TokenFile]:
    """Yield the arrays of tokens in a file: one, but for `.npz`. Raises `SourceError`."""
    try:
        if path.suffix == ".bin":
            yield _flat(path, name, mark, options)
            return
        if path.suffix == ".npy":
            with path.open("rb") as file:
                yield _of_numpy(file, 0, path.stat().st_size, path, name, mark, options)
            return
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            for member in archive.infolist():
                inside = f"{name}, {member.filename}"
                if member.compress_type != zipfile.ZIP_STORED:
                    raise SourceError(
                        inside, "it is compressed, so it cannot be mapped", hint="numpy.save stores it raw"
                    )
                file.seek(member.header_offset + 26)
                lengths = struct.unpack("<HH", file.read(4))
                start = member.header_offset + 30 + sum(lengths)
                yield _of_numpy(file, start, member.file_size, path, inside, mark, options)
    except BrandError:
        raise
    except OSError as error:
        raise SourceError(name, f"cannot be read: {error.strerror}") from error
    except Exception as error:  # the head of a .npy file is Python, and NumPy raises SyntaxError and others for it
        raise SourceError(name, f"it is no file of tokens: {cause_of(error)}") from error


def _of_numpy(file: Any, offset: int, size: int, path: Path, name: str, mark: str, options: TokenOptions) -> TokenFile:
    """Return the array that begins at `offset` and, with its head, has `size` bytes."""
    file.seek(offset)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.kind not in "iu":
        raise SourceError(name, f"it holds {dtype}, and tokens are whole numbers")
    if len(shape) not in (1, 2) or (len(shape) == 2 and fortran):
        raise SourceError(name, f"an array of shape {shape}: give one row of tokens, or a matrix in C order")
    if options.dtype is not None and np.dtype(options.dtype) != dtype:
        raise UsageError(f"{name} holds {dtype}, and --dtype says {options.dtype}: leave --dtype out")
    stated, found = math.prod(shape) * dtype.itemsize, offset + size - file.tell()
    if stated != found:
        what = f"its head states {stated:,} bytes of tokens, and {found:,} follow it"
        raise SourceError(name, f"{what}: it is damaged, truncated, or holds several arrays")
    made = TokenFile(path, name, file.tell(), dtype, math.prod(shape), mark)
    if len(shape) == 2 and options.block is None:
        return replace(made, samples=shape[0], spans=_EqualSpans(shape[1], shape[1]))
    return made


def _flat(path: Path, name: str, mark: str, options: TokenOptions) -> TokenFile:
    """Return the tokens of a `.bin` file. Raises `SourceError`, `UsageError`."""
    size, index = path.stat().st_size, path.with_suffix(".idx")
    if index.is_file():
        return _megatron(path, index, name, mark, options)
    with path.open("rb") as file:
        head = np.frombuffer(file.read(12), "<i4")
    offset, dtype = 0, None
    if len(head) == 3 and int(head[0]) in _LLM_C_MAGICS:
        offset, dtype = _LLM_C_BYTES, np.dtype(_LLM_C_MAGICS[int(head[0])])
        if size - offset != int(head[2]) * dtype.itemsize:
            raise SourceError(
                name, f"its head says {counted(int(head[2]), 'token')}, and it has {size - offset:,} bytes"
            )
    if dtype is None:
        if options.dtype is None:
            raise UsageError(
                f"{name} does not say the type of its tokens: give --dtype uint16 (vocabularies up to 65,536, as that "
                "of GPT-2) or --dtype uint32"
            )
        dtype = np.dtype(options.dtype).newbyteorder("<")
    elif options.dtype is not None and np.dtype(options.dtype) != dtype:
        raise UsageError(f"the head of {name} says {dtype}, and --dtype says {options.dtype}: leave --dtype out")
    tokens, rest = divmod(size - offset, dtype.itemsize)
    if rest:
        raise SourceError(name, f"{size:,} bytes are no whole number of {dtype}: it is truncated, or of another type")
    return TokenFile(path, name, offset, dtype, tokens, mark)


def _megatron(path: Path, index: Path, name: str, mark: str, options: TokenOptions) -> TokenFile:
    """Return the tokens of a `.bin` file of Megatron, with its documents. Raises `SourceError`."""
    data = np.memmap(index, np.uint8, "r")
    magic, version, code, sequences, documents = _MEGATRON.unpack(bytes(data[: _MEGATRON.size]))
    if (magic, version) != (_MEGATRON_MAGIC, 1) or code not in _MEGATRON_DTYPES:
        raise SourceError(index.name, "it is no index of Megatron of version 1 with whole numbers")
    dtype, at = np.dtype(_MEGATRON_DTYPES[code]), _MEGATRON.size
    if options.dtype is not None and np.dtype(options.dtype) != dtype:
        raise UsageError(f"{index.name} says {dtype}, and --dtype says {options.dtype}: leave --dtype out")
    if len(data) < at + 12 * sequences + 8 * documents:
        raise SourceError(index.name, "it is truncated")
    lengths = data[at : at + 4 * sequences].view("<i4").astype(np.int64)
    begins = data[at + 4 * sequences :][: 8 * sequences].view("<i8") // dtype.itemsize
    borders = data[at + 12 * sequences :][: 8 * documents].view("<i8").astype(np.int64)
    tokens, ends = path.stat().st_size // dtype.itemsize, begins + lengths
    if (lengths < 0).any() or (begins < 0).any() or (ends > tokens).any():
        raise SourceError(name, f"{index.name} names tokens that the file does not have: one of them is truncated")
    made = TokenFile(path, name, 0, dtype, tokens, mark)
    if options.block is not None or not sequences:
        return made
    if not len(borders) or borders[0] != 0 or borders[-1] != sequences or (np.diff(borders) < 0).any():
        raise SourceError(index.name, "its documents do not cover its sequences")
    first = begins[np.minimum(borders[:-1], sequences - 1)]
    last = np.where(np.diff(borders) > 0, ends[np.maximum(borders[1:] - 1, 0)], first)
    inside = np.setdiff1d(np.arange(1, sequences), borders)
    if (begins[inside] != ends[inside - 1]).any():
        raise SourceError(index.name, "the sequences of a document do not follow each other in the file")
    return replace(made, samples=len(first), spans=_Listed(first, last))


def _divided(file: TokenFile, options: TokenOptions, ends: Path, noticed: list[Noticed]) -> TokenFile:
    """Return a file with its samples: those that it has, blocks, or the documents between ends of text."""
    if file.spans is not None:
        return file
    if options.block is not None:
        stride = options.stride or options.block
        blocks = max(0, (file.tokens - options.block) // stride + 1)
        used = 0 if not blocks else (blocks - 1) * stride + options.block
        if file.tokens > used:
            what = f"{{count}} token[s] behind the last block of {options.block:,} in a file [is|are] left out"
            noticed.append(Noticed("tokens_left_out", file.tokens - used, file.name, what))
        return replace(file, samples=blocks, spans=_EqualSpans(options.block, stride))
    if options.end_of_text is None:
        raise UsageError(
            f"{file.name} does not say where documents end: give --end-of-text TOKEN (50256 for GPT-2), or --block N "
            "for samples of N tokens"
        )
    documents = _find_ends(file, options.end_of_text, ends)
    if not documents:
        raise SourceError(
            file.name,
            f"it has no token {options.end_of_text:,}, so no document ends",
            hint="Give --end-of-text the token of this file's tokenizer, or --block N for samples of N tokens",
        )
    last = int(np.memmap(ends, "<i8", "r")[-1])
    if last < file.tokens:
        with ends.open("ab") as out:
            out.write(struct.pack("<q", file.tokens))
        what = "{count} token[s] after the last end of text [is|are] a document of [its|their] own"
        noticed.append(Noticed("tokens_after_the_last_end", file.tokens - last, file.name, what))
        documents += 1
    return replace(file, samples=documents, spans=_BetweenEnds(ends))


def _find_ends(file: TokenFile, token: int, ends: Path) -> int:
    """Write the position after each end-of-text token as int64. Return their number."""
    mapped, found = file.open(), 0
    with ends.open("wb") as out:
        for start in range(0, file.tokens, _AT_ONCE):
            here = np.flatnonzero(mapped[start : start + _AT_ONCE] == token) + (start + 1)
            out.write(here.astype("<i8").tobytes())
            found += len(here)
    return found


def _check_width(file: TokenFile) -> None:
    """Raise `SourceError` if every second token is 0 or nearly so, as in a file of a type that is twice as wide."""
    tokens = np.asarray(file.open()[:_LOOKED_AT])
    odd, even = tokens[1::2], tokens[::2]
    if len(odd) >= 64 and file.dtype.itemsize < 8 and int(odd.max()) < 16 <= int(even.max()):
        wider = {1: "uint16", 2: "uint32", 4: "int64"}[file.dtype.itemsize]
        raise SourceError(
            file.name,
            f"every second {file.dtype} is below 16, as if the type were {wider}",
            hint=f"Give --dtype {wider}",
        )


@dataclass(frozen=True, slots=True)
class _EqualSpans:
    """Spans of equal length at equal distances."""

    tokens: int
    stride: int

    def __call__(self, indices: Indices) -> Spans:
        return indices.astype(np.int64) * self.stride, np.full(len(indices), self.tokens, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Listed:
    """Spans from lists of their first tokens and ends."""

    first: NDArray[np.int64]
    end: NDArray[np.int64]

    def __call__(self, indices: Indices) -> Spans:
        return self.first[indices], self.end[indices] - self.first[indices]


@dataclass(slots=True, eq=False)
class _BetweenEnds:
    """Spans that follow each other, from a file of their ends."""

    path: Path
    ends: NDArray[np.int64] | None = field(default=None, repr=False)

    def __getstate__(self) -> Any:
        return (None, {"path": self.path, "ends": None})

    def __call__(self, indices: Indices) -> Spans:
        if self.ends is None:
            self.ends = np.memmap(self.path, "<i8", "r")
        last = np.asarray(self.ends[indices])
        first = np.where(indices > 0, self.ends[np.maximum(indices - 1, 0)], 0)
        return first, last - first
