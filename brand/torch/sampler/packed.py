"""How do documents become packed rows? With the `collate_fn` of a `PackedBatchSampler`, `PackedRows`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import SchemaError, UsageError, counted
from brand.orders.batches.batching import laid_out
from brand.reprs import Reprs
from brand.torch.data.drawable import SampleSource
from brand.torch.fetch.fetched import Column, Columns
from brand.torch.pytorch import torch

IGNORED: Final = -100
"""The label of tokens that are not to be predicted. PyTorch's `cross_entropy` ignores it."""


class PackedRows(Reprs, shows="_field _row _rows"):
    """Makes a dict of int64 tensors of a list of samples. Can be pickled.

    All but `index` and `member` have shape (rows, row). In an `ArrayLoader`, they are NumPy arrays.

    `input_ids`: tokens, followed by `pad` in the rest of a row. `position_ids`: count from 0 in each document, again
    from 0 in each row, and in padding. `document_ids`: number of the document within the batch, -1 for padding; tokens
    attend to tokens of their row with the same number. `labels`: the tokens, but `IGNORED` for padding and for the
    first token of each document in a row, which no token before it predicts. `index`: index of each document, shape
    (documents,); `member`: the number of its data set in a `Mixture`, if samples are dicts.

    Raises `UsageError` if the documents do not fit, because they are longer than the planned lengths.
    """

    thread_safe: Final = True
    """Threads share it, because it does not change."""

    def __init__(self, source: SampleSource, field: str, row: int, rows: int, pad: int) -> None:
        names = source.fields
        if field not in source.schema or (names is not None and field not in names):
            there = ", ".join(source.schema if names is None else names)
            raise SchemaError(f"no field {field!r} to pack; samples have {there}")
        self._field, self._row, self._rows, self._pad = field, row, rows, pad
        self._at: int | str = field if names is None else names.index(field)
        self._numbers: dict[str, int | str] = {name: name for name in source.numbers}
        """The keys of a sample that hold its index, and the number of its data set."""
        if names is not None:
            self._numbers = {"index": names.index("index")} if "index" in names else {}

    def __call__(self, samples: Sequence[Any]) -> dict[str, torch.Tensor]:
        """Return the tensors of one batch. Its samples must be in the order of the plan."""
        return {name: torch.from_numpy(values) for name, values in self.arrays(samples).items()}

    def arrays(self, samples: Sequence[Any]) -> dict[str, NDArray[np.int64]]:
        """Return the arrays of one batch. Its samples must be in the order of the plan."""
        numbers = {name: [int(sample[at]) for sample in samples] for name, at in self._numbers.items()}
        return self._made([np.asarray(sample[self._at]).ravel() for sample in samples], numbers)

    def of_columns(self, columns: Columns, first: int, end: int) -> dict[str, NDArray[np.int64]]:
        """Return the arrays of the samples `first` to `end` - 1 of these columns, without a step for each sample."""
        numbers = {name: columns[name][first:end] for name in self._numbers}
        return self._made([array.ravel() for array in columns[self._field][first:end]], numbers)

    def _made(
        self, documents: list[np.ndarray[Any, Any]], numbers: Mapping[str, Column]
    ) -> dict[str, NDArray[np.int64]]:
        lengths = np.fromiter(map(len, documents), np.int64, len(documents))
        pieces, row = laid_out(lengths, self._row), self._row
        if documents and documents[0].dtype.kind not in "iu":
            raise UsageError(f"field {self._field!r} holds {documents[0].dtype}, and tokens are whole numbers")
        if pieces.rows > self._rows:
            raise UsageError(
                f"{counted(len(documents), 'document')} of {lengths.sum():,} tokens fill {pieces.rows} rows of {row}, "
                f"and a batch has {self._rows}: the lengths that the sampler was given are not those of "
                f"{self._field!r}. Where a transform adds tokens, give it the lengths with them"
            )
        # In rows that lie one after another, documents and padding are runs of the same kinds in the same order.
        used = np.bincount(pieces.row, weights=pieces.length, minlength=self._rows).astype(np.int64)
        padded = np.flatnonzero(used < row)
        starts, rest = pieces.row * row + pieces.offset, padded * row + used[padded]
        begins = np.concatenate((starts, rest))
        runs = np.argsort(begins)
        begins = begins[runs]
        sizes = np.diff(begins, append=self._rows * row)
        document_ids = np.repeat(np.concatenate((pieces.document, np.full(len(rest), -1)))[runs], sizes)
        position_ids = np.arange(self._rows * row) - np.repeat(begins, sizes)
        before = np.searchsorted(starts, rest)  # pieces before each padding
        parts, done = list[np.ndarray[Any, Any]](), 0
        for last, size in zip(
            np.append(pieces.document, -1)[before - 1].tolist(), (row - used[padded]).tolist(), strict=True
        ):
            parts += documents[done : last + 1]
            parts.append(np.full(size, self._pad))
            done = max(done, last + 1)
        input_ids = np.concatenate([*parts, *documents[done:]], dtype=np.int64, casting="unsafe")
        labels = input_ids.copy()
        labels[starts] = IGNORED
        for begin, size in zip(rest.tolist(), (row - used[padded]).tolist(), strict=True):
            labels[begin : begin + size] = IGNORED
        values = {"input_ids": input_ids, "position_ids": position_ids, "document_ids": document_ids, "labels": labels}
        made = {name: flat.reshape(self._rows, row) for name, flat in values.items()}
        return made | {name: np.array(values, np.int64) for name, values in numbers.items()}
