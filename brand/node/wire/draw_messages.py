"""The messages of each batch: DRAW asks for samples, LEASE answers, TAKEN reports the samples that a client has read.

    DRAW   u32 run | u32 epoch | i64 each position

    LEASE  u64 number | u32 samples s | u32 pages g | u32 chains c, u32 pages h of the second memory | u32 joins
           4 x u32 microseconds that the draw waited for storage, another node, decoding, the server itself
           s x i64 place | u32 pages of each present sample | g x i32 page | c x u32 pages | h x i32 page | s x u8 state

    TAKEN  u32 run | u32 epoch | u32 samples | i64 each position | u64 each entry

A LEASE has the pages of the samples in memory. A TAKEN has the entries of the directory that the client has found if
the client has checked checksums; if not, it has no entries.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brand.errors import ProtocolError
from brand.node.wire.messages import CHECKED, MAX_DRAW, NO_CHAINS, PREPARED, PRESENT, Chains, Kind, frame
from brand.node.wire.numbers import Key, RunNumber

_DRAW: Final = struct.Struct("<II")
_LEASE: Final = struct.Struct("<QIIIIIIIII")
_MOST_US: Final = (1 << 32) - 1
MOST_TAKEN: Final = MAX_DRAW // 2
"""Maximum number of samples of one TAKEN."""
_TAKEN: Final = struct.Struct("<III")
_NO_ENTRIES: Final = np.empty(0, np.uint64)


class Held(NamedTuple):
    """Seconds that a server held a draw, by cause."""

    storage: float = 0.0
    """A read of this node's storage."""
    node: float = 0.0
    """A sample that another node sends."""
    decode: float = 0.0
    """A decode worker of the server."""
    server: float = 0.0
    """The plan of the epoch, ranks that have not begun it, or jobs that share."""


NOT_HELD: Final = Held()


@dataclass(frozen=True, slots=True)
class Lease:
    """A server's answer to a draw: for each position its place, the state of its sample, and the sample's pages.

    The arrays that a client reads are views of the message.
    """

    number: int
    places: NDArray[np.int64]
    state: NDArray[np.uint8]
    """State of each sample as in `messages`: 0 absent, 1 present, 2 present and checked; 4 is added if decoded."""
    counts: NDArray[np.uint32]
    """Number of pages of each present sample."""
    pages: NDArray[np.int32]
    prepared: Chains = NO_CHAINS
    """Chains in the second memory: for each decode spec of the client, those of all decoded samples."""
    joins: int = 0
    """Number of times that the run has joined other runs in the epoch; if its order grows, number of decided positions.

    A client that knows fewer asks for them.
    """
    held: Held = NOT_HELD
    """Seconds that the server held the draw, to the microsecond."""


def pack_draw(key: Key, positions: NDArray[np.int64]) -> bytes:
    return frame(Kind.DRAW, _DRAW.pack(*key), positions.tobytes())


def unpack_draw(body: bytes | memoryview) -> tuple[Key, NDArray[np.int64]]:
    """Return the epoch and the positions of a `DRAW`. Raises `ProtocolError`."""
    rest = len(body) - _DRAW.size
    if rest < 8 or rest % 8 or rest // 8 > MAX_DRAW:
        raise ProtocolError(f"a request of {len(body)} bytes")
    run, epoch = _DRAW.unpack_from(body)
    return (RunNumber(run), epoch), np.frombuffer(body, np.int64, offset=_DRAW.size)


def pack_lease(lease: Lease) -> bytes:
    """Return a `LEASE`."""
    waits = (min(_MOST_US, int(1e6 * seconds)) for seconds in lease.held)
    sizes = len(lease.places), len(lease.pages), len(lease.prepared), len(lease.prepared.pages)
    head = _LEASE.pack(lease.number, *sizes, lease.joins, *waits)
    parts = (lease.places, lease.counts, lease.pages, lease.prepared.counts, lease.prepared.pages, lease.state)
    return frame(Kind.LEASE, head, *(part.tobytes() for part in parts))


def unpack_lease(body: bytes | memoryview) -> Lease:
    """Invert `pack_lease`. Raises `ProtocolError`."""
    if len(body) < _LEASE.size:
        raise ProtocolError("an incomplete lease")
    number, samples, pages, chains, more, joins, *waits = _LEASE.unpack_from(body)
    state_at = len(body) - samples
    prepared_at = state_at - 4 * (chains + more)
    counts_at = _LEASE.size + 8 * samples
    if prepared_at < counts_at or (prepared_at - counts_at - 4 * pages) % 4:
        raise ProtocolError("a lease whose parts do not add up")
    here = (prepared_at - counts_at - 4 * pages) // 4
    if not 0 <= here <= samples:
        raise ProtocolError("a lease whose parts do not add up")
    lease = Lease(
        number,
        np.frombuffer(body, np.int64, samples, _LEASE.size),
        np.frombuffer(body, np.uint8, samples, state_at),
        np.frombuffer(body, np.uint32, here, counts_at),
        np.frombuffer(body, np.int32, pages, counts_at + 4 * here),
        Chains(
            np.frombuffer(body, np.uint32, chains, prepared_at),
            np.frombuffer(body, np.int32, more, prepared_at + 4 * chains),
        ),
        joins,
        Held(*(wait / 1e6 for wait in waits)),
    )
    ready = int(np.count_nonzero(lease.state & PREPARED))
    adds_up = np.count_nonzero(lease.state) == np.count_nonzero(lease.state & (PRESENT | CHECKED)) == here
    adds_up &= chains > 0 == chains % ready if ready else not chains
    for part in (Chains(lease.counts, lease.pages), lease.prepared):
        adds_up &= int(part.counts.sum(dtype=np.int64)) == len(part.pages) and 0 not in part.counts
    if not adds_up:
        raise ProtocolError("a lease whose parts do not add up")
    return lease


@dataclass(frozen=True, slots=True)
class DirectHits:
    """The samples that a client has read itself, as a server reads them. Arrays are views of the message."""

    run: int
    epoch: int
    positions: NDArray[np.int64]
    entries: NDArray[np.uint64]
    """The entry of each sample, or none at all."""


def repeat(positions: NDArray[np.int64]) -> bool:
    """Return whether a position occurs twice. Positions mostly ascend; planned batches have them in any order."""
    return bool((np.diff(positions) <= 0).any()) and len(np.unique(positions)) < len(positions)


def pack_taken(run: int, epoch: int, positions: NDArray[np.int64], entries: NDArray[np.uint64] = _NO_ENTRIES) -> bytes:
    return frame(Kind.TAKEN, _TAKEN.pack(run, epoch, len(positions)), positions.tobytes(), entries.tobytes())


def unpack_taken(body: bytes | memoryview) -> DirectHits:
    """Invert `pack_taken`, with validation. Raises `ProtocolError`."""
    if len(body) < _TAKEN.size:
        raise ProtocolError("an incomplete TAKEN")
    run, epoch, samples = _TAKEN.unpack_from(body)
    rest = len(body) - _TAKEN.size
    if not 0 < samples <= MOST_TAKEN or rest not in (8 * samples, 16 * samples):
        raise ProtocolError(f"{samples} direct hits, in a message of {len(body)} bytes")
    positions = np.frombuffer(body, np.int64, samples, _TAKEN.size)
    return DirectHits(run, epoch, positions, np.frombuffer(body, np.uint64, offset=_TAKEN.size + 8 * samples))
