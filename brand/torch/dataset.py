"""`BrandDataset`: how does `ds[i]` become exactly sample `i`, as a training script wants it?

A plain int is an exact read, with no side effect. A ticket, which a `BrandSampler` makes, is a draw: what comes at its
position is asked of the node server, one request for the whole batch, and what the server does not have in memory is
read exactly. Both ways end in the same records, so decoding, checks and errors are the same.
"""

from __future__ import annotations

import hashlib
import operator
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from brand.errors import SchemaError, UsageError, counted
from brand.formats.media import decode_audio, decode_image
from brand.formats.record import RecordDecoder
from brand.node.choose import ProtocolChoice, choose_order
from brand.node.client import Drawn, Node
from brand.node.memory import Memory
from brand.node.messages import MAX_DRAW
from brand.protocol.order import Order
from brand.protocol.tickets import TAGS, TICKET, positions_of, tag_and_epoch
from brand.storage.dataset import StoredDataSet
from brand.torch.habit import ReadingHabit
from brand.torch.ranks import job_name, owner_process

Transform = Callable[[Any], Any] | Mapping[str, Callable[[Any], Any]]

_MEDIA: Final[dict[str, Callable[[Any], Any]]] = {"image": decode_image, "audio": decode_audio}


class BrandDataset(Dataset[Any]):
    """A converted data set as a map-style PyTorch data set: `len(ds)`, `ds[i]`, and one call for a batch.

    `ds[i]` is exactly sample `i` of the source: a dict of its fields with its `index` and `key`, or a tuple where
    `fields` names what and in which order, as `ImageFolder` gives `(image, label)`. Picklable, works under fork, spawn
    and forkserver, with any number of DataLoader workers and from several threads. Opening reads no sample.

    PyTorch's default collate makes batches of tensors, numbers and strings, not of Pillow images: `transform` turns a
    picture into a tensor.

    Plain indices are read exactly, one by one. A `BrandSampler` draws instead: in random order at the speed of
    sequential storage, from memory that a node server shares among all workers and ranks of this machine. It is a
    process of its own, starts with the first draw and ends with the training (Linux only).

    Args:
        path: The data set's folder.
        transform: A function of the whole sample (dict or tuple), or a dict `{field: function}` for single fields.
        fields: Fields to return, as a tuple in this order; `index` and `key` may be among them. None: all, as a dict.
        decode: Whether images become RGB Pillow images and audio `Waveform(samples, rate)`; else both are the file's
            bytes.
        memory: How much of the data the node server may hold: `"2GB"`, a number of bytes, or a fraction of the data
            as a float; None: a quarter of what this process may still use.
        protocol: `"stripes"`, `"slots"` (the paper's), or `Stripes(...)`, `Slots(...)` with their options.
        server: Address of a running server (`brand serve` prints it), instead of one that starts by itself.
        on_error: What becomes of a draw of a damaged sample: `"raise"`, or `"skip"`: another sample of its group takes
            its place, and `stats()["replaced"]` lists both.

    Raises:
        NotADataSetError, FormatError: `path` is no data set, or a damaged one.
        SchemaError: `fields` or `transform` names a field that is not there.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        transform: Transform | None = None,
        fields: Sequence[str] | None = None,
        decode: bool = True,
        memory: Memory = None,
        protocol: ProtocolChoice = "stripes",
        server: str | None = None,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> None:
        self.path, self.transform, self.decode = Path(path), transform, decode
        self.fields = None if fields is None else _as_names(fields)
        self._stored = StoredDataSet(path)
        known = {*self._stored.header.schema.names, "index", "key"}
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
        self.memory, self.protocol, self.server, self.on_error = memory, protocol, server, on_error
        self._orders: dict[int, Order] = {}
        """Orders whose tickets this data set understands, by tag."""
        self._node = Node(
            str(self._stored.path),
            self._stored.id,
            server if server is not None else self._own_address(),
            memory,
            attach=server is not None,
        )
        self._habit = ReadingHabit()

    def __len__(self) -> int:
        """Number of samples."""
        return len(self._stored)

    def __getitem__(self, index: int) -> Any:
        """Sample `index`; negative counts from the end.

        Raises IndexError out of range, `FormatError` for a damaged sample.
        """
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """The samples with these indices, in this order: what DataLoader calls once for each batch."""
        asked = self._asked(indices)
        if len(asked) and int(asked.max()) >= TICKET:
            return self._finished(*self._draw(asked))
        exact = self._indices(asked)
        self._habit.note(exact, self)
        return self._finished(self._stored.samples(exact, self._decoder), exact)

    def __repr__(self) -> str:
        header = self._stored.header
        fields = ", ".join(f"{name}: {codec}" for name, codec in header.schema.fields)
        chunks = f"{counted(header.chunks, 'chunk')} of {header.chunk_size:,}"
        return f"BrandDataset({str(self.path)!r}, {counted(len(self), 'sample')}, {chunks}, {{{fields}}})"

    @property
    def schema(self) -> dict[str, str]:
        """Field name -> codec, in storage order."""
        return dict(self._stored.header.schema.fields)

    @property
    def classes(self) -> list[str] | None:
        """Names of the labels, by label; None where there are none."""
        classes = self._stored.header.classes
        return None if classes is None else list(classes)

    def column(self, name: str) -> NDArray[Any]:
        """An `int` or `float` field of all samples, by index, shape (len,), without reading a chunk:

        `ds.column("label")`.
        """
        return self._stored.column(name)

    @property
    def id(self) -> str:
        """Identity of the data set: 32 hexadecimal digits, the same wherever it is copied."""
        return self._stored.id

    def order(self, seed: int) -> Order:
        """What fixes the order of all epochs of a run with this seed, from the data, the memory and the storage."""
        limit = self._node.limit() if self.server is not None else None
        return choose_order(self._stored, seed, self.protocol, limit, self.memory)

    def announce(self, order: Order, epoch: int, position: int, replicas: int) -> None:
        """A sampler is about to draw: the node server begins to read. Raises `ServerError`, `UsageError`."""
        self._node.begin(order, epoch, position, replicas)

    def stats(self) -> dict[str, Any]:
        """What the node server has done so far (`docs/statistics.md`); an empty dict before the first draw."""
        return self._node.stats() if self._node.running else {}

    def tag_of(self, order: Order) -> int:
        """The tag of an order's tickets, which this data set and its copies in workers made later understand."""
        wanted = int.from_bytes(hashlib.blake2s(repr(order).encode(), digest_size=1).digest()) % TAGS
        for more in range(TAGS):
            tag = (wanted + more) % TAGS
            if self._orders.setdefault(tag, order) == order:
                return tag
        raise UsageError(f"a data set takes the tickets of {TAGS} orders; make another BrandDataset")

    def _own_address(self) -> str:
        """Where the server that starts by itself will listen: one for the ranks of a job on this node."""
        job = job_name()
        facts = secrets.token_bytes() if job is None else f"{job}|{self.id}|{self.memory}".encode()
        return f"unix:@brand-{os.getuid()}-{hashlib.blake2s(facts).hexdigest()[:16]}"

    def _asked(self, indices: Sequence[int]) -> NDArray[np.int64]:
        """What a sampler or a user gave, as an array."""
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
        """Checked public indices."""
        length = len(self)
        if asked.size and not (-length <= asked.min() and asked.max() < length):
            wrong = int(asked[(asked < -length) | (asked >= length)][0])
            raise IndexError(f"sample {wrong} is out of range: there are {length:,} samples")
        return np.where(asked < 0, asked + length, asked)

    def _draw(self, asked: NDArray[np.int64]) -> tuple[list[dict[str, Any]], NDArray[np.int64]]:
        """What comes at the positions of these tickets: samples as they are stored, and their public indices."""
        if int(asked.min()) < TICKET:
            raise UsageError("a batch mixes tickets of a BrandSampler with plain indices; use one or the other")
        samples: list[dict[str, Any]] = [{}] * len(asked)
        places = np.empty(len(asked), np.int64)
        epochs = asked >> 32
        for part in np.unique(epochs).tolist():
            where = np.flatnonzero(epochs == part)
            for start in range(0, len(where), MAX_DRAW):
                which = where[start : start + MAX_DRAW]
                order, epoch = self._order_of(int(asked[which[0]]))
                drawn = self._node.draw(order, epoch, positions_of(asked[which]), owner=owner_process())
                places[which] = drawn.places
                self._take(drawn, which, samples)
        indices = self._stored.indices(places)
        late = [position for position, sample in enumerate(samples) if not sample]
        if late:
            exact = self._stored.samples(indices[late], self._decoder)
            for position, sample in zip(late, exact, strict=True):
                samples[position] = sample
        return samples, indices

    def _take(self, drawn: Drawn, which: NDArray[np.intp], samples: list[dict[str, Any]]) -> None:
        """Decode what came from memory."""
        memory, starts = drawn.memory.data, drawn.starts.tolist()
        ends = (drawn.starts + drawn.rows["size"]).tolist()
        stored = [memory[start:end] for start, end in zip(starts, ends, strict=True)]
        values = self._stored.decoded(drawn.rows, stored, self._decoder)
        for position, sample in zip(which[drawn.present].tolist(), values, strict=True):
            samples[position] = sample

    def _order_of(self, ticket: int) -> tuple[Order, int]:
        """Order and epoch of a ticket."""
        tag, epoch = tag_and_epoch(ticket)
        order = self._orders.get(tag)
        if order is None:
            raise UsageError(
                "this ticket comes from a BrandSampler of another BrandDataset object; give both the same one"
            )
        return order, epoch

    def _finished(self, samples: list[dict[str, Any]], indices: NDArray[np.int64]) -> list[Any]:
        """Samples as the user wants them: decoded, named, transformed."""
        for values, index in zip(samples, indices.tolist(), strict=True):
            values["index"] = index
            if "key" not in values:
                values["key"] = str(index)
            for name, decode in self._media:
                try:
                    values[name] = decode(values[name])
                except ValueError as error:
                    raise self._stored.decode_error(str(error), index, "decode=False gives the file's bytes") from error
        transform = self.transform
        if isinstance(transform, Mapping):
            for values in samples:
                values.update({name: function(values[name]) for name, function in transform.items()})
        names = self.fields
        chosen = samples if names is None else [tuple([values[name] for name in names]) for values in samples]
        return [transform(sample) for sample in chosen] if callable(transform) else chosen

    @cached_property
    def _decoder(self) -> RecordDecoder:
        """Decodes the fields that are wanted."""
        schema = self._stored.header.schema
        return RecordDecoder(schema, None if self.fields is None else [n for n in schema.names if n in self.fields])

    @cached_property
    def _media(self) -> list[tuple[str, Callable[[Any], Any]]]:
        """(name, decoder) of the fields to decode as images or audio."""
        fields = self._stored.header.schema.fields if self.decode else ()
        return [(name, _MEDIA[codec]) for name, codec in fields if codec in _MEDIA and name in self._decoder.names]


def _as_names(fields: Sequence[str]) -> tuple[str, ...]:
    if isinstance(fields, str):
        raise UsageError(f"fields={fields!r}: give a tuple of names, ({fields!r},)")
    return tuple(fields)
