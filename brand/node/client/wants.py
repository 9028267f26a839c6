"""Decode specs of a client, the server's answer to them, and the decoded values of a draw.

If the server does not decode, or decoded values are damaged, the client decodes itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import MissingExtraError, ProtocolError
from brand.formats.constants import ROW
from brand.formats.contents import StoredSamples
from brand.formats.preparation import Preparation, decoders
from brand.formats.record import windows
from brand.native import CORE
from brand.node.client.buffers import Buffers
from brand.node.memory.directory import pages_of_runs
from brand.node.memory.page_memory import ROW_BYTES
from brand.node.wire.client_messages import ClientPrepares, pack, unpack
from brand.node.wire.messages import Chains
from brand.node.wire.numbers import NO_CLIENT, RunNumber
from brand.node.wire.prepared import DecodeSpec, unpack_chains
from brand.node.wire.preparer import PAGE
from brand.node.wire.replies import Numbers
from brand.reprs import Reprs
from brand.storage.io.crew import Crew

log = logging.getLogger("brand.node")


@dataclass(frozen=True, slots=True, eq=False)
class DecodedField:
    """Decoded values of one field."""

    at: NDArray[np.intp]
    """Positions in the draw, ascending."""
    values: NDArray[Any] | list[NDArray[Any]]
    """Values of the samples at these positions: one array if all have one shape, otherwise an array for each."""

    def __len__(self) -> int:
        return len(self.at)

    def only(self, positions: NDArray[np.intp], first: int) -> DecodedField:
        """Return the values at some positions of the draw, a segment of a larger draw that begins there at `first`."""
        kept = np.isin(self.at, positions)
        if kept.all():
            return DecodedField(self.at + first, self.values)
        return DecodedField(self.at[kept] + first, [self.values[number] for number in np.flatnonzero(kept).tolist()])

    def within(self, first: int, end: int) -> DecodedField:
        """Return the values at the positions `first` to `end` - 1."""
        low, high = np.searchsorted(self.at, (first, end)).tolist()
        return DecodedField(self.at[low:high], self.values[low:high])


Values = dict[str, DecodedField]
"""Decoded values of a draw, by field."""
NOTHING: Final[Values] = {}


class DecodeSpecs(Reprs, shows="_wants"):
    """The fields that the server is asked to decode. Picklable."""

    def __init__(self, prepare: Mapping[str, Preparation]) -> None:
        self._wants = tuple(DecodeSpec(field, how) for field, how in prepare.items())
        self._said = False

    def numbers(self, run: RunNumber, ask: Callable[[bytes], memoryview]) -> tuple[int, ...]:
        """Return the server's numbers of the decode specs, for draws of a run; none if it does not decode them.

        `ask` sends PREPARE to a server that decodes, and returns the body of its answer.
        """
        if not self._wants:
            return ()
        try:
            mine = {codec: decoders(codec) for codec in {want.how.codec for want in self._wants}}
        except MissingExtraError:  # the first sample raises it
            return ()
        found = unpack(Numbers, ask(pack(ClientPrepares(NO_CLIENT, run, self._wants, mine))))
        if len(found.numbers) not in (0, len(self._wants)):
            raise ProtocolError(f"{len(found.numbers)} numbers for {len(self._wants)} decode specs")
        if not found.numbers and not self._said:
            self._said = True
            log.warning("the data server does not prepare %s: %s", self, found.why)
        return found.numbers

    def values(
        self, pages: Pages, numbers: Sequence[int], chains: Chains, indices: NDArray[np.uint64], at: NDArray[np.intp]
    ) -> Values:
        """Return the decoded values of a lease, of samples with these indices, `at` these positions of the draw.

        Damaged values are left out. Raises `ProtocolError`.
        """
        if len(chains) != len(numbers) * len(at):
            raise ProtocolError("the server sends decoded fields that were not requested")
        memory, counts = pages.copy(chains), chains.counts.astype(np.int64).reshape(len(numbers), -1)
        found, first = NOTHING.copy(), 0
        for want, number, mine in zip(self._wants, numbers, counts, strict=True):
            values = unpack_chains(memory[first:], mine, PAGE, number, indices)
            if isinstance(values, np.ndarray):
                found[want.field] = DecodedField(at, values)
            else:
                right = np.array([value is not None for value in values], np.bool_)
                found[want.field] = DecodedField(at[right], [value for value in values if value is not None])
            first += int(mine.sum()) * PAGE
        return found


@dataclass(frozen=True, slots=True)
class Pages:
    """Memory that a server shares, shape (pages, page size), buffers for copies, and the threads that copy."""

    pages: NDArray[np.uint8]
    buffers: Buffers
    crew: Crew

    def copy(self, chains: Chains, more: int = 0) -> NDArray[np.uint8]:
        """Copy the pages of these chains into one array, in one operation, followed by `more` bytes with any content.

        Raises `ProtocolError`.
        """
        count, page = self.pages.shape
        if len(chains.pages) and not 0 <= chains.pages.min() <= chains.pages.max() < count:
            raise ProtocolError("the server names pages that do not exist")
        size = len(chains.pages) * page
        memory = self.buffers.take(size + more)
        into = memory[:size].reshape(-1, page)
        if CORE is None:

            def copy(_: int, part: slice) -> None:
                np.take(self.pages, chains.pages[part], axis=0, out=into[part], mode="clip")

        else:
            core, starts, sizes = CORE, chains.pages.astype(np.int64) * page, np.full(len(chains.pages), page)

            def copy(_: int, part: slice) -> None:
                core.gather(self.pages.reshape(-1), starts[part], sizes[part], into[part])

        self.crew.each(copy, self.crew.even(len(chains.pages), page))
        return memory

    def copy_runs(self, heads: NDArray[np.int32], counts: NDArray[np.uint32], more: int = 0) -> NDArray[np.uint8]:
        """Copy as `copy` does, `counts[i]` contiguous pages each, from page `heads[i]` on. Raises `ProtocolError`."""
        if CORE is None:
            return self.copy(Chains(counts, pages_of_runs(heads, counts)), more)
        core, (count, page) = CORE, self.pages.shape
        if len(heads) and not 0 <= heads.min() <= int((heads.astype(np.int64) + counts).max()) <= count:
            raise ProtocolError("the server names pages that do not exist")
        memory_of_pages, starts, sizes = self.pages.reshape(-1), heads.astype(np.int64) * page, counts * np.int64(page)
        ends = np.cumsum(sizes)
        memory = self.buffers.take(int(sizes.sum()) + more)

        def copy(_: int, part: slice) -> None:
            first, end = int(ends[part.start] - sizes[part.start]), int(ends[part.stop - 1])
            core.gather(memory_of_pages, starts[part], sizes[part], memory[first:end])

        self.crew.each(copy, self.crew.parts(sizes))
        return memory

    def stored(self, memory: NDArray[np.uint8], counts: NDArray[np.uint32]) -> StoredSamples:
        """Return the samples in copies of pages, of `counts[i]` pages each. Raises `ProtocolError`."""
        page = self.pages.shape[1]
        starts = (np.cumsum(counts, dtype=np.int64) - counts) * page
        rows = windows(memory, ROW_BYTES)[starts].view(ROW)
        if (rows["size"].astype(np.int64) + ROW_BYTES > counts.astype(np.int64) * page).any():
            raise ProtocolError("a sample is larger than its pages")
        return StoredSamples(memory, starts + ROW_BYTES, rows)
