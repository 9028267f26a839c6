"""How are fetched samples decoded? As columns or as single samples, any range of them, in any thread.

columns     fields of all samples, as they are stored
decode_into columns in which images are decoded into the rows of a batch
gathered    columns in which each image or audio field, decoded by the server, is one array
samples     one by one, decoded; if draws may skip, a damaged sample is replaced

They are samples of one data set, or of several members of a mixture, at their positions in one request. A request waits
for the data server, then for storage: each wait is a `Span`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brand.errors import FormatError
from brand.formats.contents import StoredSamples
from brand.formats.record import RecordDecoder
from brand.formats.values import FieldList
from brand.node.client.decoded import DecodedField
from brand.node.wire.draw_messages import Held
from brand.reprs import Reprs
from brand.storage.dataset.dataset import StoredDataSet
from brand.torch.fetch.filled import FilledField
from brand.torch.fetch.seeds import seed_of


class Span(NamedTuple):
    """A time in which a batch waits for one cause. Times are those of `time.monotonic`, in seconds."""

    cause: str
    start_s: float
    end_s: float


def spans_of(start_s: float, waited_s: float, held: Held) -> Iterator[Span]:
    """Return the spans of a wait for the server, if any: it is busy with other requests, then holds this one."""
    end_s = start_s + waited_s
    parts = [("server", waited_s - sum(held)), *zip(Held._fields, held, strict=True)]
    for cause, seconds in parts:
        if seconds > 0 and start_s < end_s:
            yield Span(cause, start_s, start_s := min(end_s, start_s + seconds))


Column = NDArray[Any] | list[Any]
Columns = dict[str, Column]
"""Values by field: arrays of numbers and of values that the server has decoded, lists of other values."""


class FetchedSamples(ABC):
    """Samples that were fetched and are not decoded yet. Several threads may decode ranges of them."""

    spans: Sequence[Span]
    """The waits of the requests for data servers or storage, in order."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    def waited_s(self) -> float:
        """Seconds for which the requests waited for data servers or storage, added up."""
        return sum(span.end_s - span.start_s for span in self.spans)

    @abstractmethod
    def columns(self, first: int, end: int, *, views: bool = False) -> Columns:
        """Return the fields of samples `first` to `end` - 1, with `index` and `key`.

        Images and audio are bytes, or, with `views`, uint8 arrays that are views of the draw's buffer. The buffer is
        reused once no view of it is alive. In samples that were read directly, images and audio are bytes in both
        cases.
        """

    @abstractmethod
    def gathers(self, first: int, end: int) -> bool:
        """Return whether the server has decoded all images and audio here, each field of a member in one shape."""

    @abstractmethod
    def gathered(self, first: int, end: int) -> Columns:
        """Return columns, if `gathers` is true of these samples.

        A field that the server has decoded is one array of all samples, a view of the draw's buffer. Raises
        `FormatError` if a sample does not decode; `samples` then names or replaces it.
        """

    @abstractmethod
    def samples(self, first: int, end: int) -> list[dict[str, Any]]:
        """Return the samples `first` to `end` - 1, one dict for each, with images and audio decoded."""

    @abstractmethod
    def decode_into(self, batch: Mapping[str, NDArray[Any]], first: int, end: int, at: NDArray[np.intp]) -> Columns:
        """Decode the images of samples `first` to `end` - 1 into the rows `at` of arrays, and return the other fields.

        `batch` has an array of each image field (`SampleSource.forms`); in the columns that are returned, this field is
        empty. Raises `FormatError` if a sample does not decode; `samples` then names or replaces it.
        """

    @abstractmethod
    def uses(self, first: int, end: int) -> list[int]:
        """Return numbers that distinguish the uses of one index in an epoch, for random transforms; 0 for one use."""


Replace = Callable[[int, FormatError], tuple[dict[str, Any], int]]
"""Function that returns another sample of the group, and its index, for the index of a damaged sample and its error."""


Form = tuple[tuple[int, ...], type[np.generic]]
"""Shape and dtype of the decoded values of a field, if all have the same."""


@dataclass(frozen=True, slots=True, eq=False)
class MediaField:
    """A field that holds image or audio files, and how they are decoded."""

    name: str
    decode: Callable[..., Any]
    """Decodes a file; if it is random, with a seed, and to an array if one is given."""
    form: Form | None = None
    random: bool = False
    listed: bool = False
    """Whether a value is a list of files."""
    targets: Callable[[Any, int, Mapping[str, Any]], dict[str, Any]] | None = None
    """Moves the fields that go with its crop, given the file, the seed and the sample. None if none does."""

    def value(self, file: Any, seed: int) -> Any:
        """Return a decoded value. Raises ValueError, which names the element of a list at fault."""
        if not self.listed:
            return self.decode(file, seed) if self.random else self.decode(file)
        decoded = FieldList()
        for position, element in enumerate(file):
            try:
                decoded.append(self.decode(element, seed ^ position) if self.random else self.decode(element))
            except ValueError as error:
                raise ValueError(f"element {position}: {error}") from error
        return decoded

    def write(self, file: Any, seed: int, row: NDArray[Any]) -> None:
        """Decode a file to a row of an array of this form. Raises ValueError."""
        if self.random:
            self.decode(file, seed, row)
        else:
            row[...] = self.decode(file)


@dataclass(frozen=True, slots=True, eq=False)
class Decoding:
    """The decoders that turn the bytes of samples into values."""

    data: StoredDataSet
    decoder: RecordDecoder
    viewer: RecordDecoder
    """As `decoder`, but images and audio are views."""
    rest: RecordDecoder
    """Decodes the fields that the server does not decode."""
    media: Sequence[MediaField]
    """Fields that hold images or audio."""
    with_key: bool
    overlaid: Callable[[NDArray[np.int64]], dict[str, NDArray[Any]]]
    """The overlays of samples, by their indices."""

    @property
    def random(self) -> bool:
        """Whether a field is decoded to random parts."""
        return any(media.random for media in self.media)


class FromServer(NamedTuple):
    """Samples of a request that the data server had in memory."""

    stored: StoredSamples
    at: NDArray[np.intp]
    """Their positions in the request, ascending."""


class FromStorage(NamedTuple):
    """Samples of a request that were read directly."""

    samples: list[dict[str, Any]]
    at: NDArray[np.intp]
    """Their positions in the request, ascending."""


@dataclass(eq=False, repr=False)
class UndecodedSamples(Reprs, FetchedSamples, shows="indices direct.samples waited_s"):
    """Samples of one data set."""

    decoding: Decoding
    indices: NDArray[np.int64]
    server: Sequence[FromServer]
    """The samples of each answer of the data server."""
    direct: FromStorage
    decoded: Mapping[str, Sequence[DecodedField]]
    """The values that the server has decoded, by field."""
    spans: Sequence[Span]
    replace: Replace | None = None
    """The function that replaces a damaged sample; None if a damaged sample is an error."""
    run: tuple[int, int] = (0, 0)
    """Seed and epoch of random parts, of samples that were drawn."""
    seeds: Sequence[int] | None = None
    """Seeds of random parts, of samples that were asked for by index."""
    _others: set[int] = field(default_factory=set, init=False)
    """Positions at which another sample replaces the one that the server has decoded."""

    def __len__(self) -> int:
        return len(self.indices)

    def columns(self, first: int, end: int, *, views: bool = False) -> Columns:
        decoder = self.decoding.viewer if views else self.decoding.decoder
        there, columns = [np.arange(0)], []
        for stored, at in self._from_server(first, end):
            there.append(at - first)
            columns.append(self._columns_of(stored, decoder, at))
        made = _joined(decoder.names, columns)
        if sum(map(len, there)) < end - first:
            made = self._with_direct(made, first, end, np.concatenate(there))
        return self._named(made, first, end)

    def _from_server(self, first: int, end: int) -> Iterator[FromServer]:
        """Yield the samples of this range that the server had in memory, answer by answer."""
        for stored, at in self.server:
            low, high = np.searchsorted(at, (first, end)).tolist()
            if low < high:
                yield FromServer(stored.part(slice(low, high)), at[low:high])

    def gathers(self, first: int, end: int) -> bool:
        media = self.decoding.media
        return bool(media) and all(self._together(each.name, first, end) is not None for each in media)

    def gathered(self, first: int, end: int) -> Columns:
        data, rest = self.decoding.data, self.decoding.rest
        made = _joined(rest.names, [data.columns(stored, rest) for stored, _ in self._from_server(first, end)])
        for media in self.decoding.media:
            together = self._together(media.name, first, end)
            assert together is not None
            made[media.name] = together
        return self._named({name: made[name] for name in self.decoding.decoder.names}, first, end)

    def _named(self, made: Columns, first: int, end: int) -> Columns:
        """Return the columns with `index`, `key` and overlays."""
        made["index"] = self.indices[first:end]
        if self.decoding.with_key and "key" not in made:
            made["key"] = list(map(str, self.indices[first:end].tolist()))
        return made | self.decoding.overlaid(self.indices[first:end])

    def _together(self, name: str, first: int, end: int) -> NDArray[Any] | None:
        """Return a field of these samples in one array; None if not all were decoded by the server, in one shape."""
        parts = [part for made in self.decoded.get(name, ()) if len(part := made.within(first, end))]
        arrays = [part.values for part in parts if isinstance(part.values, np.ndarray)]
        if sum(map(len, arrays)) < end - first or len({(array.dtype, array.shape[1:]) for array in arrays}) > 1:
            return None
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    def samples(self, first: int, end: int) -> list[dict[str, Any]]:
        columns = self.columns(first, end)
        samples = [dict(zip(columns, values, strict=True)) for values in rows(columns.values())]
        ready = {media.name: self._ready(media.name, first, end) for media in self.decoding.media}
        for position, sample in enumerate(samples):
            seed = self._seed(first + position, sample["index"])
            for media in self.decoding.media:
                decoded, targets = ready[media.name].get(first + position), dict[str, Any]()
                try:
                    # A copy: one array that is kept would keep the buffer of the whole draw.
                    value = media.value(sample[media.name], seed) if decoded is None else decoded.copy()
                    if media.targets is not None:
                        targets = media.targets(sample[media.name], seed, sample)
                except ValueError as error:
                    wrong = self._wrong(error, sample["index"])
                    if self.replace is None:
                        raise wrong from error
                    samples[position] = self._replaced(*self.replace(sample["index"], wrong), first + position)
                    break
                sample |= {media.name: value, **targets}
        return samples

    def decode_into(self, batch: Mapping[str, NDArray[Any]], first: int, end: int, at: NDArray[np.intp]) -> Columns:
        columns = self.columns(first, end, views=True)
        numbers, rows_at = np.asarray(columns["index"]).tolist(), at.tolist()
        for media in self.decoding.media:
            ready, rows_of = self._ready(media.name, first, end), batch[media.name]
            moved = list[dict[str, Any]]()
            for position, file in enumerate(columns[media.name]):
                decoded, row = ready.get(first + position), rows_of[rows_at[position]]
                try:
                    seed = self._seed(first + position, numbers[position])
                    if decoded is None:
                        media.write(_buffer(file), seed, row)
                    else:
                        row[...] = decoded
                    if media.targets is not None:
                        values = {name: columns[name][position] for name in columns}
                        moved.append(media.targets(_buffer(file), seed, values))
                except ValueError as error:
                    raise self._wrong(error, numbers[position]) from error
            columns[media.name] = []
            columns |= {name: [values[name] for values in moved] for name in (moved[0] if moved else ())}
        return columns

    def _seed(self, position: int, index: int) -> int:
        """Return the seed of the random parts of a sample; 0 if there are none."""
        if not self.decoding.random:
            return 0
        return seed_of(*self.run, index, 0) if self.seeds is None else self.seeds[position]

    def _wrong(self, error: ValueError, index: int) -> FormatError:
        """Return the error for a sample that does not decode."""
        return self.decoding.data.decode_error(str(error), index, "decode=False gives the file's bytes")

    def uses(self, first: int, end: int) -> list[int]:
        return [0] * (end - first)  # each index is drawn once an epoch

    def _ready(self, name: str, first: int, end: int) -> dict[int, NDArray[Any]]:
        """Return the values of a field that the server has decoded, by position."""
        parts = [made.within(first, end) for made in self.decoded.get(name, ())]
        ready = {at: value for part in parts for at, value in zip(part.at.tolist(), part.values, strict=True)}
        return {at: value for at, value in ready.items() if at not in self._others} if self._others else ready

    def _columns_of(self, stored: StoredSamples, decoder: RecordDecoder, positions: NDArray[np.intp]) -> list[Column]:
        """Return columns of samples from memory. If draws may skip, samples that do not decode are replaced."""
        data = self.decoding.data
        try:
            return data.columns(stored, decoder)
        except FormatError:
            if self.replace is None:
                raise
        made: list[tuple[Any, ...]] = []
        for number, position in enumerate(positions.tolist()):
            try:
                made += rows(data.columns(stored.part(np.array([number])), decoder))
            except FormatError as error:
                sample, other = self.replace(int(stored.rows["index"][number]), error)
                self.indices[position] = other
                self._others.add(position)
                made.append(tuple(sample[name] for name in decoder.names))
        return [list(column) for column in zip(*made, strict=True)]

    def _replaced(self, sample: dict[str, Any], other: int, position: int) -> dict[str, Any]:
        """Return the sample with index `other`, which replaces a damaged one, decoded and with its overlays."""
        seed = self._seed(position, other)
        for media in self.decoding.media:
            targets = {} if media.targets is None else media.targets(sample[media.name], seed, sample)
            sample |= {media.name: media.value(sample[media.name], seed), **targets}
        overlaid = {name: values.tolist()[0] for name, values in self.decoding.overlaid(np.array([other])).items()}
        return {"key": str(other)} | sample | {"index": other} | overlaid

    def _with_direct(self, made: Columns, first: int, end: int, there: NDArray[np.intp]) -> Columns:
        """Return the columns with the directly read samples inserted between the samples from memory."""
        low, high = np.searchsorted(self.direct.at, (first, end)).tolist()
        direct = (self.direct.at[low:high] - first).tolist()
        merged: Columns = {}
        for name, column in made.items():
            values = [None] * (end - first)
            here = column if isinstance(column, list) else column.tolist()
            for position, value in zip(there.tolist(), here, strict=True):
                values[position] = value
            for position, sample in zip(direct, self.direct.samples[low:high], strict=True):
                values[position] = sample[name]
            merged[name] = values if isinstance(column, list) else np.array(values, column.dtype)
        return merged


def _buffer(file: Any) -> Any:
    """Return a file, of which a column has the bytes or a view, in a form that decoders take."""
    return file.data if isinstance(file, np.ndarray) else file


def joined_columns(parts: Sequence[Columns]) -> Columns:
    """Return the columns of consecutive ranges of samples as those of one range."""
    return _joined(list(parts[0]), [list(part.values()) for part in parts])


def _joined(names: Sequence[str], parts: list[list[Column]]) -> Columns:
    """Return the columns of several runs of samples as those of one."""

    def one(columns: list[Column]) -> Column:
        if len(columns) == 1:
            return columns[0]
        if columns and isinstance(columns[0], np.ndarray):
            return np.concatenate(columns)
        return list(chain.from_iterable(columns))

    return {name: one([part[number] for part in parts]) for number, name in enumerate(names)}


def rows(columns: Iterable[Column]) -> Iterator[tuple[Any, ...]]:
    """Return the values of the samples, sample by sample."""
    return zip(*[column if isinstance(column, list) else column.tolist() for column in columns], strict=True)


MEMBER: Final = "member"
"""Name of the field with the number of a sample's member."""


@dataclass(frozen=True, slots=True, eq=False)
class Portion:
    """Samples of one request: those that one member has fetched of one of its epochs."""

    member: int
    epoch: int
    at: NDArray[np.intp]
    """Positions of the samples in the request, ascending."""
    fetched: FetchedSamples


class MergedSamples(Reprs, FetchedSamples, shows="_portions waited_s"):
    """Samples of several requests."""

    def __init__(self, portions: Sequence[Portion]) -> None:
        self._portions = portions
        self.spans = [span for portion in portions for span in portion.fetched.spans]

    def __len__(self) -> int:
        return sum(len(portion.at) for portion in self._portions)

    def columns(self, first: int, end: int, *, views: bool = False) -> Columns:
        parts = self._in(first, end)
        return self._together(first, end, [(p, at, p.fetched.columns(*of, views=views)) for p, at, of in parts])

    def gathers(self, first: int, end: int) -> bool:
        return all(portion.fetched.gathers(*of) for portion, _, of in self._in(first, end))

    def gathered(self, first: int, end: int) -> Columns:
        return self._together(first, end, [(p, at, p.fetched.gathered(*of)) for p, at, of in self._in(first, end)])

    def samples(self, first: int, end: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = [{}] * (end - first)
        for portion, at, of in self._in(first, end):
            for position, sample in zip(at.tolist(), portion.fetched.samples(*of), strict=True):
                found[position] = self._of_portion(portion, sample)
        return found

    def _of_portion(self, portion: Portion, sample: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG002 - of a mixture
        return sample

    def decode_into(self, batch: Mapping[str, NDArray[Any]], first: int, end: int, at: NDArray[np.intp]) -> Columns:
        parts = [(p, mine, p.fetched.decode_into(batch, *of, at[mine])) for p, mine, of in self._in(first, end)]
        columns = self._together(
            first, end, [(p, mine, {n: c for n, c in each.items() if n not in batch}) for p, mine, each in parts]
        )
        return columns | {name: [] for name in batch}

    def uses(self, first: int, end: int) -> list[int]:
        uses = np.empty(end - first, np.int64)
        for portion, at, _ in self._in(first, end):
            uses[at] = portion.epoch << 16 | portion.member
        return uses.tolist()

    def _in(self, first: int, end: int) -> Iterator[tuple[Portion, NDArray[np.intp], tuple[int, int]]]:
        """Yield portions that have some of these samples, their positions from `first` on, and their range in it."""
        for portion in self._portions:
            low, high = np.searchsorted(portion.at, (first, end)).tolist()
            if low < high:
                yield portion, portion.at[low:high] - first, (low, high)

    def _together(self, first: int, end: int, parts: list[tuple[Portion, NDArray[np.intp], Columns]]) -> Columns:
        count = end - first
        return {name: _merged(count, [(at, columns[name]) for _, at, columns in parts]) for name in parts[0][2]}


class UndecodedMixture(MergedSamples):
    """Samples of several members of a mixture, each with its own request; those that are dicts have their `member`.

    `filled` has a value for each field that some members lack.
    """

    def __init__(self, portions: Sequence[Portion], *, with_member: bool, filled: Mapping[str, FilledField]) -> None:
        super().__init__(portions)
        self._with_member, self._filled = with_member, filled

    def _of_portion(self, portion: Portion, sample: dict[str, Any]) -> dict[str, Any]:
        lacking = {name: of.value() for name, of in self._filled.items() if name not in sample}
        return sample | lacking | {MEMBER: portion.member}

    def _together(self, first: int, end: int, parts: list[tuple[Portion, NDArray[np.intp], Columns]]) -> Columns:
        for _, at, columns in parts:
            columns |= {name: of.column(len(at)) for name, of in self._filled.items() if name not in columns}
        if self._with_member:
            for portion, at, columns in parts:
                columns[MEMBER] = np.full(len(at), portion.member)
        return super()._together(first, end, parts)


def _merged(count: int, parts: list[tuple[NDArray[np.intp], Column]]) -> Column:
    """Return several columns as one, each value at its position."""
    if len(parts) == 1:
        return parts[0][1]
    arrays = [column for _, column in parts if isinstance(column, np.ndarray)]
    if len(arrays) == len(parts) and len({(array.dtype, array.shape[1:]) for array in arrays}) == 1:
        together = np.empty((count, *arrays[0].shape[1:]), arrays[0].dtype)
        for (at, _), array in zip(parts, arrays, strict=True):
            together[at] = array
        return together
    together_at = np.empty(count, np.intp)
    together_at[np.concatenate([at for at, _ in parts])] = np.arange(count)
    values = list(chain.from_iterable(column for _, column in parts))
    return [values[number] for number in together_at.tolist()]
