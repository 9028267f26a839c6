"""Three kinds of source with one interface: a number of samples, and the records of any of them.

Workers ask for records in storage order, which is a random order of the source. A folder source reads files. An
indexable source asks the user's object for items. An iterable has no random order, so `spool` first writes it to disk,
and the spool is a source.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.chunker.sources.blocks import encoded
from brand.chunker.sources.folders import ScannedFolder
from brand.chunker.sources.listing import SIDECARS, TEXT_BITS
from brand.errors import SourceError
from brand.formats.audio import duration, missing_decoder
from brand.formats.contents import cut_blocks
from brand.formats.header import Schema
from brand.formats.media import check_file, misfit
from brand.formats.noticed import Noticed
from brand.formats.record import Records, encode_records, head_struct, record_parts, split_record, together
from brand.formats.values import LARGE, Buffer, encode_json

Indices = NDArray[np.integer[Any]]

DURATION: Final = ("duration", "float")
"""The field, and its codec, of the seconds of an audio file."""

NO_NAMES: Final[Mapping[str, tuple[str, ...]]] = {}
_FILES_AT_ONCE: Final = 64
_OBJECT_BYTES: Final = 128
"""Bytes that Python needs for each record in addition to its contents."""
_ENTRIES_AT_ONCE: Final = 1 << 18
_WILLNEED: Final = getattr(os, "POSIX_FADV_WILLNEED", None)


class Source(ABC):
    """Samples of known number, readable in any order, from any process."""

    schema: Schema
    """Fields of the samples."""
    file_field: str = ""
    """Field that holds a source file's bytes; empty if there is none."""

    noticed: Sequence[Noticed] = ()
    """Facts about the source that its records do not show, such as skipped rows. They are stored in the manifest."""
    field_classes: Mapping[str, tuple[str, ...]] = NO_NAMES
    """Names of the values of other fields than `label`."""
    stretches: tuple[int, ...]
    """Samples in each stretch that is shuffled with random numbers of its own; their sum is the length."""

    def describe(
        self, *, noticed: Sequence[Noticed] = (), field_classes: Mapping[str, tuple[str, ...]] = NO_NAMES
    ) -> None:
        """Take over facts that are known where the samples come from."""
        self.noticed, self.field_classes = (*self.noticed, *noticed), field_classes

    @property
    def raw_bytes(self) -> int | None:
        """Bytes of all records together; None if the source must read them to know."""
        return None

    def __len__(self) -> int:
        return sum(self.stretches)

    def sizes(self, indices: Indices) -> NDArray[np.int64] | None:  # noqa: ARG002 - the sizes are not known here
        """Return raw sizes of these samples' records in bytes; None if the source must read them to know."""
        return None

    @abstractmethod
    def records(self, indices: Indices) -> Records:
        """Return records of these samples. Raises `SourceError` or `SchemaError`, which names the sample at fault."""

    def blocks(self, indices: Indices) -> Iterator[Records]:
        """Yield the records of these samples in blocks of some megabytes, or of one sample if that is larger.

        Raises as `records` does. A source that does not know the sizes overrides it.
        """
        sizes = self.sizes(indices)
        assert sizes is not None
        for low, high in cut_blocks(sizes + _OBJECT_BYTES):
            yield self.records(indices[low:high])

    @abstractmethod
    def fingerprint(self, *, times: bool) -> str:
        """Return the identity of the contents, as far as it is known before reading.

        With `times`, it depends on the files' dates, too.
        """

    def release(self) -> None:  # noqa: B027 - most sources hold no such memory
        """Release memory that serves only speed. A worker calls this between chunks."""


class FolderSource(Source):
    """The files of an image or audio folder."""

    def __init__(
        self,
        folder: ScannedFolder,
        field: str,
        *,
        with_text: bool = False,
        with_json: bool = False,
        with_duration: bool = False,
        rows: Schema | None = None,
        noticed: Sequence[Noticed] = (),
    ) -> None:
        """`rows` are the fields of a table that has a row for each file; `join_rows` has stored the values."""
        self.root, self.listing, self.file_field = folder.root, folder.listing, field
        self.stretches = (len(self.listing),)
        label = [("label", "int")] if folder.classes is not None else []
        text = [(name, "str") for name in ("text", *self.listing.columns)] if with_text else []
        text += [("json", "json")] if with_json else []
        seconds, of_rows = [DURATION] if with_duration else [], () if rows is None else rows.fields
        self.schema = Schema.parse([(field, field), *label, *seconds, *text, *of_rows, ("key", "str")])
        self._labelled, self.with_text, self._with_duration = bool(label), with_text, with_duration
        self.with_json, self.rows, self.noticed = with_json, rows, noticed
        self._heads = head_struct(self.schema).size - (0 if rows is None else head_struct(rows).size)

    @property
    def raw_bytes(self) -> int:
        """Bytes of all records, without sidecar transcripts, which are small."""
        entries, total = self.listing.entries, self._heads * len(self)
        for at in range(0, len(entries), _ENTRIES_AT_ONCE):
            block = entries[at : at + _ENTRIES_AT_ONCE]
            total += sum(int(block[name].sum(dtype=np.int64)) for name in ("size", "name_size", "text_size"))
        return total + int(self.listing.column_sizes.sum(dtype=np.int64))

    def sizes(self, indices: Indices) -> NDArray[np.int64]:
        """Return the exact sizes, without sidecar transcripts, which are small."""
        entries = self.listing.entries[indices]
        sizes = entries["size"].astype(np.int64) + entries["name_size"] + entries["text_size"] + self._heads
        result: NDArray[np.int64] = sizes + self.listing.column_sizes[indices].sum(axis=1, dtype=np.int64)
        return result

    def records(self, indices: Indices) -> Records:
        """Read the files. Announces a few files at a time to the kernel, which then reads them together."""
        parts: list[tuple[Buffer, ...]] = []
        for start in range(0, len(indices), _FILES_AT_ONCE):
            few = [int(i) for i in indices[start : start + _FILES_AT_ONCE]]
            for index, data in zip(few, self._read(few), strict=True):
                self._check_kind(index, data)
                parts.append(self._record(index, data))
        sizes = np.fromiter((sum(map(len, record)) for record in parts), np.int64, len(parts))
        return Records.side_by_side(together(list(chain.from_iterable(parts))), sizes)

    def check(self, index: int) -> None:
        """Read and decode one file, and what is next to it. Raises `SourceError` if it cannot be used."""
        data = self._read([index])[0]
        self._check_kind(index, data)
        try:
            check_file(self.file_field, data)
        except ValueError as error:
            raise SourceError(self.listing.key(index), str(error)) from error
        try:
            _ = self._text(index) if self.with_text else b"", self._json(index) if self.with_json else b""
        except SourceError as error:
            raise SourceError(self.listing.key(index), f"{error.path}: {error.reason}") from error

    def fingerprint(self, *, times: bool) -> str:
        """Return a digest of names, labels, sizes and texts.

        With `times`, sizes and dates of the transcripts next to audio files are included.
        """
        digest = xxhash.xxh3_128(self.listing.fingerprint(times=times).encode())
        for name in self.all_sidecars() if times else ():
            facts = (self.root / name).stat()
            digest.update(f"{name} {facts.st_size} {facts.st_mtime_ns}".encode())
        return digest.hexdigest()

    def release(self) -> None:
        """Release the listing's mapped pages."""
        self.listing.release()

    def sidecars(self, index: int, which: int = ~0) -> list[str]:
        """Return the paths of the files next to a file, of those with the bits `which`; the first has its text."""
        bits = int(self.listing.entries["sidecar"][index]) & which
        stem = os.path.splitext(self.listing.key(index))[0]
        return [stem + suffix for suffix, bit in SIDECARS.items() if bits & bit]

    def all_sidecars(self) -> Iterator[str]:
        """Yield the paths of all these files, each once: `one.wav` and `one.ogg` may share `one.txt`."""
        folder, seen = "", set[str]()
        for index in self.listing.entries["sidecar"].nonzero()[0].tolist():
            for name in self.sidecars(index):
                if os.path.dirname(name) != folder:
                    folder, seen = os.path.dirname(name), set()
                if name not in seen:
                    seen.add(name)
                    yield name

    def leave_out(self, bad: Sequence[int]) -> None:
        """Leave out the files with these indices; others move up."""
        mask = np.zeros(len(self), bool)
        mask[list(bad)] = True
        self.listing = self.listing.without(mask)
        self.stretches = (len(self.listing),)

    def _read(self, indices: Sequence[int]) -> list[Buffer]:
        descriptors: list[int] = []
        index = -1
        try:
            for index in indices:
                descriptors.append(os.open(f"{self.root}/{self.listing.key(index)}", os.O_RDONLY))
                if _WILLNEED is not None and len(indices) > 1:
                    os.posix_fadvise(descriptors[-1], 0, 0, _WILLNEED)
            contents = []
            for index, descriptor in zip(indices, descriptors, strict=True):
                contents.append(self._read_whole(index, descriptor))
            return contents
        except OSError as error:
            raise SourceError(self.listing.key(index), f"cannot be read: {error.strerror}") from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _read_whole(self, index: int, descriptor: int) -> Buffer:
        entry, facts = self.listing.entries[index], os.fstat(descriptor)
        size = int(entry["size"])
        if facts.st_mtime_ns != entry["modified_ns"]:  # written again, perhaps with equally many bytes
            raise SourceError(self.listing.key(index), "the file changed while it was being converted")
        data = os.read(descriptor, size + 1) if size < LARGE else _read_large(descriptor, size + 1)
        if len(data) != size:
            raise SourceError(self.listing.key(index), "the file changed while it was being converted")
        return data

    def _check_kind(self, index: int, data: Buffer) -> None:
        missing = missing_decoder(data) if self.file_field == "audio" else ""
        found = missing or misfit(self.file_field, data)
        if found:
            raise SourceError(self.listing.key(index), found)

    def _record(self, index: int, data: Buffer) -> tuple[Buffer, ...]:
        payloads: list[Buffer] = [data]
        if self.with_text:
            payloads += [self._text(index), *self.listing.values(index)]
        payloads += [self._json(index)] if self.with_json else []
        fixed: list[int | float] = [int(self.listing.entries["label"][index])] if self._labelled else []
        fixed += [self._seconds(index, data)] if self._with_duration else []
        if self.rows is not None:
            numbers, values = split_record(self.rows, self.listing.text(index))
            fixed += numbers
            payloads += values
        payloads.append(self.listing.key(index).encode())
        return record_parts(self.schema, fixed, payloads)

    def _seconds(self, index: int, data: Buffer) -> float:
        try:
            return duration(data)
        except ValueError as error:
            raise SourceError(self.listing.key(index), str(error)) from error

    def _text(self, index: int) -> bytes:
        name = next(iter(self.sidecars(index, TEXT_BITS)), None)
        if name is None:
            return self.listing.text(index)
        try:
            return (self.root / name).read_text(encoding="utf-8-sig").strip().encode()
        except (OSError, UnicodeDecodeError) as error:
            raise SourceError(name, f"not a text in UTF-8: {error}") from error

    def _json(self, index: int) -> bytes:
        name = next(iter(self.sidecars(index, SIDECARS[".json"])), None)
        if name is None:
            return b"null"
        try:
            return encode_json(json.loads((self.root / name).read_text(encoding="utf-8-sig")))
        except (OSError, ValueError, RecursionError) as error:
            raise SourceError(name, f"not JSON: {error}") from error


def _read_large(descriptor: int, size: int) -> memoryview:
    """Return up to `size` bytes of a file in memory of numpy, which is filled in a third of the time of bytes."""
    memory, done = np.empty(size, np.uint8).data, 0
    while count := os.readv(descriptor, [memory[done:]]):  # Linux reads at most 2 GiB at once
        done += count
    return memory[:done]


class IndexableSource(Source):
    """Anything with `len` and `[i]` that returns dicts. Each worker asks for its own items."""

    def __init__(self, samples: Any, schema: Schema, noticed: Sequence[Noticed] = ()) -> None:
        self.samples, self.schema, self.stretches, self.noticed = samples, schema, (len(samples),), noticed

    def records(self, indices: Indices) -> Records:
        """Get the items, and encode them."""
        few = [int(i) for i in indices]
        samples = list[Mapping[str, Any]]()
        try:
            for index in few:
                samples.append(self.samples[index])
        except Exception as error:
            error.add_note(f"while reading sample {few[len(samples)]}")
            raise
        return encode_records(self.schema, samples, few)

    def blocks(self, indices: Indices) -> Iterator[Records]:
        """Yield the records as `Source.blocks` does: the items themselves tell their sizes."""
        few = [int(i) for i in indices]
        return encoded((self.samples[i] for i in few), self.schema, few)

    def fingerprint(self, *, times: bool) -> str:  # noqa: ARG002 - an indexable has no dates
        """Return a digest of the length, the only known fact; the plan adds the records of the probe."""
        return f"indexable:{len(self)}"
