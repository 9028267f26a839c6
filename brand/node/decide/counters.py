"""What has a node server done so far? Plain counters, the same for `ds.stats()`, `brand top` and tests."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class Counters:
    """Since the server started."""

    draws: int = 0
    """Samples that were drawn."""
    from_memory: int = 0
    """... of which these were delivered from memory"""
    exact: int = 0
    """... and these were read by the client, one by one."""
    waited: int = 0
    """Samples whose draw could not be answered at once."""
    wait_s: float = 0.0
    """Seconds that draws waited, all clients together."""
    reads: int = 0
    """Large reads."""
    read_bytes: int = 0
    read_samples: int = 0
    held_samples: int = 0
    """Samples that these reads brought into memory: `held_samples / read_samples` is the mean fill rate."""
    failed_reads: int = 0
    sent: int = 0
    """Samples sent to other nodes."""
    sent_bytes: int = 0
    received: int = 0
    """Samples that other nodes have sent."""
    received_bytes: int = 0
    requests: int = 0
    """Samples for which another node was asked on demand, as the plan of `slots` foresees."""
    hurried: int = 0
    """Samples that had not come when they were drawn, and for which their owner was asked."""
    late: int = 0
    """Samples that another node did not send in time;"""
    fetched: int = 0
    """... and those for which it was asked by name after that, where storage does not have them."""

    def to_json(self, mean_bytes: float) -> dict[str, Any]:
        """As plain values, with the ratios that follow; `mean_bytes` is the mean size of a stored sample.

        `hit_ratio`: share of the draws that came from memory. `fill_rate`: share of the samples read that were held.
        `amplification`: bytes read from storage, exact reads included, over bytes that were drawn here or sent away.
        """
        used = (self.draws - self.received + self.sent) * mean_bytes
        return {
            **asdict(self),
            "hit_ratio": self.from_memory / self.draws if self.draws else None,
            "fill_rate": self.held_samples / self.read_samples if self.read_samples else None,
            "amplification": (self.read_bytes + self.exact * mean_bytes) / used if used > 0 else None,
        }
