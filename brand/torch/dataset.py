"""`BrandDataset`: how does `ds[i]` become exactly sample `i`, as a training script wants it?

Two steps. `_indices` decides: it turns what a sampler or a user gave into checked public indices. `_fetch` acts: one
call for the whole batch reads, checks and decodes. An index that is a plain int is an exact read, with no side effect;
richer indices are a matter of the deciding step alone.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from brand.errors import SchemaError, UsageError, counted
from brand.formats.media import decode_audio, decode_image
from brand.formats.record import RecordDecoder
from brand.storage.dataset import StoredDataSet

Transform = Callable[[Any], Any] | Mapping[str, Callable[[Any], Any]]

_MEDIA: Final[dict[str, Callable[[Any], Any]]] = {"image": decode_image, "audio": decode_audio}


class BrandDataset(Dataset[Any]):
    """A converted data set as a map-style PyTorch data set: `len(ds)`, `ds[i]`, and one call for a batch.

    `ds[i]` is exactly sample `i` of the source: a dict of its fields with its `index` and `key`, or a tuple where
    `fields` names what and in which order, as `ImageFolder` gives `(image, label)`. Picklable, works under fork, spawn
    and forkserver, with any number of DataLoader workers and from several threads. Opening reads no sample.

    PyTorch's default collate makes batches of tensors, numbers and strings, not of Pillow images: `transform` turns a
    picture into a tensor.

    Args:
        path: The data set's folder.
        transform: A function of the whole sample (dict or tuple), or a dict `{field: function}` for single fields.
        fields: Fields to return, as a tuple in this order; `index` and `key` may be among them. None: all, as a dict.
        decode: Whether images become RGB Pillow images and audio `Waveform(samples, rate)`; else both are the file's
            bytes.

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
        return self._fetch(self._indices(indices))

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

    def _indices(self, indices: Sequence[int]) -> NDArray[np.int64]:
        """Decide: which public indices are asked for?"""
        length = len(self)
        try:
            asked = np.fromiter(map(operator.index, indices), np.int64, len(indices))
        except OverflowError:
            wrong = next(i for i in map(operator.index, indices) if not -length <= i < length)
            raise IndexError(f"sample {wrong} is out of range: there are {length:,} samples") from None
        except TypeError:
            kinds = {type(i).__name__ for i in indices} - {"int"}
            hint = "; torch.utils.data.Subset(ds, range(...)) is a part of it" if "slice" in kinds else ""
            raise TypeError(f"samples are asked for by int, not by {', '.join(sorted(kinds))}{hint}") from None
        if asked.size and not (-length <= asked.min() and asked.max() < length):
            wrong = int(asked[(asked < -length) | (asked >= length)][0])
            raise IndexError(f"sample {wrong} is out of range: there are {length:,} samples")
        return np.where(asked < 0, asked + length, asked)

    def _fetch(self, indices: NDArray[np.int64]) -> list[Any]:
        """Act: read, check, decode and transform these samples."""
        samples = self._stored.samples(indices, self._decoder)
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
