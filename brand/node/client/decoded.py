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
from brand.formats.preparation import Preparation, decoders
from brand.node.client.memories import Pages
from brand.node.wire.client_messages import ClientPrepares, Numbers, pack, unpack
from brand.node.wire.decoding import PAGE, DecodeSpec, unpack_chains
from brand.node.wire.messages import Chains
from brand.node.wire.numbers import NO_CLIENT, RunNumber
from brand.reprs import Reprs

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


class DecodeSpecs(Reprs, shows="_specs"):
    """The fields that the server is asked to decode. Picklable."""

    def __init__(self, prepare: Mapping[str, Preparation]) -> None:
        self._specs = tuple(DecodeSpec(field, how) for field, how in prepare.items())
        self._said = False

    def numbers(self, run: RunNumber, ask: Callable[[bytes], memoryview]) -> tuple[int, ...]:
        """Return the server's numbers of the decode specs, for draws of a run; none if it does not decode them.

        `ask` sends PREPARE to a server that decodes, and returns the body of its answer.
        """
        if not self._specs:
            return ()
        try:
            mine = {codec: decoders(codec) for codec in {want.how.codec for want in self._specs}}
        except MissingExtraError:  # the first sample raises it
            return ()
        found = unpack(Numbers, ask(pack(ClientPrepares(NO_CLIENT, run, self._specs, mine))))
        if len(found.numbers) not in (0, len(self._specs)):
            raise ProtocolError(f"{len(found.numbers)} numbers for {len(self._specs)} decode specs")
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
        for want, number, mine in zip(self._specs, numbers, counts, strict=True):
            values = unpack_chains(memory[first:], mine, PAGE, number, indices)
            if isinstance(values, np.ndarray):
                found[want.field] = DecodedField(at, values)
            else:
                right = np.array([value is not None for value in values], np.bool_)
                found[want.field] = DecodedField(at[right], [value for value in values if value is not None])
            first += int(mine.sum()) * PAGE
        return found
