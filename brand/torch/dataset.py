"""`BrandDataset`: how does `ds[i]` become exactly sample `i`, as a training script wants it?

A plain int is an exact read, with no side effect. A ticket, which a `BrandSampler` makes, is a draw: the data set asks
the node server for the sample at its position, with one request for the whole batch. It reads samples that the server
does not have in memory exactly. Both ways end in the same records, so decoding, checks and errors are the same.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brand.errors import SchemaError, UsageError, counted
from brand.formats.preparation import Preparation, checked
from brand.formats.version import Version
from brand.node.client.client import Client
from brand.node.setup.caching import CacheOf, as_cache
from brand.node.setup.choose import ProtocolChoice
from brand.node.setup.memory import Memory, check_memory, memory_bytes
from brand.node.setup.tls import Tls
from brand.node.wire.drawing import Announcement
from brand.node.wire.looping import LoopReport
from brand.node.wire.messages import GOES_ON, MAX_NAME, UNTOLD
from brand.protocol.joins import Joins
from brand.protocol.order import Order
from brand.protocol.part import Part
from brand.protocol.tickets import TICKET, TICKETS_END
from brand.storage.catalogue import Catalogue
from brand.storage.dataset import StoredDataSet
from brand.storage.location import Collected, Where
from brand.storage.versions import pinned
from brand.stores.url import is_url
from brand.torch.drawable import Drawable
from brand.torch.fetch import MEDIA, Fetcher
from brand.torch.fetched import Fetched
from brand.torch.habit import ReadingHabit
from brand.torch.labels import class_to_idx, targets, transform_hint
from brand.torch.ordering import Ordering
from brand.torch.origin import turn_of
from brand.torch.parts import indices_of
from brand.torch.sequence import OfOneSet
from brand.torch.way import COMMON, Way

Transform = Callable[[Any], Any] | Mapping[str, Callable[[Any], Any]]


class BrandDataset(Drawable):
    """A converted data set as a map-style PyTorch data set: `len(ds)`, `ds[i]`, and one call for a batch.

    `ds[i]` is exactly sample `i` of the source: a dict of its fields with its `index` and `key`, or a tuple where
    `fields` names fields and their order, as `ImageFolder` gives `(image, label)`. Picklable, works under fork, spawn
    and forkserver, with any number of DataLoader workers and from several threads. Opening reads no sample, starts no
    server and waits for no other rank.

    PyTorch's default collate makes batches of tensors, numbers and strings, not of Pillow images: `transform` turns a
    picture into a tensor.

    Plain indices are read exactly, one by one. A `BrandSampler` draws instead: in random order at the speed of
    sequential storage, from memory that a node server shares among all workers and ranks of this machine. The server is
    a separate process, which starts with the first draw and ends with the training (Linux only).

    Args:
        path: The data set's folder, its URL (`s3://bucket/photos.brand`, see `docs/stores.md`), or its `Location`. A
            server that starts by itself reads what the location names. Of a collection, `photos.brand` is the present
            version, and stays this one, whatever is appended; `photos.brand@3` is version 3.
        transform: A function of the whole sample (dict or tuple), or a dict `{field: function}` for single fields.
        fields: Fields to return, as a tuple in this order; `index` and `key` may be among them. None: all, as a dict.
        decode: Whether images become RGB Pillow images and audio `Waveform(samples, rate)`; else both are the file's
            bytes.
        prepare: A dict `{field: Picture(...)}` or `{field: Sound(...)}`: these fields become arrays of the size or rate
            that the model wants, before `transform`. JPEG is then decoded at a fraction of its size where that is
            enough.
        memory: How much of the data the node server may hold: `"2GB"`, a number of bytes, or a fraction of the data
            as a float; None: a quarter of what this process may still use.
        protocol: `"stripes"`, `"slots"` (the paper's), `"uniform"` (each order equally likely), or `Stripes(...)`,
            `Slots(...)` with their options, `Uniform()`; `"shared"` where several jobs train on the data set at a time;
            to compare, the baselines `Pool(chunks=...)` and `MinIO()`.
        server: Address of a running server (`brand serve` prints it), instead of one that starts by itself.
            `"common"`: one for all jobs of this user on this machine; the first of them starts it.
        job: With `server=`: a name of this training among those of the server; all its processes give the same one.
            None: the launcher's, or one of its own.
        on_error: What a draw of a damaged sample does: `"raise"` an error, or `"skip"`: another sample of its group
            takes its place, and `stats()["replaced"]` lists both.
        remote_memory: In a job on several nodes: how much of a node server's memory may hold samples that other nodes
            send ahead; None: a tenth.
        tls: Certificates with which node servers speak to each other; None: messages are not encrypted.
        cache: A folder on a local disk, or `Cache(...)` with its size: there the node server keeps what it has read,
            for the next epochs and the next training. None: it keeps samples in memory only.

    Raises:
        NotADataSetError, FormatError: `path` is no data set, or a damaged one.
        SchemaError: `fields`, `transform` or `prepare` names a field that is not there, or is of another kind.
    """

    def __init__(  # noqa: PLR0913 - a keyword each
        self,
        path: Where,
        *,
        transform: Transform | None = None,
        fields: Sequence[str] | None = None,
        decode: bool = True,
        prepare: Mapping[str, Preparation] | None = None,
        memory: Memory = None,
        protocol: ProtocolChoice = "stripes",
        server: str | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        remote_memory: Memory = None,
        tls: Tls | None = None,
        cache: CacheOf = None,
        job: str | None = None,
    ) -> None:
        self._stored = StoredDataSet(path)
        self.path = self._stored.path if is_url(path) or not isinstance(path, str | os.PathLike) else Path(path)
        """The folder that has the manifest and the index; of a data set at a URL, that of their copies."""
        self.name = self._stored.name if self._stored.location.in_store else str(self.path)
        """What names the data set to users: its path, or its URL; of a collection, the version: `photos.brand@3`."""
        if self._stored.version is not None:
            self.path, self.name = self._stored.path, pinned(str(self.path), self._stored.version.number)
        self.transform, self.decode = transform, decode
        self.fields = None if fields is None else _as_names(fields)
        known = {*self._stored.schema, "index", "key"}
        asked = [*(self.fields or ()), *(transform if isinstance(transform, Mapping) else ())]
        for name in asked:
            if name not in known:
                raise SchemaError(f"no field {name!r}; this data set has {', '.join(sorted(known))}")
        if isinstance(transform, Mapping) and self.fields is not None and (extra := set(transform) - set(self.fields)):
            raise SchemaError(
                f"transform names {', '.join(sorted(extra))}, which is not among the fields {', '.join(self.fields)}"
            )

        if on_error not in ("raise", "skip"):
            raise UsageError(f"on_error={on_error!r}: give 'raise' or 'skip'")
        check_memory(memory)
        check_memory(remote_memory)
        self.memory, self.protocol, self.server, self.on_error = memory, protocol, server, on_error
        self.remote_memory, self.tls = remote_memory, tls
        if cache is not None and server not in (None, COMMON):
            raise UsageError(f"cache= is the server's: start it with `brand serve {self.name} --cache FOLDER`")
        self.cache = as_cache(cache)
        if job is not None and (server is None or not 0 < len(job) <= MAX_NAME):
            raise UsageError(f"job= names a job of a server, in at most {MAX_NAME} characters: give server=, too")
        self.prepare = checked(prepare or {}, self._stored.header.schema, self.fields, decode=decode)
        self.job = job
        self._way = Way(
            self._stored,
            server=server,
            memory=memory,
            remote_memory=remote_memory,
            tls=tls,
            cache=self.cache,
            prepare=self.prepare,
            job=job,
        )
        self._fetcher = Fetcher(
            self._stored, self._way, self.fields, decode=decode, skip=on_error == "skip", prepare=self.prepare
        )
        self.ordering = Ordering(self._stored, self._way, protocol, memory, remote_memory, attached=server is not None)
        """In which orders samplers draw from it."""
        self._habit = ReadingHabit()

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._stored)

    def __getitem__(self, index: int) -> Any:
        """Sample `index`; a negative one counts from the end. Raises IndexError, `FormatError` for a damaged sample."""
        return super().__getitem__(index)

    def fetch(self, indices: Sequence[int] | NDArray[np.int64]) -> Fetched:
        """The samples with these indices or tickets, not decoded yet. `BrandLoader` calls this."""
        asked = self._asked(indices)
        if not len(asked) or not TICKET <= int(asked.max()) < TICKETS_END:
            asked = self._indices(asked)
            self._habit.note(asked, self)
        else:
            self._habit.note_draw(len(asked), self)
        return self._fetcher.fetch(asked)

    def __repr__(self) -> str:
        header = self._stored.header
        fields = ", ".join(f"{name}: {codec}" for name, codec in self.schema.items())
        chunks = f"{counted(header.chunks, 'chunk')} of {header.chunk_size:,}"
        return f"BrandDataset({self.name!r}, {counted(len(self), 'sample')}, {chunks}, {{{fields}}})"

    @property
    def schema(self) -> dict[str, str]:
        """Field name -> codec, in storage order."""
        return self._stored.schema

    @property
    def classes(self) -> list[str] | None:
        """Names of the labels, by label; None where labels have no names."""
        return self._stored.classes

    @property
    def targets(self) -> NDArray[np.int64]:
        """The label of each sample, shape (len,), as `ImageFolder.targets`: a read-only array in memory, no list.

        Raises `NoLabelsError`, an AttributeError, where there is no `int` field `label`.
        """
        return targets(self._stored)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class name -> label, as `ImageFolder.class_to_idx`. Raises `NoLabelsError` where classes have no names."""
        return class_to_idx(self._stored)

    def column(self, name: str) -> NDArray[Any]:
        """An `int` or `float` field of all samples, by index, shape (len,). Reads no chunk.

        For example `ds.column("label")`.
        """
        return self._stored.column(name)

    @property
    def id(self) -> str:
        """Identity of the data set: 32 hexadecimal digits, the same wherever it is copied. Each version has its own."""
        return self._stored.id

    @property
    def version(self) -> Version | None:
        """The version of the collection that this is; None for a data set of its own."""
        return self._stored.version

    def check_ranks(self, replicas: int) -> None:
        """Raise `UsageError` where several ranks open a collection without saying which version."""
        location = self._stored.location
        if replicas > 1 and isinstance(location, Collected) and not location.pinned:
            raise UsageError(
                f"{replicas} ranks draw from {self.name.rpartition('@')[0]}, and samples that are appended while they "
                f"start would give them different versions. Name the version, '{self.name}': it also fits the states "
                "of the run, when it is resumed"
            )

    def present(self) -> NDArray[np.int64]:
        """Indices of all samples but those deleted from a collection, ascending."""
        return self._stored.present()

    def sequence(self, seed: int, origin: str, *, part: ArrayLike | None, shuffle: bool) -> OfOneSet:
        """What a sampler draws. Raises `UsageError`."""
        return OfOneSet(self, self.ordering.order(seed, part), seed, origin, shuffle=shuffle)

    @property
    def catalogue(self) -> Catalogue:
        """Where each sample is, and the columns."""
        return self._stored

    def indices_of(self, part: Part) -> NDArray[np.int64]:
        """Indices of the samples of a part, ascending."""
        return indices_of(self._stored, part)

    def announce(
        self,
        order: Order,
        epoch: int,
        position: int,
        ranks: tuple[int, int],
        batch: int = 0,
        processes: int = 1,
        *,
        origin: str,
    ) -> NDArray[np.int64] | None:
        """A sampler is about to draw, so the node server begins to read. `ranks` is (rank, number of ranks).

        `processes` processes share the positions of the rank (`brand.torch.dealing`); or `GOES_ON`, `UNTOLD` (see
        `brand.node.wire.messages`). `origin` says where the program makes the sampler
        (`brand.torch.origin`).

        `batch` is the samples of a batch of each rank, with `locality`: the result is then the positions of this rank,
        once all ranks have announced theirs; else None. Raises `ServerError`, `UsageError`.
        """
        shared = ranks[1] > 1 or processes not in (1, GOES_ON, UNTOLD)
        turn = turn_of(order, origin) if shared else None
        return self._node.begin(
            order, self.tag_of(order), Announcement(epoch, position, *ranks, batch, processes), turn
        )

    def draw(self, tickets: NDArray[np.int64]) -> Fetched:
        """The samples for these tickets of one epoch: the part of a mixture's request that is for this data set."""
        return self._fetcher.fetch(tickets)

    def come_to(self, tag: int, epoch: int) -> None:
        """This process goes on with the next epoch of the order with this tag. Raises `ServerError`, `UsageError`."""
        self._node.begin(self._fetcher.order_of(tag), tag, Announcement(epoch, processes=GOES_ON))

    def knows(self, tag: int) -> bool:
        """Whether a sampler that draws from this data set has this tag. May ask the node server."""
        try:
            self._fetcher.order_of(tag)
        except UsageError:
            return False
        return True

    def joins(self, order: Order, epoch: int) -> Joins:
        """Where a run with this order joined others in an epoch (`protocol="shared"`)."""
        return self._node.joins(order, epoch) if order.joins and self._way.settled else Joins()

    def learn_joins(self, order: Order, epoch: int, joins: Joins) -> None:
        """A state says where its run joined others in an epoch."""
        self._node.learn_joins(order, epoch, joins)

    def drawn(self, order: Order, epoch: int, position: int) -> NDArray[np.int32]:
        """The places drawn before a position of an epoch, where the order is decided while jobs draw."""
        return self._node.orders.drawn(order, epoch, position)

    def load_drawn(self, order: Order, epoch: int, places: NDArray[np.int32]) -> None:
        """A state says which places were drawn before it, where the order is decided while jobs draw."""
        self._node.orders.load(order, epoch, places)

    def stats(self) -> dict[str, Any]:
        """What the node server has done so far (`docs/statistics.md`); an empty dict before the first draw."""
        return self._node.stats() if self._way.settled and self._node.running else {}

    def tell_loop(self, report: LoopReport) -> bool:
        """Tell the node server how the training loop of this process waits. Returns whether it was sent."""
        return self._node.tell_loop(replace(report, run=self._node.run)) if self._way.settled else False

    def tag_of(self, order: Order) -> int:
        """The tag of an order's tickets. This data set understands it, and so do its copies in later workers."""
        return self._fetcher.tag_of(order)

    @property
    def _node(self) -> Client:
        return self._way.client

    def _asked(self, indices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """The ints of a sampler or a user as an array. Raises IndexError, TypeError."""
        if isinstance(indices, np.ndarray) and indices.dtype == np.int64:
            return indices
        length = len(self)
        try:
            return np.fromiter(map(operator.index, indices), np.int64, len(indices))
        except OverflowError:
            wrong = next(i for i in map(operator.index, indices) if not -length <= i < length)
            raise IndexError(f"sample {wrong} is out of range: there are {length:,} samples") from None
        except TypeError:
            kinds = {type(i).__name__ for i in indices} - {"int"}
            hint = "; torch.utils.data.Subset(ds, range(...)) is a part of it" if "slice" in kinds else ""
            raise TypeError(f"samples are asked for by int, not by {', '.join(sorted(kinds))}{hint}") from None

    def _indices(self, asked: NDArray[np.int64]) -> NDArray[np.int64]:
        """Indices from 0 on, for indices that may be negative. Raises IndexError."""
        length = len(self)
        if asked.size and not (-length <= asked.min() and asked.max() < length):
            wrong = int(asked[(asked < -length) | (asked >= length)][0])
            raise IndexError(f"sample {wrong} is out of range: there are {length:,} samples")
        return np.where(asked < 0, asked + length, asked)

    @property
    def mean_bytes(self) -> float:
        """Mean size of a stored sample."""
        return self._stored.mean_bytes

    @property
    def server_bytes(self) -> int | None:
        """How many bytes the node server may hold; None where only the server knows."""
        if self.memory is None or self.server is not None:
            return None
        return memory_bytes(self.memory, int(len(self) * self.mean_bytes))

    @property
    def plain(self) -> bool:
        """Whether samples come as they are stored: nothing is decoded or transformed."""
        return self.transform is None and not self._fetcher.media

    @property
    def files(self) -> set[str]:
        """Fields that hold the bytes of an image or audio file."""
        return {name for name, codec in self._stored.header.schema.fields if codec in MEDIA}

    def finish(self, samples: list[dict[str, Any]]) -> list[Any]:
        """Samples as the user wants them: with the chosen fields, transformed."""
        transform = self.transform
        if isinstance(transform, Mapping):
            for values in samples:
                values.update({name: function(values[name]) for name, function in transform.items()})
        names = self.fields
        chosen = samples if names is None else [tuple([values[name] for name in names]) for values in samples]
        if not callable(transform):
            return chosen
        try:
            return [transform(sample) for sample in chosen]
        except (TypeError, AttributeError) as error:
            error.add_note(transform_hint(names, self.files))
            raise


def _as_names(fields: Sequence[str]) -> tuple[str, ...]:
    if isinstance(fields, str):
        raise UsageError(f"fields={fields!r}: give a tuple of names, ({fields!r},)")
    return tuple(fields)
