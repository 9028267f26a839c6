"""Which samples are clients copying? A leased sample stays in its pages until its client releases it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from numpy.typing import NDArray

from brand.errors import UsageError
from brand.node.memory.residents import Residents, SampleChains

if TYPE_CHECKING:
    from brand.node.memory.prepared import PreparedMemory

MAX_LEASES: Final = 32
"""Maximum number of leases of one client."""
STALE_S: Final = 1.0
"""A server does not wait for a client that copies for longer than this, in seconds."""

Shelved = tuple[tuple[int, NDArray[Any]], ...]
"""Decoded samples: numbers of decode specs, and the places of each."""


@dataclass(slots=True)
class _Lease:
    client: int
    places: NDArray[Any]
    chains: SampleChains
    since_s: float
    prepared: Shelved = ()


class Leases:
    """Leases by number. Each lease holds a reference to its samples. `memory` is that of decoded samples."""

    def __init__(self, residents: Residents, memory: PreparedMemory | None = None) -> None:
        self._residents, self._memory = residents, memory
        self._leases: dict[int, _Lease] = {}
        self._last = 0

    def __iter__(self) -> Iterator[int]:
        return iter(self._leases)

    def check(self, client: int) -> None:
        """Raise `UsageError` if a client has the maximum number of leases."""
        if sum(lease.client == client for lease in self._leases.values()) >= MAX_LEASES:
            raise UsageError(f"more than {MAX_LEASES} leases without a release")

    def give(
        self,
        client: int,
        places: NDArray[Any],
        chains: SampleChains,
        now_s: float,
        prepared: Shelved = (),
    ) -> int:
        """Create a lease, and return its number. The caller has added the references, and leased the decoded samples.

        `chains` are those of the samples at these places, which are all different.
        """
        self._last += 1
        self._leases[self._last] = _Lease(client, places, chains, now_s, prepared)
        return self._last

    def release(self, client: int, number: int, *, checked: bool) -> NDArray[Any]:
        """Release a lease whose samples a client has copied. Returns their places.

        Raises `UsageError` if the lease is not this client's.
        """
        held = self._leases.get(number)
        if held is None or held.client != client:
            raise UsageError(f"lease {number} is not this client's")
        del self._leases[number]
        if checked:
            self._residents.mark_checked(held.places)
        self._let_go(held)
        return held.places

    def left(self, client: int) -> None:
        for number in [number for number, held in self._leases.items() if held.client == client]:
            self._let_go(self._leases.pop(number))

    def fresh(self, now_s: float) -> bool:
        """Return whether a client is copying that has had its lease for less than `STALE_S`."""
        return any(now_s - lease.since_s < STALE_S for lease in self._leases.values())

    def places(self) -> list[NDArray[Any]]:
        return [lease.places for lease in self._leases.values()]

    def _let_go(self, held: _Lease) -> None:
        self._residents.let_go(held.places, held.chains)
        for want, places in held.prepared:
            assert self._memory is not None
            self._memory.release(want, places)
