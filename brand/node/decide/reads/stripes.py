"""Which operations load the absent samples of the next reads of a plan? Pure.

A read of a plan spans neighbouring samples of one chunk: a stripe. The loop needs about the same time for a decision on
one stripe as on a few. The next few can therefore start as one read, with an operation for each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.reads.gaps import cut_at_gaps
from brand.node.decide.state.epoch import Epoch, to_read
from brand.node.decide.state.tasks import PIECE
from brand.node.memory.residents import Residents
from brand.orders.base.plan import EpochPlan


@dataclass(frozen=True, slots=True, eq=False)
class Stripe:
    """Neighbouring samples of one chunk, some of which are to be loaded into memory."""

    first: int
    """Place of the first sample."""
    rows: NDArray[np.void]
    """Rows of the index of all samples."""
    absent: NDArray[np.intp]
    """Places of the samples to load, ascending, at least one."""


@dataclass(frozen=True, slots=True, eq=False)
class Operations:
    """The operations that read some stripes."""

    pieces: NDArray[np.void]
    """Array of dtype `PIECE`. `cached` is not set."""
    rows: NDArray[np.void]
    """Rows of the index of all samples in these pieces, piece by piece."""
    held: NDArray[np.bool_]
    """Whether each of these samples is loaded into memory."""

    @property
    def ends(self) -> NDArray[np.int64]:
        """End of the samples of each piece in `rows`."""
        return np.cumsum(self.pieces["span"], dtype=np.int64)

    @property
    def firsts(self) -> NDArray[np.int64]:
        """Index of the first sample of each piece among the samples that are loaded into memory."""
        samples = self.pieces["samples"].astype(np.int64)
        return np.cumsum(samples) - samples


def span_of(plan: EpochPlan, number: int, absent: NDArray[np.intp]) -> tuple[int, int]:
    """Return the first place that a read of a plan spans to load `absent`, and the place after the last."""
    return (int(absent[0]), int(absent[-1]) + 1) if plan.narrows else plan.places_read(number)


def operations_of(stripes: Sequence[Stripe], chunk_size: int, gap_bytes: int | None) -> Operations:
    """Return the operations that load the absent samples of stripes.

    `gap_bytes`: larger gaps between samples to load are not read (`cut_at_gaps`). None: a stripe is one operation,
    whatever it loads.
    """
    rows = np.concatenate([stripe.rows for stripe in stripes])
    lengths = np.array([len(stripe.rows) for stripe in stripes])
    ends = np.cumsum(lengths)
    starts, chunks = ends - lengths, np.array([stripe.first // chunk_size for stripe in stripes])
    held = np.zeros(len(rows), np.bool_)
    begins = [start - stripe.first for stripe, start in zip(stripes, starts.tolist(), strict=True)]
    held[np.concatenate([stripe.absent + begin for stripe, begin in zip(stripes, begins, strict=True)])] = True
    if gap_bytes is not None:
        sizes = rows["size"].astype(np.int64)
        spans = [slice(start, end) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        cuts = [cut_at_gaps(sizes[span], held[span], gap_bytes) for span in spans]
        chunks = np.repeat(chunks, [len(found) for found, _ in cuts])
        bounds = [(found + span.start).T for found, span in zip(map(np.stack, cuts), spans, strict=True)]
        inside = np.concatenate([np.arange(*pair) for pair in np.concatenate(bounds).tolist()])
        lengths = np.diff(np.concatenate(bounds), axis=1)[:, 0]
        rows, held = rows[inside], held[inside]
    firsts = np.cumsum(lengths) - lengths
    pieces = np.zeros(len(lengths), PIECE)
    pieces["chunk"], pieces["offset"], pieces["span"] = chunks, rows["offset"][firsts], lengths
    pieces["size"] = np.add.reduceat(rows["size"], firsts, dtype=np.int64)
    pieces["samples"] = np.add.reduceat(held, firsts, dtype=np.int32)
    return Operations(pieces, rows, held)


def leave_chunks(residents: Residents, epoch: Epoch, chunks: tuple[int, ...]) -> None:
    """Leave the samples of these chunks to the page cache, which holds them, as far as their reads have not begun.

    Clients take these samples from the page cache, so the queue skips their reads. If a sample of a chunk is in memory,
    the chunk's reads find it there.
    """
    size, numbers = epoch.plan.mapping.chunk_size, np.array(chunks)
    places = (numbers[:, None] * size + np.arange(size)).ravel()
    places = places[places < len(residents.pages_of)]
    due = places[to_read(epoch, places)]
    present = residents.present(due)
    left = due[~present]
    residents.left.leave(left)
    epoch.states.release(left)
    epoch.reads.pass_over(np.setdiff1d(numbers, due[present] // size))
