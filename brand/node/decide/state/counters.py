"""Counters of a data server's work, the same for `ds.stats()`, `brand top` and tests."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.node.wire.draw_messages import NOT_HELD, Held


@dataclass(slots=True)
class DrawCounters:
    """Draws of this node's clients, since the server started."""

    fetched: int = 0
    """Samples that clients have fetched."""
    from_memory: int = 0
    """Drawn samples that were in the server's memory."""
    direct_hits: int = 0
    """Samples of `from_memory` that clients copied themselves, without a request."""
    direct: int = 0
    """Drawn samples that clients read one by one."""
    waited: int = 0
    """Samples whose draw the server could not answer at once."""
    wait_s: float = 0.0
    """Seconds that draws waited, added up over all clients."""
    storage_wait_s: float = 0.0
    """Seconds of `wait_s` for reads of this node's storage."""
    node_wait_s: float = 0.0
    """Seconds of `wait_s` for samples of other nodes."""
    decode_wait_s: float = 0.0
    """Seconds of `wait_s` for decode workers."""
    server_wait_s: float = 0.0
    """Seconds of `wait_s` for plans, for ranks that had not begun, and for jobs that share."""

    def waits_by_cause(self) -> dict[str, float]:
        return {cause: getattr(self, f"{cause}_wait_s") for cause in Held._fields}

    def add_drawn(self, samples: int) -> None:
        self.fetched += samples

    def add_taken(self, samples: int) -> None:
        """Count samples that a client has copied itself."""
        self.fetched += samples
        self.from_memory += samples
        self.direct_hits += samples

    def add_waiting(self, samples: int) -> None:
        self.waited += samples

    def add_answered(self, from_memory: int, direct: int, wait_s: float, held: Held = NOT_HELD) -> None:
        self.from_memory += from_memory
        self.direct += direct
        self.wait_s += wait_s
        self.storage_wait_s += held.storage
        self.node_wait_s += held.node
        self.decode_wait_s += held.decode
        self.server_wait_s += held.server


@dataclass(slots=True)
class ReadCounters:
    """Large reads, since the server started. Each sample of a bundle counts as one read."""

    reads: int = 0
    read_bytes: int = 0
    read_samples: int = 0
    buffered: int = 0
    """Samples that these reads loaded into memory: `buffered / read_samples` is the mean read utilisation."""
    failed_reads: int = 0

    def add_started(self, pieces: NDArray[np.void], times: int = 1) -> None:
        """Count reads that begin: pieces of dtype `PIECE`. `times` is -1 to uncount them."""
        self.reads += times * len(pieces)
        self.read_bytes += times * int(pieces["size"].sum())
        self.read_samples += times * int(pieces["span"].sum())
        self.buffered += times * int(pieces["samples"].sum())

    def add_failed(self, reads: int) -> None:
        self.failed_reads += reads


@dataclass(slots=True)
class NodeCounters:
    """Traffic between this node and others, since the server started."""

    sent: int = 0
    """Samples sent to other nodes."""
    sent_bytes: int = 0
    received: int = 0
    """Samples received from other nodes."""
    received_bytes: int = 0
    requests: int = 0
    """Samples that this node requested from their owners, as the plan of `slots` foresees."""
    on_demand: int = 0
    """Samples that had not arrived when they were drawn, so that this node requested them from their owners."""
    timeouts: int = 0
    """Samples that another node did not send in time."""
    remote_reads: int = 0
    """Late samples that this node's storage does not have, and that this node requested from their owners by index."""

    def add_sent(self, samples: int, size: int) -> None:
        self.sent += samples
        self.sent_bytes += size

    def add_received(self, samples: int, size: int) -> None:
        self.received += samples
        self.received_bytes += size

    def add_requested(self, samples: int, *, on_demand: bool) -> None:
        """Count samples that this node requests from an owner: as planned, or because a draw waits (`on_demand`)."""
        if on_demand:
            self.on_demand += samples
        else:
            self.requests += samples

    def add_late(self, samples: int) -> None:
        self.timeouts += samples

    def add_fetched(self, samples: int) -> None:
        self.remote_reads += samples


@dataclass(slots=True)
class CacheCounters:
    """Traffic of a cache folder, since the server started."""

    reads: int = 0
    """Large reads from the folder. None of them counts as a read of the storage."""
    read_bytes: int = 0
    written_bytes: int = 0
    bad: int = 0
    """Samples of the folder that could not be read from it."""
    bypassed: int = 0
    """Reads of samples in the folder that used the storage, because it was expected to be faster."""
    misjudged: int = 0
    """Reads of `bypassed` that failed, or took longer than the folder was expected to take."""

    def add_started(self, pieces: NDArray[np.void]) -> None:
        """Count reads that begin: pieces of dtype `PIECE`."""
        self.reads += len(pieces)
        self.read_bytes += int(pieces["size"].sum())

    def add_written(self, size: int) -> None:
        self.written_bytes += size

    def add_lost(self, samples: int) -> None:
        self.bad += samples

    def add_bypassed(self) -> None:
        self.bypassed += 1

    def add_misjudged(self) -> None:
        self.misjudged += 1

    def to_json(self) -> dict[str, int]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Counters:
    """All counters of a node."""

    draws: DrawCounters = field(default_factory=DrawCounters)
    reads: ReadCounters = field(default_factory=ReadCounters)
    nodes: NodeCounters = field(default_factory=NodeCounters)
    cache: list[CacheCounters] = field(default_factory=list)
    """Those of each cache folder, the fastest one first."""

    def to_json(self, mean_bytes: float) -> dict[str, Any]:
        """Return the counters as plain values, with three ratios. `mean_bytes` is the mean size of a stored sample.

        `hit_ratio`: fraction of the draws that were in memory. `read_utilisation`: fraction of the read samples that
        were loaded. `read_amplification`: bytes read from storage, also directly, over bytes drawn here or sent away.
        """
        draws, reads, nodes = self.draws, self.reads, self.nodes
        used = (draws.fetched - nodes.received + nodes.sent) * mean_bytes
        return {
            **asdict(draws),
            **asdict(reads),
            **asdict(nodes),
            "hit_ratio": draws.from_memory / draws.fetched if draws.fetched else None,
            "read_utilisation": reads.buffered / reads.read_samples if reads.read_samples else None,
            "read_amplification": (reads.read_bytes + draws.direct * mean_bytes) / used if used > 0 else None,
        }
