"""Three kinds of source with one interface: a number of samples, and the records of any of them.

Workers ask for records in storage order, which is a random order of the source. A folder source reads files. An
indexable source asks the user's object for items; so does the source of a list, if its samples are large. An iterable
has no random order, so `spool` first writes it to disk, and the spool is a source.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.chunker.sources.blocks import bytes_of, encoded
from brand.chunker.sources.folders import ScannedFolder
from brand.chunker.sources.listing import SIDECARS, TEXT_BITS
from brand.chunker.sources.shuffle import write_order
from brand.chunker.sources.trees import UNKNOWN, FileFacts, contents, tree_of
from brand.chunker.sources.workers import FORKS
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
_OBJECT_BYTES: Final = 128
"""Bytes that Python needs for each record in addition to its contents."""
_ENTRIES_AT_ONCE: Final = 1 << 18
_LOOKED_AT: Final = 1000
"""Samples of a list, spread over it, whose sizes are looked at."""
_Files = tuple[str, Buffer | SourceError, Buffer | SourceError | None, Buffer | SourceError | None]
"""Contents of a file, and of the text and the JSON next to it."""


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

    def write_order(self, path: Path, seed: int) -> None:
        """Write the storage order of the samples to `path`, before any sample is asked for. Raises OSError."""
        write_order(path, self.stretches, seed)

    def sizes(self, indices: Indices, _place: int, /) -> NDArray[np.int64] | None:  # noqa: ARG002 - not known
        """Return raw sizes of these samples' records in bytes; None if the source must read them to know.

        Samples are asked for in storage order: the first one has this place, and the others follow it.
        """
        return None

    @abstractmethod
    def records(self, indices: Indices, place: int, /) -> Records:
        """Return records of these samples, which follow each other from `place` on.

        Raises `SourceError` or `SchemaError`, which names the sample at fault.
        """

    def blocks(self, indices: Indices, place: int, /) -> Iterator[Records]:
        """Yield the records of these samples in blocks of some megabytes, or of one sample if that is larger.

        Raises as `records` does. A source that does not know the sizes overrides it.
        """
        sizes = self.sizes(indices, place)
        assert sizes is not None
        for low, high in cut_blocks(sizes + _OBJECT_BYTES):
            yield self.records(indices[low:high], place + low)

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

    def sizes(self, indices: Indices, _place: int, /) -> NDArray[np.int64]:
        """Return the exact sizes, without sidecar transcripts, which are small."""
        entries = self.listing.entries[indices]
        sizes = entries["size"].astype(np.int64) + entries["name_size"] + entries["text_size"] + self._heads
        result: NDArray[np.int64] = sizes + self.listing.column_sizes[indices].sum(axis=1, dtype=np.int64)
        return result

    def records(self, indices: Indices, _place: int, /) -> Records:
        """Read the files."""
        return self._records(indices, self._contents(indices))

    def blocks(self, indices: Indices, _place: int, /) -> Iterator[Records]:
        """Yield the records as `Source.blocks` does; the files of later blocks are requested ahead."""
        read = self._contents(indices)
        for low, high in cut_blocks(self.sizes(indices, _place) + _OBJECT_BYTES):
            yield self._records(indices[low:high], read)

    def check(self, indices: Indices) -> Iterator[tuple[int, str]]:
        """Read and decode files, and what is next to them. Yield those that cannot be used, and why."""
        for index, files in zip(indices.tolist(), self._contents(indices), strict=True):
            try:
                self._record(index, files)
                check_file(self.file_field, intact(files[1]))
            except SourceError as error:
                yield index, error.reason if error.path == files[0] else f"{error.path}: {error.reason}"
            except ValueError as error:
                yield index, str(error)

    def _records(self, indices: Indices, read: Iterator[_Files]) -> Records:
        parts = [self._record(index, files) for index, files in zip(indices.tolist(), read, strict=False)]
        sizes = np.fromiter((sum(map(len, record)) for record in parts), np.int64, len(parts))
        return Records.side_by_side(together(list(chain.from_iterable(parts))), sizes)

    def _contents(self, indices: Indices) -> Iterator[_Files]:
        """Yield key and contents of each file, and of its text and its JSON if these are in files next to it."""
        entries = self.listing.entries[indices]
        facts = self.listing.keys(entries), entries["size"].tolist(), entries["modified_ns"].tolist()
        wanted = list(map(FileFacts, *facts))
        if not ((self.with_text or self.with_json) and entries["sidecar"].any()):
            for file, data in zip(wanted, contents(self.root, wanted), strict=True):
                yield file.key, data, None, None
            return
        beside = [self._beside(index) for index in indices.tolist()]
        read = contents(
            self.root,
            [
                each
                for file, names in zip(wanted, beside, strict=True)
                for each in (file, *(FileFacts(name, UNKNOWN, 0) for name in names if name))
            ],
        )
        for file, (text, told) in zip(wanted, beside, strict=True):
            yield file.key, next(read), next(read) if text else None, next(read) if told else None

    def _beside(self, index: int) -> tuple[str, str]:
        """Return the paths of the text and of the JSON next to a file; an empty text if there is none."""
        if not self.listing.entries["sidecar"][index]:
            return "", ""
        text = next(iter(self.sidecars(index, TEXT_BITS)), "") if self.with_text else ""
        return text, next(iter(self.sidecars(index, SIDECARS[".json"])), "") if self.with_json else ""

    def fingerprint(self, *, times: bool) -> str:
        """Return a digest of names, labels, sizes and texts.

        With `times`, sizes and dates of the transcripts next to audio files are included.
        """
        digest = xxhash.xxh3_128(self.listing.fingerprint(times=times).encode())
        tree = tree_of(self.root, follow_links=True)
        for name in self.all_sidecars() if times else ():
            digest.update(str(tree.facts(name)).encode())
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

    def _record(self, index: int, files: _Files) -> tuple[Buffer, ...]:
        key, data = files[0], intact(files[1])
        found = (missing_decoder(data) if self.file_field == "audio" else "") or misfit(self.file_field, data)
        if found:
            raise SourceError(key, found)
        payloads: list[Buffer] = [data]
        if self.with_text:
            payloads += [self._text(index, files[2]), *self.listing.values(index)]
        payloads += [self._json(index, files[3])] if self.with_json else []
        fixed: list[int | float] = [int(self.listing.entries["label"][index])] if self._labelled else []
        fixed += [self._seconds(key, data)] if self._with_duration else []
        if self.rows is not None:
            numbers, values = split_record(self.rows, self.listing.text(index))
            fixed += numbers
            payloads += values
        payloads.append(key.encode())
        return record_parts(self.schema, fixed, payloads)

    def _seconds(self, key: str, data: Buffer) -> float:
        try:
            return duration(data)
        except ValueError as error:
            raise SourceError(key, str(error)) from error

    def _text(self, index: int, data: Buffer | SourceError | None) -> bytes:
        if data is None:
            return self.listing.text(index)
        try:
            return _decoded(intact(data)).strip().encode()
        except (SourceError, ValueError) as error:
            raise SourceError(self._beside(index)[0], f"not a text in UTF-8: {_reason(error)}") from error

    def _json(self, index: int, data: Buffer | SourceError | None) -> bytes:
        if data is None:
            return b"null"
        try:
            return encode_json(json.loads(_decoded(intact(data))))
        except (SourceError, ValueError, RecursionError) as error:
            raise SourceError(self._beside(index)[1], f"not JSON: {_reason(error)}") from error


def intact(data: Buffer | SourceError | None) -> Buffer:
    """Return the contents of a file. Raises the `SourceError` of one that could not be read."""
    if isinstance(data, SourceError):
        raise data
    assert data is not None
    return data


def _reason(error: Exception) -> str:
    return error.reason if isinstance(error, SourceError) else str(error)


def _decoded(data: Buffer) -> str:
    return bytes(data).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")


class IndexableSource(Source):
    """Anything with `len` and `[i]` that returns dicts. Each worker asks for its own items."""

    def __init__(self, samples: Any, schema: Schema, noticed: Sequence[Noticed] = ()) -> None:
        self.samples, self.schema, self.stretches, self.noticed = samples, schema, (len(samples),), noticed

    def records(self, indices: Indices, _place: int, /) -> Records:
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

    def blocks(self, indices: Indices, _place: int, /) -> Iterator[Records]:
        """Yield the records as `Source.blocks` does: the items themselves tell their sizes."""
        few = [int(i) for i in indices]
        return encoded((self.samples[i] for i in few), self.schema, few)

    def fingerprint(self, *, times: bool) -> str:  # noqa: ARG002 - an indexable has no dates
        """Return a digest of the length, the only known fact; the plan adds the records of the probe."""
        return f"indexable:{len(self)}"


class ListSource(IndexableSource):
    """A list of large samples. All are encoded to know sizes and digest, and again, in shuffled order, to be stored."""

    def __init__(self, samples: Sequence[Mapping[str, Any]], schema: Schema, blocks: Iterable[Records]) -> None:
        """`blocks` yields the records of all samples, in order."""
        super().__init__(samples, schema)
        digest, sizes = xxhash.xxh3_128(), list[NDArray[np.int64]]()
        for records in blocks:
            digest.update(records.memory.data)
            sizes.append(records.sizes)
        self._sizes = np.concatenate(sizes)
        digest.update(len(samples).to_bytes(8, "little"))
        self._digest = digest.hexdigest()

    @property
    def raw_bytes(self) -> int:
        """Bytes of all records together."""
        return int(self._sizes.sum())

    def sizes(self, indices: Indices, _place: int, /) -> NDArray[np.int64]:
        """Return the exact sizes."""
        sizes: NDArray[np.int64] = self._sizes[indices]
        return sizes

    def fingerprint(self, *, times: bool) -> str:  # noqa: ARG002 - a list has no dates
        """Return the checksum of all records: that of a generator of the same samples."""
        return self._digest


def is_of_large(samples: Any, schema: Schema) -> bool:
    """Return whether this is a list for `ListSource`: its samples are large, and take little time to encode.

    A forked worker copies each page with the reference count of an object that it uses. For large samples, these pages
    are a hundredth of the list; for small ones, they are all of it. A spawned worker would get a copy of the list.
    """
    if not FORKS or not isinstance(samples, list | tuple):
        return False
    try:
        few = [[sample[name] for name, _ in schema.variable] for sample in samples[:: 1 + len(samples) // _LOOKED_AT]]
        values = [value for sample in few for value in sample]
        plain = all(isinstance(value, str | bytes | bytearray) or hasattr(value, "nbytes") for value in values)
        return plain and sum(map(bytes_of, values)) > LARGE * len(few)
    except Exception:  # noqa: BLE001 - such as PyTorch's for a sparse tensor: a spool names the sample
        return False
