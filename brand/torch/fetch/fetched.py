"""How are fetched samples decoded? As columns or as single samples, any range of them, in any thread.

columns     fields of all samples, as they are stored
gathered    columns in which each image or audio field, decoded by the server, is one array
samples     one by one, decoded; if draws may skip, a damaged sample is replaced

A request waits for the data server, then for storage: each wait is a `Span`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from brand.errors import FormatError, counted
from brand.formats.record import RecordDecoder
from brand.formats.stored import StoredSamples
from brand.node.client.wants import DecodedField
from brand.node.wire.lease import Held
from brand.storage.dataset.dataset import StoredDataSet


class Span(NamedTuple):
    """A time in which a batch waits for one cause. Times are those of `time.monotonic`, in seconds."""

    cause: str
    start_s: float
    end_s: float


def asked(start_s: float, waited_s: float, held: Held) -> Iterator[Span]:
    """Return the spans of a wait for the server: first the server is busy with other requests, then it holds this one.

    Returns nothing if the server was not asked.
    """
    end_s = start_s + waited_s
    parts = [("server", waited_s - sum(held)), *zip(Held._fields, held, strict=True)]
    for cause, seconds in parts:
        if seconds > 0 and start_s < end_s:
            yield Span(cause, start_s, start_s := min(end_s, start_s + seconds))


Column = NDArray[Any] | list[Any]
Columns = dict[str, Column]
"""Values by field: arrays of numbers and of values that the server has decoded, lists of other values."""


class FetchedSamples(Protocol):
    """Samples that were fetched and are not decoded yet. Several threads may decode ranges of them."""

    def __len__(self) -> int: ...

    @property
    def spans(self) -> Sequence[Span]:
        """The waits of the request for data servers or storage, in order."""
        ...

    @property
    def waited_s(self) -> float:
        """Seconds for which the request waited for data servers or storage."""
        ...

    def columns(self, first: int, end: int, *, views: bool = False) -> Columns:
        """Return the fields of samples `first` to `end` - 1, with `index` and `key`; see `UndecodedSamples.columns`."""
        ...

    def gathers(self, first: int, end: int) -> bool:
        """Return whether the server has decoded the images and audio of all these samples, each field in one shape."""
        ...

    def gathered(self, first: int, end: int) -> Columns:
        """Return columns, if `gathers` is true of these samples; see `UndecodedSamples.gathered`."""
        ...

    def samples(self, first: int, end: int) -> list[dict[str, Any]]:
        """Return the samples `first` to `end` - 1, one dict for each, with images and audio decoded."""
        ...

    def turns(self, first: int, end: int) -> list[int]:
        """Return numbers that distinguish the uses of one index in an epoch, for random transforms.

        0 if each index is used once.
        """
        ...


Replace = Callable[[int, FormatError], tuple[dict[str, Any], int]]
"""Function that returns another sample of the group, and its index, for the index of a damaged sample and its error."""


@dataclass(frozen=True, slots=True, eq=False)
class Decoding:
    """The decoders that turn the bytes of samples into values."""

    data: StoredDataSet
    decoder: RecordDecoder
    viewer: RecordDecoder
    """As `decoder`, but images and audio are views."""
    rest: RecordDecoder
    """Decodes the fields that the server does not decode."""
    media: Sequence[tuple[str, Callable[[Any], Any]]]
    """Fields that hold images or audio, and the decode function of each."""
    with_key: bool
    overlaid: Callable[[NDArray[np.int64]], dict[str, NDArray[Any]]]
    """The overlays of samples, by their indices."""


class UndecodedSamples:
    """Samples that were fetched and are not decoded yet. Several threads may decode ranges of them."""

    def __init__(
        self,
        decoding: Decoding,
        indices: NDArray[np.int64],
        stored: list[StoredSamples],
        present: list[NDArray[np.intp]],
        late: NDArray[np.intp],
        samples: list[dict[str, Any]],
        prepared: Mapping[str, Sequence[DecodedField]],
        spans: Sequence[Span],
        replace: Replace | None = None,
    ) -> None:
        self._decoding, self.indices, self._stored, self._prepared = decoding, indices, stored, prepared
        self.spans = spans
        """The waits of the request for the data server or storage, in order."""
        self._present, self._late, self._samples = present, late, samples
        self._replace = replace
        """The function that replaces a damaged sample; None if a damaged sample is an error."""
        self._others: set[int] = set()
        """Positions at which another sample replaces the one that the server has decoded."""

    def __repr__(self) -> str:
        late = counted(len(self._late), "sample")
        return f"UndecodedSamples({counted(len(self), 'sample')}, {late} read exactly, waited {self.waited_s:.3f} s)"

    def __len__(self) -> int:
        return len(self.indices)

    @property
    def waited_s(self) -> float:
        """Seconds for which the request waited for the data server or storage."""
        return sum(span.end_s - span.start_s for span in self.spans)

    def columns(self, first: int, end: int, *, views: bool = False) -> Columns:
        """Return the fields of samples `first` to `end` - 1, with `index` and `key`.

        Images and audio are bytes, or, with `views`, uint8 arrays that are views of the draw's buffer. The buffer is
        reused once no view of it is alive. In samples that were read directly, images and audio are bytes in both
        cases.
        """
        decoder = self._decoding.viewer if views else self._decoding.decoder
        names = decoder.names
        there, columns = [np.arange(0)], []
        for stored, present in zip(self._stored, self._present, strict=True):
            low, high = np.searchsorted(present, (first, end)).tolist()
            if low < high:
                there.append(present[low:high] - first)
                columns.append(self._decoded(stored.part(slice(low, high)), decoder, present[low:high]))
        made: Columns = {name: _joined([part[number] for part in columns]) for number, name in enumerate(names)}
        if sum(map(len, there)) < end - first:
            made = self._with_late(made, first, end, np.concatenate(there))
        return self._named(made, first, end)

    def gathers(self, first: int, end: int) -> bool:
        """Return whether the server has decoded the images and audio of all these samples, each field in one shape."""
        media = self._decoding.media
        return bool(media) and all(self._together(name, first, end) is not None for name, _ in media)

    def gathered(self, first: int, end: int) -> Columns:
        """Return columns, if `gathers` is true of these samples.

        A field that the server has decoded is one array of all samples, a view of the draw's buffer. Raises
        `FormatError` if a sample does not decode; `samples` then names or replaces it.
        """
        data, rest, found = self._decoding.data, self._decoding.rest, list[list[Column]]()
        for stored, present in zip(self._stored, self._present, strict=True):
            low, high = np.searchsorted(present, (first, end)).tolist()
            if low < high:
                found.append(data.columns(stored.part(slice(low, high)), rest))
        made: Columns = {name: _joined([part[number] for part in found]) for number, name in enumerate(rest.names)}
        for name, _ in self._decoding.media:
            together = self._together(name, first, end)
            assert together is not None
            made[name] = together
        return self._named({name: made[name] for name in self._decoding.decoder.names}, first, end)

    def _named(self, made: Columns, first: int, end: int) -> Columns:
        """Return the columns with `index`, `key` and overlays."""
        made["index"] = self.indices[first:end]
        if self._decoding.with_key and "key" not in made:
            made["key"] = list(map(str, self.indices[first:end].tolist()))
        return made | self._decoding.overlaid(self.indices[first:end])

    def _together(self, name: str, first: int, end: int) -> NDArray[Any] | None:
        """Return a field of these samples in one array.

        None if the server has not decoded one of them, or if they differ in shape.
        """
        parts = [part for made in self._prepared.get(name, ()) if len(part := made.within(first, end))]
        arrays = [part.values for part in parts if isinstance(part.values, np.ndarray)]
        if sum(map(len, arrays)) < end - first or len({(array.dtype, array.shape[1:]) for array in arrays}) > 1:
            return None
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    def samples(self, first: int, end: int) -> list[dict[str, Any]]:
        """Return the samples `first` to `end` - 1, one dict for each, with images and audio decoded."""
        columns = self.columns(first, end)
        samples = [dict(zip(columns, values, strict=True)) for values in rows(columns.values())]
        ready = {name: self._ready(name, first, end) for name, _ in self._decoding.media}
        for position, sample in enumerate(samples):
            for name, decode in self._decoding.media:
                prepared = ready[name].get(first + position)
                try:
                    # A copy: one array that is kept would keep the buffer of the whole draw.
                    sample[name] = decode(sample[name]) if prepared is None else prepared.copy()
                except ValueError as error:
                    hint = "decode=False gives the file's bytes"
                    wrong = self._decoding.data.decode_error(str(error), sample["index"], hint)
                    if self._replace is None:
                        raise wrong from error
                    samples[position] = self._replaced(*self._replace(sample["index"], wrong))
                    break
        return samples

    def turns(self, first: int, end: int) -> list[int]:
        """Return zeros: each index is drawn once an epoch."""
        return [0] * (end - first)

    def _ready(self, name: str, first: int, end: int) -> dict[int, NDArray[Any]]:
        """Return the values of a field that the server has decoded, by position."""
        parts = [made.within(first, end) for made in self._prepared.get(name, ())]
        ready = {at: value for part in parts for at, value in zip(part.at.tolist(), part.values, strict=True)}
        return {at: value for at, value in ready.items() if at not in self._others} if self._others else ready

    def _decoded(self, stored: StoredSamples, decoder: RecordDecoder, positions: NDArray[np.intp]) -> list[Column]:
        """Return columns of samples from memory. If draws may skip, samples that do not decode are replaced."""
        data = self._decoding.data
        try:
            return data.columns(stored, decoder)
        except FormatError:
            if self._replace is None:
                raise
        made: list[tuple[Any, ...]] = []
        for number, position in enumerate(positions.tolist()):
            try:
                made += rows(data.columns(stored.part(np.array([number])), decoder))
            except FormatError as error:
                sample, other = self._replace(int(stored.rows["index"][number]), error)
                self.indices[position] = other
                self._others.add(position)
                made.append(tuple(sample[name] for name in decoder.names))
        return [list(column) for column in zip(*made, strict=True)]

    def _replaced(self, sample: dict[str, Any], other: int) -> dict[str, Any]:
        """Return the sample with index `other`, which replaces a damaged one, decoded and with its overlays."""
        for name, decode in self._decoding.media:
            sample[name] = decode(sample[name])
        overlaid = {name: values.tolist()[0] for name, values in self._decoding.overlaid(np.array([other])).items()}
        return {"key": str(other)} | sample | {"index": other} | overlaid

    def _with_late(self, made: Columns, first: int, end: int, present: NDArray[np.intp]) -> Columns:
        """Return the columns with the directly read samples inserted between the samples from memory."""
        low, high = np.searchsorted(self._late, (first, end)).tolist()
        late = (self._late[low:high] - first).tolist()
        merged: Columns = {}
        for name, column in made.items():
            values = [None] * (end - first)
            here = column if isinstance(column, list) else column.tolist()
            for position, value in zip(present.tolist(), here, strict=True):
                values[position] = value
            for position, sample in zip(late, self._samples[low:high], strict=True):
                values[position] = sample[name]
            merged[name] = values if isinstance(column, list) else np.array(values, column.dtype)
        return merged


def _joined(parts: list[Column]) -> Column:
    """Return several columns as one."""
    if len(parts) == 1:
        return parts[0]
    if parts and isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    return list(chain.from_iterable(parts))


def rows(columns: Iterable[Column]) -> Iterator[tuple[Any, ...]]:
    """Return the values of the samples, sample by sample."""
    return zip(*[column if isinstance(column, list) else column.tolist() for column in columns], strict=True)
