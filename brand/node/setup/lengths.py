"""Which batches does a sampler plan from lengths? The sampler asks, and so does `brand simulate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brand.errors import SchemaError, UsageError, counted
from brand.orders.base.random import blocks
from brand.orders.batch_ranks import SampleLengths, digest_of
from brand.orders.batches.batching import BatchLimits, choose_window, samples_of
from brand.orders.order import Order
from brand.storage.dataset.catalogue import Catalogue


@dataclass(frozen=True, slots=True, eq=False)
class SetLengths:
    """A data set from which batches are planned."""

    data: Catalogue
    order: Order
    given: Any
    """The `length` that the user gives."""
    lengths: SampleLengths
    """The length of the sample at each place (`lengths_of`)."""
    member: str = ""
    """The name of the data set in a mixture."""


def planned_limits(
    sets: Sequence[SetLengths],
    weights: Sequence[float] | None,
    sizes: Mapping[str, Any],
    draws: int,
    room: int,
    *,
    fixed: bool = False,
) -> BatchLimits:
    """Return the limits of the batches of a sampler, with their bucketing window. Raises `UsageError`.

    Args:
        sets: The data set, or the members of a mixture.
        weights: The weights of the members; None for a single data set.
        sizes: The fields `size`, `most`, `row` and `rows` of `BatchLimits`.
        draws: Samples of an epoch.
        room: Samples that memory can hold for the window.
        fixed: Whether the window has `room` samples; if not, as many of these as reduce the padding.
    """
    packed = sizes["row"] is not None
    if packed and any(each.given is None or each.lengths.values.dtype != np.int64 for each in sets):
        raise UsageError("length= is the number of tokens of each sample, as whole numbers")
    try:
        limits = BatchLimits(room if fixed else 1, digest_of([each.lengths for each in sets]), **sizes)
    except ValueError as error:
        raise UsageError(f"batch_length={sizes['most']!r}: {error}") from None
    means = []
    for each in sets:
        lengths, drawn = each.lengths.values, None if each.order.ever is None else each.order.ever.mask
        _check_lengths(each, drawn, limits.longest)
        means.append((lengths if drawn is None else lengths[drawn]).mean())
    samples = float(room) if fixed else samples_of(float(np.average(means, weights=weights)), **sizes)
    return replace(limits, window=choose_window(room, draws, samples, size=sizes["size"], pack=packed))


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


def _check_lengths(of: SetLengths, drawn: NDArray[np.bool_] | None, most: float | None) -> None:
    """Raise `UsageError` if a drawn sample has no length, or one above `most`. `drawn` is by place."""
    data, lengths = of.data, of.lengths.values
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
    sample = f"sample {indices[0]} of {of.member}" if of.member else f"sample {indices[0]}"
    if most is not None and found > most:
        raise UsageError(
            f"{sample} has length {found}, and a batch holds {most:g}{others}: give a larger batch, or leave such "
            f"samples out{_chosen(of, f'<= {most:g}')}"
        )
    raise UsageError(f"{sample} has length {found}, which is none{others}: leave it out{_chosen(of, '>= 0')}")


def _chosen(of: SetLengths, condition: str) -> str:
    """Return how to choose samples by the lengths that the user gave, as the end of a message."""
    if of.member:
        return ": pack a data set without them, because a Mixture takes no subset="
    if of.given is None:  # bytes of samples are no column
        return " with subset="
    if isinstance(of.given, str):
        return f" with subset=ds.column({of.given!r}) {condition}, where ds is the data set"
    return f" with subset=lengths {condition}, where lengths is the array that you gave as length="
