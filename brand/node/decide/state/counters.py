"""What has a node server done so far? Plain counters, the same for `ds.stats()`, `brand top` and tests."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.node.wire.lease import NOT_HELD, Held


@dataclass(slots=True)
class DrawCounters:
    """Draws of this node's clients, since the server started."""

    draws: int = 0
    """Drawn samples."""
    from_memory: int = 0
    """Drawn samples that came from the server's memory."""
    taken: int = 0
    """Those of them that clients took by themselves, without asking."""
    exact: int = 0
    """Drawn samples that clients read one by one."""
    waited: int = 0
    """Samples whose draw the server could not answer at once."""
    wait_s: float = 0.0
    """Seconds that draws waited, all clients together."""
    storage_wait_s: float = 0.0
    """Of these, seconds that they waited for reads of this node's storage."""
    node_wait_s: float = 0.0
    """For samples of other nodes."""
    preparation_wait_s: float = 0.0
    """For preparers."""
    server_wait_s: float = 0.0
    """For plans, for ranks that had not begun, and for jobs that share."""

    def waits_by_cause(self) -> dict[str, float]:
        """Seconds that draws waited, by cause."""
        return {cause: getattr(self, f"{cause}_wait_s") for cause in Held._fields}

    def asked(self, samples: int) -> None:
        """A client draws."""
        self.draws += samples

    def takes(self, samples: int) -> None:
        """A client has taken samples by itself."""
        self.draws += samples
        self.from_memory += samples
        self.taken += samples

    def waits(self, samples: int) -> None:
        """A draw waits."""
        self.waited += samples

    def answered(self, from_memory: int, exact: int, wait_s: float, held: Held = NOT_HELD) -> None:
        """A draw is answered."""
        self.from_memory += from_memory
        self.exact += exact
        self.wait_s += wait_s
        self.storage_wait_s += held.storage
        self.node_wait_s += held.node
        self.preparation_wait_s += held.preparation
        self.server_wait_s += held.server


@dataclass(slots=True)
class ReadCounters:
    """Large reads, since the server started. Each sample of a bundle is a read."""

    reads: int = 0
    read_bytes: int = 0
    read_samples: int = 0
    held_samples: int = 0
    """Samples that these reads brought into memory: `held_samples / read_samples` is the mean fill rate."""
    failed_reads: int = 0

    def started(self, pieces: NDArray[np.void]) -> None:
        """Reads begin: pieces of dtype `PIECE`."""
        self.reads += len(pieces)
        self.read_bytes += int(pieces["size"].sum())
        self.read_samples += int(pieces["span"].sum())
        self.held_samples += int(pieces["samples"].sum())

    def left(self, pieces: NDArray[np.void]) -> None:
        """Of reads that have begun, these pieces were not read: the page cache holds them."""
        self.reads -= len(pieces)
        self.read_bytes -= int(pieces["size"].sum())
        self.read_samples -= int(pieces["span"].sum())
        self.held_samples -= int(pieces["samples"].sum())

    def failed(self, reads: int) -> None:
        """Reads failed, or could not begin."""
        self.failed_reads += reads


@dataclass(slots=True)
class NodeCounters:
    """Traffic between this node and others, since the server started."""

    sent: int = 0
    """Samples sent to other nodes."""
    sent_bytes: int = 0
    received: int = 0
    """Samples that other nodes have sent."""
    received_bytes: int = 0
    requests: int = 0
    """Samples for which this node asked their owners, as the plan of `slots` foresees."""
    hurried: int = 0
    """Samples that had not come when they were drawn, so this node asked their owners for them."""
    late: int = 0
    """Samples that another node did not send in time."""
    fetched: int = 0
    """Late samples that this node's storage does not have, so this node asked their owners for them by name."""

    def sends(self, samples: int, size: int) -> None:
        """This node sends samples of `size` bytes."""
        self.sent += samples
        self.sent_bytes += size

    def receives(self, samples: int, size: int) -> None:
        """Samples of `size` bytes have come."""
        self.received += samples
        self.received_bytes += size

    def asks(self, samples: int, *, hurried: bool) -> None:
        """This node asks an owner for samples: as the plan foresees, or because a draw waits (`hurried`)."""
        if hurried:
            self.hurried += samples
        else:
            self.requests += samples

    def gives_up(self, samples: int) -> None:
        """This node does not wait for samples any more."""
        self.late += samples

    def fetches(self, samples: int) -> None:
        """This node asks an owner for samples by name."""
        self.fetched += samples


@dataclass(slots=True)
class CacheCounters:
    """Traffic of the cache folder, since the server started."""

    reads: int = 0
    """Large reads from the folder. None of them counts as a read of the storage."""
    read_bytes: int = 0
    written_bytes: int = 0
    bad: int = 0
    """Samples of the folder that could not be read there."""

    def started(self, pieces: NDArray[np.void]) -> None:
        """Reads begin: pieces of dtype `PIECE`."""
        self.reads += len(pieces)
        self.read_bytes += int(pieces["size"].sum())

    def wrote(self, size: int) -> None:
        """Samples of `size` bytes were written."""
        self.written_bytes += size

    def lost(self, samples: int) -> None:
        """Samples can no longer be read."""
        self.bad += samples

    def to_json(self) -> dict[str, int]:
        """The counters as plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Counters:
    """All counters of a node."""

    draws: DrawCounters = field(default_factory=DrawCounters)
    reads: ReadCounters = field(default_factory=ReadCounters)
    nodes: NodeCounters = field(default_factory=NodeCounters)
    cache: CacheCounters = field(default_factory=CacheCounters)

    def to_json(self, mean_bytes: float) -> dict[str, Any]:
        """The counters as plain values, with three ratios. `mean_bytes` is the mean size of a stored sample.

        `hit_ratio`: share of the draws that came from memory. `fill_rate`: share of the samples read that went into
        memory. `amplification`: bytes read from storage, exact reads included, over bytes drawn here or sent away.
        """
        draws, reads, nodes = self.draws, self.reads, self.nodes
        used = (draws.draws - nodes.received + nodes.sent) * mean_bytes
        return {
            **asdict(draws),
            **asdict(reads),
            **asdict(nodes),
            "hit_ratio": draws.from_memory / draws.draws if draws.draws else None,
            "fill_rate": reads.held_samples / reads.read_samples if reads.read_samples else None,
            "amplification": (reads.read_bytes + draws.exact * mean_bytes) / used if used > 0 else None,
        }
