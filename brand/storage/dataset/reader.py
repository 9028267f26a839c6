"""`brand.open` and the `Reader` that it returns: a data set without PyTorch and without a data server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brand.storage.dataset.dataset import StoredDataSet
from brand.storage.dataset.scan import OnScanned, scan
from brand.storage.io.location import Where


class Reader:
    """A data set opened for reading. `brand.open` returns it.

    Opening reads nothing of the samples and of the index. Several threads may use one `Reader`, also after a fork.
    Picklable: another process opens the files again.
    """

    def __init__(self, where: Where) -> None:
        self._data = StoredDataSet(where)

    def __reduce__(self) -> tuple[Any, ...]:
        return Reader, (self._data.location,)

    def __len__(self) -> int:
        """Return the number of indices, including those of deleted samples."""
        return len(self._data)

    def __repr__(self) -> str:
        return f"Reader({self._data.facts})"

    @property
    def name(self) -> str:
        """Path or URL of the data set."""
        return self._data.name

    @property
    def schema(self) -> dict[str, str]:
        """Field name -> codec, in storage order, followed by the overlays of a collection."""
        return self._data.schema

    @property
    def classes(self) -> list[str] | None:
        """Names of the labels, by label; None if the labels have no names."""
        return self._data.classes

    def classes_of(self, field: str) -> list[str]:
        """Return the names of the values of a field, such as "fine_label", by value; -1 has none.

        Raises `NoLabelsError` if the values have no names.
        """
        return self._data.classes_of(field)

    def sample(self, index: int) -> dict[str, Any]:
        """Return all fields of one sample, images and audio as bytes.

        Raises `FormatError`, `ElsewhereError`, `DeletedError`, IndexError.
        """
        return self._data.sample(index)

    def samples(self, indices: Sequence[int] | NDArray[np.integer[Any]]) -> list[dict[str, Any]]:
        """Return the samples with these indices (each 0 <= i < len), in this order, read together.

        Each has all fields, images and audio as bytes, and the overlays of a collection. Raises `FormatError`,
        IndexError, `DeletedError`, and `ElsewhereError` if a sample is in the partition of another node.
        """
        return self._data.samples(indices)

    def scan(
        self,
        fields: Sequence[str] | None = None,
        subset: ArrayLike | str | None = None,
        *,
        on_progress: OnScanned | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Iterate over the samples in the order in which they are stored, with large reads, in several threads.

        Each sample is a dict with its `index`, images and audio as bytes. Memory holds a few reads, for any number of
        samples. Deleted samples are left out. The threads end with the iteration, also if it is left early.

        Args:
            fields: Fields to return, `index` among them or not. None: all, and `index`.
            subset: The samples to read, as for `BrandSampler`: a bool for each sample, their indices, or an expression
                over columns as a text, such as `"label in [3, 5]"`. None: all.
            on_progress: Called after each read as `on_progress(done, of, bytes)`: the samples that were delivered, the
                samples in all, and the stored bytes of those delivered.

        Raises:
            SchemaError: `fields` names a field that does not exist.
            UsageError: `subset` is not valid, or has no sample.
            FormatError: A sample is damaged; while iterating.
            ElsewhereError: A sample is in the partition of another node; while iterating.
        """
        return scan(self._data, fields, subset, on_progress)

    def __iter__(self) -> NoReturn:
        """Refuse to iterate: a loop might expect the order of the indices, which is slow. Raises TypeError."""
        raise TypeError(
            "a Reader is not iterated over: reader.scan() yields all samples in the order in which they are stored, "
            "each with its index, at the speed of sequential reads; reader.sample(i) is sample i"
        )

    def column(self, name: str) -> NDArray[Any]:
        """Return an `int` or `float` field of all samples by index, shape (len,), read-only; 8 bytes a sample.

        For a collection, this may also be an overlay. A deleted sample has the value -2^63 or NaN there. `brand verify`
        compares the column with the samples; this method does not. Raises `SchemaError` for other fields,
        `FormatError`.
        """
        return self._data.column(name)

    def present(self) -> NDArray[np.int64]:
        """Return the indices of the samples that were not deleted, ascending."""
        return self._data.present()


def open(where: Where) -> Reader:  # noqa: A001 - `brand.open`
    """Open a data set to read from it in this process, without PyTorch and without a data server.

    `where` is the path of its folder, or its URL. No samples are read. A process that has read from an object store
    cannot be forked: a forked process that also reads from it gets a `UsageError`.

    Raises `UsageError`, `StorageError`, `FormatError`.
    """
    return Reader(where)
