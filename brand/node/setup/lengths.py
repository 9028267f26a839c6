"""Which batches does a sampler plan from lengths? The sampler asks, and so does `brand simulate`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brand.errors import SchemaError, UsageError, counted
from brand.orders.base.random import blocks
from brand.orders.batches.batching import BatchLimits, choose_window, samples_of
from brand.orders.order import Order
from brand.storage.dataset.catalogue import Catalogue


def planned_limits(
    data: Catalogue,
    order: Order,
    length: tuple[Any, NDArray[Any]],
    sizes: Mapping[str, Any],
    room: int,
    *,
    fixed: bool = False,
) -> BatchLimits:
    """Return the limits of the batches of an order, with their bucketing window. Raises `UsageError`.

    Args:
        data: The data set.
        order: The order of the samples.
        length: The `length` that the user gives, and the length of each place (`lengths_of`).
        sizes: The fields `size`, `most`, `row` and `rows` of `BatchLimits`.
        room: Samples that memory can hold for the window.
        fixed: Whether the window has `room` samples; if not, as many of these as reduce the padding.
    """
    given, lengths = length
    if sizes["row"] is not None and (given is None or lengths.dtype != np.int64):
        raise UsageError("length= is the number of tokens of each sample, as whole numbers")
    digest = hashlib.blake2s(lengths.tobytes(), digest_size=16).hexdigest()
    try:
        limits = BatchLimits(room if fixed else 1, digest, **sizes)
    except ValueError as error:
        raise UsageError(f"batch_length={sizes['most']!r}: {error}") from None
    drawn = None if order.ever is None else order.ever.mask
    _check_lengths(data, lengths, drawn, limits.longest, given)
    mean = float((lengths if drawn is None else lengths[drawn]).mean())
    samples = float(room) if fixed else samples_of(mean, **sizes)
    window = choose_window(room, order.draws, samples, size=sizes["size"], pack=sizes["row"] is not None)
    return replace(limits, window=window)


def lengths_of(data: Catalogue, length: ArrayLike | str | None, possible: str) -> NDArray[Any]:
    """Return the length of the sample at each place, shape (`header.samples`,), int64 or float64. Reads no chunk.

    `length` is the name of an `int` or `float` field, or an array of the lengths of all samples by index. None: the
    bytes of each sample, all fields together and not compressed, from the index. Places of a collection from which
    nothing is drawn have the length -1. `possible` says in words which lengths are possible. Raises `SchemaError`,
    `UsageError`.
    """
    cure = f"Give {possible}; `brand.pack` stores a length next to its samples as an `int` field"
    samples, places = len(data), data.header.samples
    if length is None:
        return np.concatenate(
            [data.rows(part.start, part.stop)["raw_size"].astype(np.int64) for part in blocks(places)]
        )
    if isinstance(length, str):
        try:
            values = data.column(length)
        except SchemaError as error:
            raise SchemaError(f"length={length!r}: {error}. {cure}") from None
    else:
        values = np.asarray(length)
        if values.shape != (samples,) or values.dtype.kind not in "iuf":
            raise UsageError(
                f"length= is a {values.dtype} array of shape {values.shape}; this data set has "
                f"{counted(samples, 'sample')}. {cure}"
            )
    by_place = np.full(places, -1, np.int64 if values.dtype.kind in "iu" else np.float64)
    present = data.present()
    for part in blocks(len(present)):
        indices = present[part]
        by_place[data.places(indices)] = values[indices]
    return by_place


def _check_lengths(
    data: Catalogue, lengths: NDArray[Any], drawn: NDArray[np.bool_] | None, most: float | None, length: Any
) -> None:
    """Raise `UsageError` if a drawn sample has no length, or one above `most`. Lengths and `drawn` are by place.

    `length` is the argument of the user that gave the lengths.
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
    found = lengths[data.places(indices[:1])][0]
    others = f", and {counted(len(places) - 1, 'other sample')} like it" if len(places) > 1 else ""
    if most is not None and found > most:
        raise UsageError(
            f"sample {indices[0]} has length {found}, and a batch holds {most:g}{others}: give a larger batch, or "
            f"leave such samples out{_chosen(length, f'<= {most:g}')}"
        )
    raise UsageError(
        f"sample {indices[0]} has length {found}, which is none{others}: leave it out{_chosen(length, '>= 0')}"
    )


def _chosen(length: Any, condition: str) -> str:
    """Return the argument that chooses samples by the lengths that the user gave, as the end of a message."""
    if length is None:  # bytes of samples are no column
        return " with subset="
    if isinstance(length, str):
        return f" with subset=ds.column({length!r}) {condition}, where ds is the data set"
    return f" with subset=lengths {condition}, where lengths is the array that you gave as length="
