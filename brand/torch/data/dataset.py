"""`BrandDataset`: how does `ds[i]` become sample `i`, in the form that a training script needs?

A plain int is a direct read, without side effects. A ticket, which a `BrandSampler` makes, is a draw: the data set asks
the data server for the sample at the ticket's position, with one request for the whole batch. If the server does not
have a sample in memory, the data set reads it directly. Both ways return the same records, so decoding, checks and
errors are the same.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from brand.errors import NoLabelsError, SchemaError, UsageError, counted
from brand.formats.preparation import DecodeAudio, DecodeImage, checked, resolved
from brand.formats.version import Version
from brand.node.client.direct import SERVER_ONLY
from brand.node.setup.caching import CacheOf, as_caches
from brand.node.setup.memory import Memory, check_memory
from brand.node.setup.server_spec import Tls
from brand.node.wire.messages import MAX_NAME
from brand.orders.policies.registry import OrderOption
from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.io.location import Where, pinned
from brand.stores.url import is_url
from brand.torch.data.drawable import Drawable
from brand.torch.data.expanded import ExpandedSource
from brand.torch.data.set_source import SetSource, Transform
from brand.torch.fetch.fetch import Fetcher
from brand.torch.job.resolver import COMMON, NONE, ServerOptions, ServerResolver
from brand.torch.job.wrappers import refuse_create_loader
from brand.torch.order.draw_port import DrawPort

_LABEL = "label"


class BrandDataset(Drawable):
    """A converted data set as a map-style PyTorch data set: `len(ds)`, `ds[i]`, and one call for a batch.

    `ds[i]` is sample `i` of the source: a dict of its fields with its `index` and `key`. If `fields` is given, it is a
    tuple of these fields, as `ImageFolder` returns `(image, label)`. A `BrandDataset` can be pickled, and works under
    fork, spawn and forkserver, with any number of DataLoader workers and from several threads. Opening it reads no
    sample, starts no server and waits for no other rank.

    PyTorch's default collate makes batches of tensors, numbers and strings, but not of Pillow images. If samples have
    images, give a `transform` that turns an image into a tensor. The lists of a list field stay lists in a batch.

    Plain indices are random access: one read for each sample. With a `BrandSampler`, samples are fetched in shuffled
    order at the speed of sequential reads, from the memory of a data server that all workers and ranks of this machine
    share. The server is a separate process, which starts with the first fetch and ends with the training (Linux only).

    Args:
        path: The data set's folder, its URL (`s3://bucket/photos.brand`, see `docs/guides/object-stores.md`), or its
            `Location`. A server that starts by itself reads from this location. If the data set is a collection,
            `photos.brand` is the newest version at the time of opening, whatever is appended later; `photos.brand@3` is
            version 3.
        transform: A function of the whole sample (dict or tuple), or a dict `{field: function}` for single fields.
        fields: Fields to return, as a tuple in this order; `index` and `key` may be among them. None: all, as a dict.
        decode: True: images become RGB Pillow images and audio `Waveform(samples, rate)`. False: both are the file's
            bytes. A dict `{field: DecodeImage(...)}` or `{field: DecodeAudio(...)}`: these fields become arrays of the
            size or rate that the model needs, before `transform`, and other fields are decoded as with True. In a field
            of lists, each element is decoded. If a fraction of its size is enough, a JPEG is decoded at that fraction.
        memory: Memory of the data server for samples: `"2GB"`, or a fraction of the data as a float, such as 0.25 (1.0
            is all of it). An int is a number of bytes, at least 1 MiB. None: a quarter of the memory that this process
            may still allocate.
        order: How an epoch is shuffled: `"stripes"`, `"slots"` (Brand, section 3.3) or `"uniform"` (each order is
            equally likely), or `Stripes(...)`, `Slots(...)`, `Uniform()` with their options. `"shared"` if several jobs
            train on the data set at a time. `"storage"`, for evaluation: not shuffled, but chunk by chunk. To compare
            with other systems: `brand.orders.baselines`.
        server: Address of a running data server (`brand serve` prints it). None: one starts by itself. `"common"`: one
            for all jobs of this user on this machine; the first of them starts it. `"none"`: this process and its
            DataLoader workers read each sample directly, in the same order and with the same states, but slower; so
            they do, with a warning, on a system on which no server can run.
        job: Name of this training among the jobs of the server. Needs `server=`; all processes of the training give the
            same name. None: the launcher's name, or a random one.
        on_error: If a sampler fetches a damaged sample: `"raise"` an error, or `"skip"` it: another sample of its group
            replaces it, and `stats()["replaced"]` lists both. Random access always raises an error.
        peer_memory: In a job on several nodes: the memory of a data server that may hold samples which other nodes send
            ahead, as a size or as a fraction of its memory, at most half of it; None: a tenth.
        tls: Certificates with which data servers of several nodes prove their addresses and encrypt their messages;
            None: no encryption.
        cache: A folder on a local disk, or `Cache(...)` with its size. The data server stores samples there that it has
            read, for later epochs and later trainings. A list: several disks, the fastest one first. None: it holds
            samples in memory only.
        expand: A field of lists, such as `"captions"`: each of its elements becomes a sample, with the other fields of
            the sample that it belongs to. Such a sample has one text in place of the list, and `len`, indices, columns
            and `subset=` count these samples. Not for lists of images or audio.

    Raises:
        NotADataSetError, FormatError: `path` is not a data set, or a damaged one.
        SchemaError: `fields`, `transform` or `decode` names a field that does not exist or has another codec.
        UsageError: Another argument is not valid, or arguments contradict each other.
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
        expand: str | None = None,
    ) -> None:
        data = StoredDataSet(path)
        self.path = data.path if is_url(path) or not isinstance(path, str | os.PathLike) else Path(path)
        """The folder of the manifest and the index. For a data set at a URL, the folder of their copies."""
        name = data.name if data.location.in_store else str(self.path)
        if data.version is not None:
            self.path, name = data.path, pinned(str(self.path), data.version.number)
        names = None if fields is None else _as_names(fields)
        _check_names(data, names, transform)
        if on_error not in ("raise", "skip"):
            raise UsageError(f"on_error={on_error!r}: give 'raise' or 'skip'")
        check_memory(memory)
        check_memory(peer_memory, "peer_memory", "the memory")
        if server == NONE and (cache is not None or job is not None):
            raise UsageError(SERVER_ONLY.format("cache=" if job is None else "job="))
        if cache is not None and server not in (None, COMMON):
            raise UsageError(f"cache= is the server's: start it with `brand serve {name} --cache FOLDER`")
        if job is not None and (server is None or not 0 < len(job) <= MAX_NAME):
            raise UsageError(f"job= names a job of a server, in at most {MAX_NAME} characters: give server=, too")
        if not isinstance(decode, bool | Mapping):
            raise UsageError(f"decode={decode!r:.60}: give True, False, or a dict such as {{'image': DecodeImage()}}")
        specs = checked({} if isinstance(decode, bool) else decode, data.header.schema, names)
        specs = resolved(specs, data.header.decode)
        resolver = ServerResolver(data, ServerOptions(server, memory, peer_memory, tls, as_caches(cache), job, specs))
        fetcher = Fetcher(data, resolver, names, decode=decode is not False, skip=on_error == "skip")
        port = DrawPort(name, fetcher, order)
        self._source = (
            SetSource(port, names, transform) if expand is None else ExpandedSource(port, names, transform, expand)
        )

    @classmethod
    def from_folder(
        cls,
        root: str | os.PathLike[str],
        chunk_size: int | Literal["profile"] = 64,
        where: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> Self:
        """Open a folder of images or audio as it is: the first use converts it to chunks, and later uses find these.

        The samples are those of `brand convert images ROOT` or `brand convert audio ROOT`, without other options. Each
        byte of the chunks is checked once, before they are loaded. If several processes of one or more machines call
        at the same time, one of them converts and the others wait for it. A conversion that was killed continues with
        the next call. Each call lists the folder: if a name, a size or a date of a file has changed, the folder is
        converted again to a new data set, and the log names the earlier one, which is not removed (Brand, sections 3.2
        and 4.2).

        Args:
            root: A folder on this machine, of class folders or of files.
            chunk_size: Samples per chunk; 64 is the size of the paper (section 5.5). `"profile"`: as many as make four
                reads of the size that `brand profile` has found for the storage of `where`.
            where: The folder for the chunks, outside of `root`; it needs room for a copy of the data. None:
                `brand/folders` below `XDG_CACHE_HOME` or `~/.cache`. The log names the data set, and so does `path`.
            options: Other arguments of `BrandDataset`.

        Raises:
            UsageError: There is no such folder, `where` is in it, or its storage has no profile.
            SourceError: A file cannot be used, there are none, or they changed while they were converted.
            StorageError: `root` cannot be read, or `where` cannot be written.
            InterruptedConversionError: A worker process died, or the process that converts has made no progress for 10
                minutes. The same call continues its work.
            FormatError: The chunks that were just written are damaged.
            TypeError: `BrandDataset` has no such argument. Nothing was converted.
        """
        inspect.signature(cls).bind(root, **options)  # not after hours of work
        first_use = import_module("brand.firstuse")  # in a layer above this one: it needs the chunker
        return cls(first_use.chunks_of(root, chunk_size, where), **options)

    def __getitem__(self, index: int) -> Any:
        """Return sample `index`, by random access; a negative index counts from the end.

        Raises IndexError if there is no such sample, `FormatError` if the sample is damaged.
        """
        return super().__getitem__(index)

    def __repr__(self) -> str:
        header = self._source.data.header
        fields = ", ".join(f"{name}: {codec}" for name, codec in self.schema.items())
        chunks = f"{counted(header.chunks, 'chunk')} of {header.chunk_size:,}"
        return f"BrandDataset({self.name!r}, {counted(len(self), 'sample')}, {chunks}, {{{fields}}})"

    @property
    def transform(self) -> Transform | None:
        """The function of a sample, or the functions by field; None if there is none. May be assigned."""
        return self._source.transform

    @transform.setter
    def transform(self, transform: Transform | None) -> None:
        refuse_create_loader()
        self._source.set_transform(transform)

    @property
    def schema(self) -> dict[str, str]:
        """Field name -> codec, in storage order."""
        return self._source.schema

    @property
    def classes(self) -> list[str] | None:
        """Names of the labels, by label; None if labels have no names."""
        return self._source.data.classes

    def classes_of(self, field: str) -> list[str]:
        """Return the names of the values of a field, such as "fine_label", by value; -1 has none.

        Raises `NoLabelsError` if the values have no names.
        """
        return self._source.data.classes_of(field)

    @property
    def targets(self) -> NDArray[np.int64]:
        """The label of each sample, shape (len,), as `ImageFolder.targets`, but a read-only array instead of a list.

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
        """Return an `int` or `float` field of all samples, by index, shape (len,), such as "label". Reads no chunk."""
        return self._source.column(name)

    @property
    def id(self) -> str:
        """Identity of the data set: 32 hexadecimal digits. All copies have the same id; each version has its own."""
        return self._source.data.id

    @property
    def version(self) -> Version | None:
        """The version of the collection; None if the data set is not a collection."""
        return self._source.data.version

    def present(self) -> NDArray[np.int64]:
        """Return the indices of all samples that are not deleted from the collection, ascending."""
        return self._source.present()


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
