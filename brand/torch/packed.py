"""How do documents become tensors of packed rows? `PackedRows`, a `collate_fn` for the batches of a `BatchPlan`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from brand.errors import SchemaError, UsageError, counted
from brand.protocol.packing import laid_out

if TYPE_CHECKING:
    from brand.torch.dataset import BrandDataset

IGNORED: Final = -100
"""The label of what is not to be predicted, as PyTorch's `cross_entropy` leaves it out."""


class PackedRows:
    """Makes a dict of int64 tensors, each of shape (rows, row) but for `index`, of a list of samples. Picklable.

    `input_ids`: tokens, and `pad` in what is left. `position_ids`: count from 0 in each document, and anew in each row.
    `document_ids`: number of the document within the batch, -1 for padding; tokens attend to those of their row with
    the same number. `labels`: the tokens, and `IGNORED` for padding and for the first token of each document in a row,
    which nothing before it predicts. `index`: index of each document, shape (documents,).

    Raises `UsageError` where the documents do not fit, because they are longer than the lengths that were planned.
    """

    def __init__(self, data_set: BrandDataset, field: str, row: int, rows: int, pad: int) -> None:
        names = data_set.fields
        if field not in data_set.schema or (names is not None and field not in names):
            there = ", ".join(data_set.schema if names is None else names)
            raise SchemaError(f"no field {field!r} to pack; samples have {there}")
        self._field, self._row, self._rows, self._pad = field, row, rows, pad
        self._at: int | str = field if names is None else names.index(field)
        self._index: int | str | None = "index"
        if names is not None:
            self._index = names.index("index") if "index" in names else None

    def __repr__(self) -> str:
        return f"PackedRows({self._field!r}, {self._rows} rows of {self._row})"

    def __call__(self, samples: Sequence[Any]) -> dict[str, torch.Tensor]:
        """The tensors of one batch, of its samples in the order of the plan."""
        documents = [np.asarray(sample[self._at]).ravel() for sample in samples]
        tokens = np.concatenate(documents) if documents else np.zeros(0, np.int64)
        if tokens.dtype.kind not in "iu":
            raise UsageError(f"field {self._field!r} holds {tokens.dtype}, and tokens are whole numbers")
        pieces = laid_out(np.array([len(document) for document in documents], np.int64), self._row)
        if pieces.rows > self._rows:
            raise UsageError(
                f"{counted(len(documents), 'document')} of {len(tokens):,} tokens fill {pieces.rows} rows of "
                f"{self._row}, and the plan has {self._rows}: the lengths that BatchPlan was given are not those of "
                f"{self._field!r}. Where a transform adds tokens, give it the lengths with them"
            )
        first = pieces.row * self._row + pieces.offset
        step = np.arange(len(tokens)) - np.repeat(np.cumsum(pieces.length) - pieces.length, pieces.length)
        at = np.repeat(first, pieces.length) + step
        made = {
            "input_ids": self._filled(self._pad, at, tokens),
            "position_ids": self._filled(0, at, step),
            "document_ids": self._filled(-1, at, np.repeat(pieces.document, pieces.length)),
        }
        labels = self._filled(IGNORED, at, tokens)
        labels.view(-1)[torch.from_numpy(first)] = IGNORED
        made["labels"] = labels
        if self._index is not None:
            made["index"] = torch.tensor([int(sample[self._index]) for sample in samples])
        return made

    def _filled(self, rest: int, at: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> torch.Tensor:
        """Rows with these values at these places, and `rest` everywhere else."""
        flat = np.full(self._rows * self._row, rest, np.int64)
        flat[at] = values
        return torch.from_numpy(flat).view(self._rows, self._row)
