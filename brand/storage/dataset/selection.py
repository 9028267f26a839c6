"""Which samples does a user mean by `subset=`: a mask, indices, or an expression over columns?"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError, counted
from brand.storage.dataset.catalogue import Catalogue
from brand.storage.dataset.predicate import ColumnTable, chosen_by

_NONE: Final = "subset= has no sample"


def column_table(data: Catalogue) -> ColumnTable:
    """Return the columns of all samples that an expression may name: the fields of numbers, and `index`."""

    def read(name: str) -> NDArray[Any]:
        return np.arange(len(data)) if name == "index" else data.column(name)

    return ColumnTable(len(data), {**data.schema, "index": "int"}, data.names, read)


def selected(data: Catalogue, subset: Any) -> NDArray[np.int64]:
    """Return the indices of `subset`: a mask, shape (samples,), indices, each once, or an expression.

    A mask or an expression chooses no deleted sample of a collection. Raises `UsageError` if `subset` has another form
    or no sample.
    """
    samples = len(data)
    wanted = np.asarray(chosen_by(subset, column_table(data)) if isinstance(subset, str) else subset)
    if wanted.dtype != np.bool_:
        return _indices(wanted, samples)
    if wanted.shape != (samples,):
        raise UsageError(f"subset= is a mask of shape {wanted.shape}; this data set has {counted(samples, 'sample')}")
    if data.deleted is not None:
        wanted = wanted.copy()
        wanted[data.deleted] = False
    chosen = np.flatnonzero(wanted)
    if not len(chosen):
        raise UsageError(_NONE)
    return chosen


def _indices(wanted: NDArray[Any], samples: int) -> NDArray[np.int64]:
    if not wanted.size:
        raise UsageError(_NONE)
    if wanted.ndim != 1 or wanted.dtype.kind not in "iu":
        raise UsageError(
            f"subset= is a {wanted.dtype} array of shape {wanted.shape}: give one bool a sample, or indices"
        )
    outside = wanted[(wanted < 0) | (wanted >= samples)]
    if len(outside):
        raise UsageError(f"subset= has sample {outside[0]}; this data set has samples 0 to {samples - 1:,}")
    alike = np.sort(wanted)
    twice = alike[1:][alike[1:] == alike[:-1]]
    if len(twice):
        raise UsageError(f"subset= has sample {twice[0]} twice; give each index once, or a mask as an array of bools")
    found: NDArray[np.int64] = wanted.astype(np.int64)
    return found
