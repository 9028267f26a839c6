"""Which samples belong to ints? A plain int is the index of a sample, a ticket names the sample at a position of an
epoch.

    asked ints -> `Fetcher.fetch`: one request, all I/O -> `UndecodedSamples` (`brand.torch.fetch.fetched`): decoding

If a draw does not find a sample in the memory of the data server, the sample is read directly, in the same call. A
damaged sample raises an error; if draws may skip, another sample of its group replaces it.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import gcd
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import ChecksumError, FormatError, ServerError, UnreadableError, UsageError, counted
from brand.forks import after_in_child
from brand.formats.audio import decode_audio
from brand.formats.contents import StoredSamples
from brand.formats.header import ELEMENTS, DecodeDefault
from brand.formats.pixels import decode_image
from brand.formats.preparation import DecodeAudio, DecodeImage, Preparation, is_random, random_part
from brand.formats.record import RecordDecoder
from brand.node.client.decoded import DecodedField
from brand.node.serve.repeats import Repeats
from brand.node.wire.client_messages import Replaced
from brand.orders.base.tickets import TAGS, TICKET, positions_of, tag_and_epoch
from brand.orders.order import Order
from brand.reprs import Reprs
from brand.storage.dataset.dataset import StoredDataSet
from brand.torch.fetch.cropping import ImageCropper, TargetMover
from brand.torch.fetch.fetched import Decoding, FromServer, FromStorage, MediaField, Span, UndecodedSamples, spans_of
from brand.torch.fetch.seeds import seed_of_job
from brand.torch.job.ranks import find_rank
from brand.torch.job.resolver import ServerResolver
from brand.torch.job.workers import attend_training, in_worker, owner_process, worker_number
from brand.torch.pytorch import torch

MEDIA: Final[dict[str, Callable[[Any], Any]]] = {"image": decode_image, "audio": decode_audio}
"""Codecs whose values are files, and the decode function of each."""


def _file_decoder(codec: str, default: DecodeDefault | None) -> Callable[[Any], Any]:
    """Return the function that decodes files of this codec, as the data set says if its user does not."""
    return MEDIA[codec] if default is None else partial(decode_image, mode=default.mode, turn=default.upright)


MIXED_BATCH: Final = "a batch mixes positions of a BrandSampler with plain indices; use one or the other"
_TRIES: Final = 64
"""Number of samples to try as a replacement of a damaged one."""

_tags: dict[int, Order] = {}
"""Orders of all data sets of this process by tag, so that no two orders have the same tag."""
EVERY_S: Final = 30.0
"""Seconds between two log lines that sum up further replacements."""
log = logging.getLogger("brand")
_all: weakref.WeakSet[Replacements] = weakref.WeakSet()


def _media_fields(
    fields: Iterable[tuple[str, str]], specs: Mapping[str, Preparation], defaults: Mapping[str, DecodeDefault]
) -> Iterator[MediaField]:
    """Yield each field that holds files, or lists of them, but for masks that move with an image."""
    moved = {name for how in specs.values() for name in getattr(how, "targets", None) or ()}
    for name, codec in fields:
        of = ELEMENTS.get(codec, codec)
        if of not in MEDIA or name in moved:
            continue
        how = specs.get(name)
        form = how.form if isinstance(how, DecodeImage) and of == codec else None
        if isinstance(how, DecodeImage) and is_random(how):
            targets = TargetMover(how) if how.targets else None
            yield MediaField(name, ImageCropper(how), form, random=True, listed=of != codec, targets=targets)
        elif isinstance(how, DecodeAudio) and is_random(how):
            yield MediaField(name, partial(random_part, how), random=True, listed=of != codec)
        else:
            yield MediaField(name, how or _file_decoder(of, defaults.get(name)), form, listed=of != codec)


class Fetcher(Reprs, shows="data.name _orders _drawn"):
    """Reads and draws from one data set, with the given `fields` (None: all).

    `skip`: whether another sample replaces a damaged one in a draw; otherwise a damaged sample is an error.
    """

    def __init__(
        self, data: StoredDataSet, resolver: ServerResolver, fields: Sequence[str] | None, *, decode: bool, skip: bool
    ) -> None:
        self.data, self.resolver, self._skip, self.decodes = data, resolver, skip, decode
        schema, specs = data.header.schema, resolver.options.decode
        decoder = RecordDecoder(schema, None if fields is None else [name for name in schema.names if name in fields])
        media = schema.fields if decode else ()
        self.decoding = Decoding(
            data,
            decoder,
            RecordDecoder(schema, decoder.names, views=True),
            RecordDecoder(schema, [name for name in decoder.names if name not in specs]),
            list(_media_fields([f for f in media if f[0] in decoder.names], specs, data.header.decode)),
            fields is None or "key" in fields,
            partial(data.overlaid, names=fields),
        )
        self._orders: dict[int, Order] = {}
        self._replacements = Replacements()
        self._drawn: dict[int, int] = {}
        """Tag of an order -> epoch of its last draw."""

    def tag_of(self, order: Order) -> int:
        """Return the tag of an order's tickets: the same in all processes, unless the tags of two orders collide."""
        wanted = int.from_bytes(hashlib.blake2s(repr(order).encode(), digest_size=4).digest()) % TAGS
        for more in range(TAGS):
            tag = (wanted + more) % TAGS
            if _tags.setdefault(tag, order) == order:
                self._orders[tag] = order
                return tag
        raise UsageError(f"a process has samplers of {TAGS:,} orders at most")

    def order_of(self, tag: int) -> Order:
        """Return the order with this tag. Raises `UsageError` if there is none, `ServerError`."""
        order = self._orders.get(tag)
        if order is None:  # the sampler was made, or loaded its state, after this worker started
            order = self._orders[tag] = self._order_by_tag(tag)
        return order

    def fetch(self, asked: NDArray[np.int64], seeds: Sequence[int] | None = None) -> UndecodedSamples:
        """Return the samples for tickets or indices in range. Raises `FormatError`, `ServerError`, `UsageError`.

        `seeds`: those of random parts of samples that are asked for by index; None: PyTorch's generator gives them.
        """
        attend_training()
        if not len(asked) or int(asked.max()) < TICKET:
            start_s = time.monotonic()
            direct = FromStorage(self.samples(asked), np.arange(len(asked)))
            spans = [Span("storage", start_s, time.monotonic())]
            if self.decoding.random and seeds is None:
                seeds = torch.randint((1 << 63) - 1, (len(asked),)).tolist()
            return UndecodedSamples(self.decoding, asked, (), direct, {}, spans, seeds=seeds)
        if int(asked.min()) < TICKET:
            raise UsageError(MIXED_BATCH)
        if int(asked.min()) >> 32 != int(asked.max()) >> 32:
            raise UsageError("a batch has positions of one epoch and one sampler")
        return self._draw(asked)

    def _draw(self, asked: NDArray[np.int64]) -> UndecodedSamples:
        tag, epoch = tag_and_epoch(int(asked[0]))
        if self._drawn.get(tag) != epoch:
            self._drawn[tag] = epoch
            self._replacements.epoch_ended()
        order = self.order_of(tag)
        parts = self.resolver.client.draw(
            order, epoch, positions_of(asked), owner=owner_process(), worker=worker_number()
        )
        places = np.concatenate([part.places for part in parts])
        indices = np.full(len(asked), -1)
        server, first = list[FromServer](), 0
        decoded: dict[str, list[DecodedField]] = {name: [] for name in self.resolver.options.decode}
        for part in parts:
            server.append(FromServer(part.stored, part.present + first))
            indices[server[-1].at] = part.stored.rows["index"].astype(np.int64)
            for name, made in part.prepared.items():
                decoded[name].append(made.only(part.present, first))
            first += len(part.places)
        spans = [span for part in parts for span in spans_of(part.asked_s, part.waited_s, part.held)]
        missing = np.flatnonzero(indices < 0)
        samples: list[dict[str, Any]] = []
        if len(missing):
            start_s = time.monotonic()
            try:
                samples, indices[missing] = self._read(places[missing], order)
            except ServerError as error:
                raise type(error)(f"{self._where(asked[missing[0]], order)} cannot be fetched: {error}") from error
            spans.append(Span("storage", start_s, time.monotonic()))
        direct, replace = FromStorage(samples, missing), partial(self._replace, order) if self._skip else None
        run = seed_of_job(order.seed, self.resolver.options.job), epoch
        return UndecodedSamples(self.decoding, indices, server, direct, decoded, spans, replace, run)

    def samples(self, indices: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Return the samples with these indices, by direct reads.

        The data server reads samples that are stored in the partitions of other nodes, or in an object store. Raises
        `FormatError`, `ServerError`.
        """
        data = self.data
        if data.location.in_store:
            return self._fetched(indices) if len(indices) else []
        if data.share is None:
            return data.samples(indices, self.decoding.decoder)
        here = data.here(data.places(indices) // data.header.chunk_size)
        found: list[dict[str, Any]] = [{}] * len(indices)
        for part, samples in (
            (here, data.samples(indices[here], self.decoding.decoder)),
            (~here, self._fetched(indices[~here]) if not here.all() else []),
        ):
            for position, sample in zip(np.flatnonzero(part).tolist(), samples, strict=True):
                found[position] = sample
        return found

    def _fetched(self, indices: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Return samples that only the data server can get: in the partitions of other nodes or in a store."""
        places, back = np.unique(self.data.places(indices), return_inverse=True)
        rows_of = self.data.rows_at(places)
        present, stored = self.resolver.client.fetch(places, rows_of)
        missing = np.flatnonzero(~present)
        if len(missing):
            chunk = int(places[missing[0]]) // self.data.header.chunk_size
            raise UnreadableError(
                f"{self._node_of(chunk)}, which has it, cannot read it",
                path=self.data.location.chunk_file(chunk),
                chunk=chunk,
                sample=int(rows_of["index"][missing[0]]),
                hint="Run `brand verify` on that node",
            )
        sizes = rows_of["size"].astype(np.int64)
        fetched = StoredSamples(np.frombuffer(b"".join(stored), np.uint8), np.cumsum(sizes) - sizes, rows_of)
        wrong = np.flatnonzero(~fetched.right())
        if len(wrong):
            index, chunk = int(rows_of["index"][wrong[0]]), int(places[wrong[0]]) // self.data.header.chunk_size
            raise ChecksumError(
                f"{self._node_of(chunk)} sent other bytes",
                path=self.data.name,
                chunk=chunk,
                sample=index,
                hint="Run `brand verify` on that node",
            )
        return self.data.decoded(fetched.part(back), self.decoding.decoder)  # a sample asked for twice is made twice

    def _node_of(self, chunk: int) -> str:
        """Return the name of the node that has a chunk; of the data server if that reads all chunks."""
        share = self.data.share
        return "the data server" if share is None else f"node {int(share.owners(np.array([chunk]))[0])}"

    def _where(self, ticket: np.int64, order: Order) -> str:
        """Return a description of a ticket for the user."""
        _, epoch = tag_and_epoch(int(ticket))
        position = int(positions_of(np.array([ticket]))[0])
        group = int(order.places(epoch, position, position + 1)[0]) // order.mapping.group_size
        rank, ranks = find_rank(None, None)
        return f"position {position:,} of epoch {epoch} (group {group}), of rank {rank} of {ranks},"

    def _order_by_tag(self, tag: int) -> Order:
        """Return the order that the server knows by this tag. Raises `UsageError`, `ServerError`."""
        what = "this position comes from a BrandSampler of another BrandDataset object; give both the same one"
        if not in_worker():
            raise UsageError(what)
        try:
            return self.resolver.client.order_by_tag(tag, owner=owner_process())
        except UsageError as error:
            raise UsageError(what) from error

    def _read(self, places: NDArray[np.int64], order: Order) -> tuple[list[dict[str, Any]], NDArray[np.int64]]:
        """Return the samples at places that a draw has to read directly, and their indices."""
        try:
            indices = self.data.indices(places)
            return self.samples(indices), indices
        except FormatError:
            if not self._skip:
                raise
        pairs = [self._read_or_replace(place, order) for place in places.tolist()]
        return [sample for sample, _ in pairs], np.array([index for _, index in pairs])

    def _read_or_replace(self, place: int, order: Order) -> tuple[dict[str, Any], int]:
        """Return the sample at a place, or another sample of its group if that one is damaged, and its index."""
        try:
            indices = self.data.indices(np.array([place]))
            return self.samples(indices)[0], int(indices[0])
        except FormatError as error:
            return self._replace(order, -1 if error.sample is None else error.sample, error, place)

    def _replace(
        self, order: Order, index: int, error: FormatError, place: int | None = None
    ) -> tuple[dict[str, Any], int]:
        """Return another sample of the group in place of sample `index`, and its index.

        Raises `error` if there is none.

        Takes a readable sample of the next chunk; for different samples of one chunk, different ones. `place` is the
        place of sample `index`, if the caller knows it.
        """
        place = int(self.data.places(np.array([index]))[0]) if place is None else place
        first = place // order.mapping.group_size * order.mapping.group_size
        group = np.arange(first, min(first + order.mapping.group_size, order.samples))
        drawn = group if order.ever is None else group[order.ever.at(group)]
        size, chunk = len(drawn), order.chunk_size * len(drawn) // len(group)
        step = next(step for step in range(chunk + 1, chunk + size + 2) if gcd(step, size) == 1)
        for number in range(1, min(size, _TRIES)):  # all samples of a small group
            instead = int(drawn[(int(np.searchsorted(drawn, place)) + number * step) % size])
            try:
                other = int(self.data.indices(np.array([instead]))[0])
                sample = self.samples(np.array([other]))[0]
                for media in self.decoding.media:
                    media.value(sample[media.name], 0)
            except (FormatError, ValueError):
                continue
            self._replacements.note(index, other, error)
            self.resolver.client.report(Replaced(index, other, error.chunk, str(error)))
            return sample, other
        raise error


class Replacements(Reprs, shows="_repeats.counted"):
    """Writes replacements to the log, from any thread. A pickled copy in another process begins with no counts."""

    def __init__(self) -> None:
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        self._lock, self._repeats = threading.Lock(), Repeats[int](EVERY_S)

    def __reduce__(self) -> tuple[type[Replacements], tuple[()]]:
        return Replacements, ()

    def note(self, index: int, by: int, error: FormatError) -> None:
        """Log or count that sample `by` has replaced sample `index`, which cannot be read."""
        now_s = time.monotonic()
        with self._lock:
            sums = list(self._repeats.overdue(now_s))
            told = self._repeats.tell(-1 if error.chunk is None else error.chunk, now_s)
        _sum_up(sums)
        if told:
            log.warning("sample %d is replaced by sample %d: %s", index, by, error)

    def epoch_ended(self) -> None:
        """Log the sum of the replacements that were counted."""
        with self._lock:
            sums = list(self._repeats.rest(time.monotonic()))
        _sum_up(sums)


def _sum_up(sums: Iterable[tuple[int, int, float]]) -> None:
    samples = [count for _, count, _ in sums]
    if samples:
        longest = max(seconds for _, _, seconds in sums)
        what = f"{counted(sum(samples), 'more sample')} of {counted(len(samples), 'chunk')}"
        log.warning("%s replaced within %.0f s; stats()['replaced'] lists them", what, longest)


def _reset_in_child() -> None:
    """Reset the counts in a forked child, and locks that a thread of its parent may hold."""
    for replacements in list(_all):
        replacements._reset()


after_in_child(_reset_in_child)
