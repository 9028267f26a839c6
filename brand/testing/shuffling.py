"""How well does a loader shuffle? Three figures of one epoch and a test of several, for any loader, from ids alone.

A **place** is the position of a sample in storage: `place + 1` is the next sample, and its chunk is
`place // chunk_size`. The functions accept ids as places; if a loader's ids differ from places (source indices),
`place_of[id]` is the place of each sample. A sequence is one whole epoch, in the order of training: with several ranks,
global batch after global batch.

    measure(sequence)      one epoch: are samples that are stored together also delivered together?
        batch_collisions   within the batch of one training step
        chunk_distance     in the epoch, for the samples of a chunk
        adjacent_distance  in the epoch, for adjacent samples; the hardest figure to get right
    uniformity(epochs)     two epochs and more: does an epoch predict anything about the next?
        repeats            the position of a sample predicts its next position
        drift              the position of a stored block predicts its next position: samples stored early are early

Each value is shown next to that of a uniform shuffle. `python -m brand.testing.shuffling IDS` prints them.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brand.errors import BrandError, MissingExtraError, UsageError

_NAN: Final = math.nan
_LEAST_BLOCKS: Final = 8

Places = NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class Shuffling:
    """The figures of one epoch. A value is nan if there is nothing to measure."""

    samples: int
    """Length of the epoch."""
    chunk_size: int
    """Samples of a chunk; the last chunk may be short."""
    batch: int
    """Samples of a batch; the last batch may be short."""
    expected_collisions: float
    """Pairs of one chunk within batches of a uniform shuffle. Chance moves `batch_collisions` by about
    1 / sqrt of it."""
    batch_collisions: float
    """Pairs of one chunk within batches, over `expected_collisions`. 1 is uniform; above it, batches hold too many
    samples of a chunk. nan for chunks or batches of one sample.
    """
    chunk_distance: float
    """Mean distance in the epoch of two samples of a chunk, over all such pairs, as a fraction of the epoch.
    `uniform_distance` is uniform; less is worse. nan for chunks of one sample.
    """
    adjacent_distance: float
    """Mean distance in the epoch of two adjacent samples of a chunk, as a fraction of the epoch."""

    @property
    def uniform_distance(self) -> float:
        """Value of both distances for a uniform shuffle: (N + 1) / 3N, so 0.333; nan below two samples."""
        return (self.samples + 1) / (3 * self.samples) if self.samples > 1 else _NAN

    def __str__(self) -> str:
        uniform = f"{self.uniform_distance:9.3f}"
        chance = f" (± {self.expected_collisions**-0.5:.2g} by chance)" if self.expected_collisions else ""
        collisions = f"of one chunk in a batch, over uniform{chance}"
        return "\n".join(
            [
                "                    found  uniform",
                f"batch collisions  {self.batch_collisions:7.2f}     1.00   {collisions}",
                f"chunk distance    {self.chunk_distance:7.3f}{uniform}   of two samples of a chunk, over the epoch",
                f"adjacent distance {self.adjacent_distance:7.3f}{uniform}   the same for samples stored side by side",
            ]
        )


@dataclass(frozen=True, slots=True)
class Finding:
    """A mean over the blocks of a data set, and whether chance explains its distance from 1."""

    value: float
    """1 is uniform; nan if there was too little to measure."""
    t: float
    """Distance from 1 in standard errors, as the blocks vary; infinite if all blocks have one wrong value."""
    freedom: int
    """Degrees of freedom of `t`: blocks - 1."""
    p: float
    """Probability that chance alone leads this far from 1, above or below. Below 0.001, it is hardly chance."""


@dataclass(frozen=True, slots=True)
class Uniformity:
    """Whether places and earlier epochs predict the position of a sample. See `uniformity`."""

    epochs: int
    """Number of compared epochs."""
    samples: int
    """Samples of an epoch."""
    bins: int
    """Number of bins of equal length that an epoch was cut into."""
    repeats: Finding
    """How often a sample is in the same bin of two epochs, over uniform: `bins` if all epochs are equal."""
    drift: Finding
    """How often two samples of a block are in the same bin, one in one epoch and one in another, over uniform."""

    def __str__(self) -> str:
        head = "                    found  uniform      p"
        repeats = f"a sample in the same 1/{self.bins} of two epochs, over uniform"
        lines = [
            f"{name:17} {finding.value:7.2f}     1.00 {finding.p:6.3f}   {text}"
            for name, finding, text in (
                ("repeats", self.repeats, repeats),
                ("drift", self.drift, "the same for two samples that are stored not far apart"),
            )
        ]
        return "\n".join([head, *lines])


def measure(sequence: ArrayLike, *, chunk_size: int, batch: int, place_of: ArrayLike | None = None) -> Shuffling:
    """Measure one epoch.

    sequence: ids in the order of delivery, shape (N,): integers, each of 0 to N - 1 once. chunk_size: samples of a
        chunk as stored. batch: samples of a (global) batch. place_of: place of each id, shape (N,); without it, ids are
        places.

    The figures are exact: all pairs count. 13 million ids take about 2 s. Raises `UsageError`, which names an id that
    is missing or occurs too often.
    """
    _at_least(1, chunk_size=chunk_size, batch=batch)
    places = _places(sequence, place_of, None, "sequence")
    samples = len(places)
    chunk = min(chunk_size, max(samples, 1))
    of_one_chunk = _pairs_in(samples, chunk)
    expected = _ratio(of_one_chunk * _pairs_in(samples, batch), _pairs_in(samples, samples))
    positions = np.empty(samples, np.int64)
    positions[places] = np.arange(samples)
    chunks = (samples + chunk - 1) // chunk
    return Shuffling(
        samples,
        chunk_size,
        batch,
        0.0 if math.isnan(expected) else expected,
        batch_collisions=_ratio(sum(map(_equal_pairs, _rows(places // chunk, batch))), expected),
        chunk_distance=_ratio(sum(map(_distances, _rows(positions, chunk))), of_one_chunk * samples),
        adjacent_distance=_ratio(sum(map(_steps, _rows(positions, chunk))), (samples - chunks) * samples),
    )


def uniformity(
    epochs: Iterable[ArrayLike], *, bins: int = 16, blocks: int = 32, place_of: ArrayLike | None = None
) -> Uniformity:
    """Test whether a sample is equally likely at any position of an epoch, whatever its place and earlier epochs.

    epochs: sequences as for `measure`, of the same N samples; an array of shape (epochs, N), or any iterable, of which
        one is held at a time. bins: number of bins of an epoch, 2 to 256. blocks: number of runs of places that the
        data set is cut into. place_of: as for `measure`.

    The test. Take two samples s and s' (for `repeats` one sample twice, for `drift` two of one block) and two epochs.
    If epochs are independent, and each sample is equally likely to be at every position, then s in one epoch and s' in
    the other epoch are in the same bin with the probability that two random positions are. So in each block, the number
    of such coincidences over all pairs of epochs, divided by the expected number, has the mean 1. A t-test over the
    blocks asks whether it has.

    The test judges the data set as a whole: a bias of a few samples among many is lost in the mean.

    The usual chi-square test of a table of places x bins assumes that the samples of an epoch are independent. So it
    calls a loader biased if samples that are stored together move together, to any position. Here the standard error is
    that of the blocks. Such groups do not disturb it, as long as they are much smaller than a block; `measure` measures
    them.

    Needs two epochs and 8 x `bins` samples (small sets get fewer blocks); with less, values are nan. Needs scipy.
    Raises `MissingExtraError` without it, `UsageError` if sequences are not whole epochs.
    """
    if not 2 <= bins <= 256:
        raise UsageError(f"bins must be 2 to 256, not {bins}")
    _at_least(_LEAST_BLOCKS, blocks=blocks)
    tail = _student_tail()
    binned = _binned(epochs, bins, place_of)
    samples = len(binned[0]) if binned else 0
    blocks = min(blocks, samples // bins)
    if len(binned) < 2 or blocks < _LEAST_BLOCKS:
        nothing = Finding(_NAN, _NAN, 0, _NAN)
        return Uniformity(len(binned), samples, bins, nothing, nothing)
    luck = float(np.square(np.bincount(binned[0], minlength=bins) / samples).sum())
    cuts = [samples * block // blocks for block in range(blocks + 1)]
    ratios = [
        _coincidences(np.stack([epoch[start:end] for epoch in binned]), bins, luck) for start, end in pairwise(cuts)
    ]
    repeats, drift = np.array(ratios).T
    # The blocks share the bins of an epoch: where one block has more, the others have less. The counts of two blocks,
    # correlated by -1 / (blocks - 1), make the variance of the mean of `drift` larger by 1 / (blocks - 1).
    return Uniformity(len(binned), samples, bins, _finding(repeats, blocks, tail), _finding(drift, blocks - 1, tail))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures of sequences in files, for `python -m brand.testing.shuffling`."""
    parser = argparse.ArgumentParser("python -m brand.testing.shuffling", description="How well a loader shuffles.")
    parser.add_argument("ids", nargs="+", type=Path, help="one epoch: ids in order of delivery, .npy or text")
    parser.add_argument("--chunk-size", type=int, required=True, help="samples of a chunk")
    parser.add_argument("--batch", type=int, required=True, help="samples of a batch, over all ranks")
    parser.add_argument("--place-of", type=Path, help="place of each id, .npy or text; without it, ids are places")
    given = parser.parse_args(arguments)
    try:
        place_of = None if given.place_of is None else _load(given.place_of)
        epochs = [_load(path) for path in given.ids]
        for path, epoch in zip(given.ids, epochs, strict=True):
            sys.stdout.write(f"{path}: {epoch.size:,} ids\n")
            found = measure(epoch, chunk_size=given.chunk_size, batch=given.batch, place_of=place_of)
            sys.stdout.write(f"{found}\n\n")
        if len(epochs) > 1:
            sys.stdout.write(f"{len(epochs)} epochs\n{uniformity(epochs, place_of=place_of)}\n")
    except (BrandError, OSError, ValueError) as error:
        parser.error(str(error))


def _load(path: Path) -> NDArray[Any]:
    """Read ids from a file: a saved array, or a text with one id a line."""
    try:
        return np.asarray(np.load(path)) if path.suffix == ".npy" else np.loadtxt(path, np.int64, ndmin=1)
    except (ValueError, EOFError) as error:
        raise UsageError(f"{path}: {error}") from error


def _at_least(least: int, **values: int) -> None:
    for name, value in values.items():
        if value < least:
            raise UsageError(f"{name} must be at least {least}, not {value}")


def _places(ids: ArrayLike, place_of: ArrayLike | None, total: int | None, what: str) -> Places:
    """Return the places in order of delivery, checked to be each of 0 to `total` - 1 once."""
    if place_of is None:
        return _whole(ids, total, what)
    table = _whole(place_of, total, "place_of")
    return table[_whole(ids, len(table), what)]


def _whole(ids: ArrayLike, total: int | None, what: str) -> Places:
    """Return `ids` as an array, checked to hold each of 0 to `total` - 1 once. None for `total`: the number of ids."""
    array = np.asarray(ids)
    if array.ndim != 1 or (len(array) and array.dtype.kind not in "iu"):
        raise UsageError(f"{what}: expected integers in one dimension, found {array.dtype} of shape {array.shape}")
    total = len(array) if total is None else total
    inside = (array >= 0) & (array < total)
    known = array[inside].astype(np.int64, copy=False)
    seen = np.zeros(total, bool)
    seen[known] = True
    if len(array) == total and seen.all():
        return known
    wrong = [f"{array[~inside][0]} is not one of 0 to {total - 1}"] if not inside.all() else []
    wrong += [f"{np.argmin(seen)} never comes"] if not seen.all() else []
    times = np.bincount(known, minlength=1)
    wrong += [f"{np.argmax(times > 1)} comes {times[np.argmax(times > 1)]} times"] if times.max() > 1 else []
    raise UsageError(f"{what}: expected each of {total} ids once: {', '.join(wrong)}. Give the ids of one whole epoch")


def _rows(array: Places, width: int) -> list[Places]:
    """Return the array cut into rows: the rows of full `width` as one table, and the short last row."""
    width = min(width, max(len(array), 1))
    full = len(array) // width * width
    return [part for part in (array[:full].reshape(-1, width), array[full:].reshape(1, -1)) if part.size]


def _pairs_in(total: int, width: int) -> int:
    """Return the number of pairs within the rows of `width` that `total` items are cut into."""
    full, rest = divmod(total, width) if width else (0, 0)
    return full * math.comb(width, 2) + math.comb(rest, 2)


def _ratio(value: float, uniform: float) -> float:
    return value / uniform if uniform else _NAN


def _equal_pairs(rows: Places) -> int:
    """Return the number of pairs of equal values within rows."""
    ordered = np.sort(rows, axis=1)
    first = np.ones(rows.shape, bool)
    np.not_equal(ordered[:, 1:], ordered[:, :-1], out=first[:, 1:])
    lengths = np.diff(np.flatnonzero(first), append=rows.size)
    return int((lengths * (lengths - 1)).sum()) // 2


def _distances(rows: Places) -> float:
    """Return the sum of |a - b| over all pairs within rows: item `i` of a sorted row of `n` counts 2i - n + 1 times."""
    columns = np.sort(rows, axis=1).sum(axis=0)
    weights = 2 * np.arange(len(columns)) - len(columns) + 1
    return float(np.dot(columns.astype(np.float64), weights.astype(np.float64)))


def _steps(rows: Places) -> int:
    """Return the sum of |a - b| over adjacent items within rows."""
    return int(np.abs(np.diff(rows, axis=1)).sum())


def _binned(epochs: Iterable[ArrayLike], bins: int, place_of: ArrayLike | None) -> list[NDArray[np.uint8]]:
    """Return, for each epoch, the bin of the sample at each place, shape (N,)."""
    table = None if place_of is None else _whole(place_of, None, "place_of")
    total = None if table is None else len(table)
    binned: list[NDArray[np.uint8]] = []
    for number, epoch in enumerate(epochs):
        ids = _whole(epoch, total, f"epoch {number}")
        total = len(ids)
        bin_of_place = np.empty(total, np.uint8)
        bin_of_place[ids if table is None else table[ids]] = np.arange(total) * bins // max(total, 1)
        binned.append(bin_of_place)
    return binned


def _coincidences(block: NDArray[np.uint8], bins: int, luck: float) -> tuple[float, float]:
    """Return `repeats` and `drift` of a block, shape (epochs, samples); two random bins are equal with `luck`."""
    epochs, samples = block.shape
    pairs = math.comb(epochs, 2)
    same = sum(int(np.count_nonzero(block[epoch + 1 :] == block[epoch])) for epoch in range(epochs - 1))
    labels = block + np.arange(epochs)[:, None] * bins
    counts = np.bincount(labels.ravel(), minlength=epochs * bins).reshape(epochs, bins)
    both = int((np.square(counts.sum(axis=0)) - np.square(counts).sum(axis=0)).sum()) // 2
    return same / (pairs * samples * luck), (both - same) / (pairs * samples * (samples - 1) * luck)


def _finding(ratios: NDArray[np.float64], independent: int, tail: Callable[[int, float], float]) -> Finding:
    """Test the mean of ratios, which are worth `independent` independent ones, against 1: a two-sided t-test."""
    value, freedom = float(ratios.mean()), len(ratios) - 1
    error = float(ratios.std(ddof=1)) / math.sqrt(independent)
    off = value - 1
    t = off / error if error > 1e-12 else math.copysign(math.inf, off) if abs(off) > 1e-9 else 0.0
    return Finding(value, t, freedom, min(1.0, 2 * tail(freedom, -abs(t))))


def _student_tail() -> Callable[[int, float], float]:
    """Return P(T <= t) of Student's distribution, as a function of (degrees of freedom, t)."""
    try:
        from scipy.special import stdtr  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise MissingExtraError("uniformity needs the package scipy: pip install 'brand-data[tools]'") from error
    return lambda freedom, t: float(stdtr(freedom, t))


if __name__ == "__main__":
    main()
