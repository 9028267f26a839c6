"""How long is each sample, before any of it is read? A column, the user, or the index has the lengths."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brand.errors import SchemaError, UsageError, counted
from brand.orders.base.random import blocks
from brand.storage.dataset.catalogue import Catalogue

_CURE: Final = (
    "Give an `int` or `float` field, an array of all lengths by index, or None for the bytes of each sample; "
    "`brand.pack` stores a length beside its samples as an `int` field"
)


def lengths_of(data: Catalogue, length: ArrayLike | str | None) -> NDArray[Any]:
    """Return the length of the sample at each place, shape (`header.samples`,), int64 or float64. Reads no chunk.

    `length` is the name of an `int` or `float` field, or an array of the lengths of all samples by index. None: the
    bytes of each sample, all fields together and not compressed, from the index. Places of a collection from which
    nothing is drawn have the length -1. Raises `SchemaError`, `UsageError`.
    """
    samples, places = len(data), data.header.samples
    if length is None:
        return np.concatenate(
            [data.rows(part.start, part.stop)["raw_size"].astype(np.int64) for part in blocks(places)]
        )
    if isinstance(length, str):
        try:
            values = data.column(length)
        except SchemaError as error:
            raise SchemaError(f"length={length!r}: {error}. {_CURE}") from None
    else:
        values = np.asarray(length)
        if values.shape != (samples,) or values.dtype.kind not in "iuf":
            raise UsageError(
                f"length= is a {values.dtype} array of shape {values.shape}; this data set has "
                f"{counted(samples, 'sample')}. {_CURE}"
            )
    by_place = np.full(places, -1, np.int64 if values.dtype.kind in "iu" else np.float64)
    present = data.present()
    for part in blocks(len(present)):
        indices = present[part]
        by_place[data.places(indices)] = values[indices]
    return by_place


def check_lengths(data: Catalogue, lengths: NDArray[Any], drawn: NDArray[np.bool_] | None, most: float | None) -> None:
    """Raise `UsageError` if a sample that is drawn has no length, or one above `most`. The message names the sample.

    `lengths` are by place, and so is `drawn`; None: all are drawn.
    """
    wrong = ~(lengths >= 0) | np.isinf(lengths)
    if most is not None:
        wrong |= lengths > most
    if drawn is not None:
        wrong &= drawn
    if not wrong.any():
        return
    places = np.flatnonzero(wrong)
    indices = np.sort(data.indices(places[:1000]))
    length = lengths[data.places(indices[:1])][0]
    others = f", and {counted(len(places) - 1, 'other sample')} like it" if len(places) > 1 else ""
    if most is not None and length > most:
        raise UsageError(
            f"sample {indices[0]} has length {length}, and a batch holds {most:g}{others}: give a larger batch, or "
            f"leave such samples out with subset=, for example subset=lengths <= {most:g}"
        )
    raise UsageError(
        f"sample {indices[0]} has length {length}, which is none{others}: leave it out with subset=, for example "
        "subset=lengths >= 0"
    )
