"""`BrandDataset`: how does `ds[i]` become exactly sample `i`, as a training script wants it?

A plain int is an exact read, with no side effect. A ticket, which a `BrandSampler` makes, is a draw: the data set asks
the node server for the sample at its position, with one request for the whole batch. It reads samples that the server
does not have in memory exactly. Both ways end in the same records, so decoding, checks and errors are the same.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from brand.errors import NoLabelsError, SchemaError, UsageError, counted
from brand.formats.preparation import DecodeAudio, DecodeImage, checked
from brand.formats.version import Version
from brand.node.setup.caching import CacheOf, as_cache
from brand.node.setup.memory import Memory, check_memory
from brand.node.setup.tls import Tls
from brand.node.wire.messages import MAX_NAME
from brand.orders.policies.registry import OrderOption
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.location import Where
from brand.storage.io.versions import pinned
from brand.stores.url import is_url
from brand.torch.data.drawable import Drawable
from brand.torch.data.set_source import SetSource, Transform
from brand.torch.fetch.fetch import Fetcher
from brand.torch.job.way import COMMON, ServerOptions, ServerResolver
from brand.torch.order.ordering import Ordering

_LABEL = "label"


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
        decode: True: images become RGB Pillow images and audio `Waveform(samples, rate)`. False: both are the file's
            bytes. A dict `{field: DecodeImage(...)}` or `{field: DecodeAudio(...)}`: these fields become arrays of the
            size or rate that the model needs, before `transform`, and other fields are decoded as with True. A JPEG is
            then decoded at a fraction of its size if that is enough.
        memory: How much of the data the node server may hold: `"2GB"`, or a share of the data as a float, such as
            0.25 (1.0 is all of it); None: a quarter of what this process may still use. An int is bytes, at least
            1 MiB.
        order: `"stripes"`, `"slots"` (the paper's), `"uniform"` (each order equally likely), or `Stripes(...)`,
            `Slots(...)` with their options, `Uniform()`; `"shared"` where several jobs train on the data set at a time;
            to compare, `brand.orders.baselines`.
        server: Address of a running server (`brand serve` prints it), instead of one that starts by itself.
            `"common"`: one for all jobs of this user on this machine; the first of them starts it.
        job: With `server=`: a name of this training among those of the server; all its processes give the same one.
            None: the launcher's, or one of its own.
        on_error: What a draw of a damaged sample does: `"raise"` an error, or `"skip"`: another sample of its group
            takes its place, and `stats()["replaced"]` lists both.
        peer_memory: In a job on several nodes: how much of a node server's memory may hold samples that other nodes
            send ahead; None: a tenth.
        tls: Certificates with which node servers speak to each other; None: messages are not encrypted.
        cache: A folder on a local disk, or `Cache(...)` with its size: there the node server keeps what it has read,
            for the next epochs and the next training. None: it keeps samples in memory only.

    Raises:
        NotADataSetError, FormatError: `path` is no data set, or a damaged one.
        SchemaError: `fields`, `transform` or `decode` names a field that is not there, or is of another kind.
    """

    _source: SetSource

    def __init__(  # noqa: PLR0913 - a keyword each
        self,
        path: Where,
        *,
        transform: Transform | None = None,
        fields: Sequence[str] | None = None,
        decode: bool | Mapping[str, DecodeImage | DecodeAudio] = True,
        memory: Memory = None,
        order: OrderOption = "stripes",
        server: str | None = None,
        on_error: Literal["raise", "skip"] = "raise",
        peer_memory: Memory = None,
        tls: Tls | None = None,
        cache: CacheOf = None,
        job: str | None = None,
    ) -> None:
        data = StoredDataSet(path)
        self.path = data.path if is_url(path) or not isinstance(path, str | os.PathLike) else Path(path)
        """The folder that has the manifest and the index; of a data set at a URL, that of their copies."""
        name = data.name if data.location.in_store else str(self.path)
        if data.version is not None:
            self.path, name = data.path, pinned(str(self.path), data.version.number)
        names = None if fields is None else _as_names(fields)
        _check_names(data, names, transform)
        if on_error not in ("raise", "skip"):
            raise UsageError(f"on_error={on_error!r}: give 'raise' or 'skip'")
        check_memory(memory)
        check_memory(peer_memory, "peer_memory")
        if cache is not None and server not in (None, COMMON):
            raise UsageError(f"cache= is the server's: start it with `brand serve {name} --cache FOLDER`")
        if job is not None and (server is None or not 0 < len(job) <= MAX_NAME):
            raise UsageError(f"job= names a job of a server, in at most {MAX_NAME} characters: give server=, too")
        if not isinstance(decode, bool | Mapping):
            raise UsageError(f"decode={decode!r:.60}: give True, False, or a dict such as {{'image': DecodeImage()}}")
        specs = checked({} if isinstance(decode, bool) else decode, data.header.schema, names)
        way = ServerResolver(data, ServerOptions(server, memory, peer_memory, tls, as_cache(cache), job, specs))
        fetcher = Fetcher(data, way, names, decode=decode is not False, skip=on_error == "skip")
        self._source = SetSource(name, way, fetcher, Ordering(data, way, order), names, transform)

    def __getitem__(self, index: int) -> Any:
        """Sample `index`; a negative one counts from the end. Raises IndexError, `FormatError` for a damaged sample."""
        return super().__getitem__(index)

    def __repr__(self) -> str:
        header = self._source.data.header
        fields = ", ".join(f"{name}: {codec}" for name, codec in self.schema.items())
        chunks = f"{counted(header.chunks, 'chunk')} of {header.chunk_size:,}"
        return f"BrandDataset({self.name!r}, {counted(len(self), 'sample')}, {chunks}, {{{fields}}})"

    @property
    def transform(self) -> Transform | None:
        """The function of a sample, or the functions by field; None: there is none. May be assigned."""
        return self._source.transform

    @transform.setter
    def transform(self, transform: Transform | None) -> None:
        self._source.transform = transform

    @property
    def schema(self) -> dict[str, str]:
        """Field name -> codec, in storage order."""
        return self._source.data.schema

    @property
    def classes(self) -> list[str] | None:
        """Names of the labels, by label; None where labels have no names."""
        return self._source.data.classes

    @property
    def targets(self) -> NDArray[np.int64]:
        """The label of each sample, shape (len,), as `ImageFolder.targets`: a read-only array in memory, no list.

        Raises `NoLabelsError`, an AttributeError, if there is no `int` field `label`.
        """
        fields = dict(self._source.data.header.schema.fields)
        if fields.get(_LABEL) != "int":
            there = ", ".join(f"{name}: {codec}" for name, codec in fields.items())
            raise NoLabelsError(f"targets are those of an 'int' field {_LABEL!r}, and this data set has {there}")
        column: NDArray[np.int64] = self.column(_LABEL).view()
        column.flags.writeable = False
        return column

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class name -> label, as `ImageFolder.class_to_idx`. Raises `NoLabelsError` if classes have no names."""
        if self.classes is None:
            how = "brand.pack(classes=...) names them, and so do the folders of `brand convert images`"
            raise NoLabelsError(f"the labels of this data set have no names; {how}")
        return {name: label for label, name in enumerate(self.classes)}

    def column(self, name: str) -> NDArray[Any]:
        """An `int` or `float` field of all samples, by index, shape (len,). Reads no chunk.

        For example `ds.column("label")`.
        """
        return self._source.data.column(name)

    @property
    def id(self) -> str:
        """Identity of the data set: 32 hexadecimal digits, the same wherever it is copied. Each version has its own."""
        return self._source.data.id

    @property
    def version(self) -> Version | None:
        """The version of the collection that this is; None for a data set of its own."""
        return self._source.data.version

    def present(self) -> NDArray[np.int64]:
        """Indices of all samples but those deleted from a collection, ascending."""
        return self._source.data.present()


def _as_names(fields: Sequence[str]) -> tuple[str, ...]:
    if isinstance(fields, str):
        raise UsageError(f"fields={fields!r}: give a tuple of names, ({fields!r},)")
    return tuple(fields)


def _check_names(data: StoredDataSet, fields: tuple[str, ...] | None, transform: Transform | None) -> None:
    """Raise `SchemaError` if `fields` or `transform` names a field that samples do not have."""
    by_field = transform if isinstance(transform, Mapping) else {}
    known = {*data.schema, "index", "key"}
    for name in (*(fields or ()), *by_field):
        if name not in known:
            raise SchemaError(f"no field {name!r}; this data set has {', '.join(sorted(known))}")
    if fields is not None and (extra := set(by_field) - set(fields)):
        raise SchemaError(
            f"transform names {', '.join(sorted(extra))}, which is not among the fields {', '.join(fields)}"
        )
