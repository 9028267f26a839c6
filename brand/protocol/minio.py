"""Protocol `minio`: a uniform shuffle in which each sample is a read of its own, and memory keeps samples for good.

The order of an epoch is a random permutation of all samples, so it depends on the seed alone. A sample is read when it
is drawn, and then leaves memory, unless it is kept. Kept samples are chosen one by one, by the seed, as many as memory
holds. They are never replaced: this is the cache MinIO of CoorDL, which takes what comes first until it is full. What
comes first in a random order is a random choice, too, so both read the same share of an epoch.

`Stripes(length=1)` has the same distribution of orders, but not the same memory: it holds about a chunk of each group
for mixing, which single samples do not need. Here a plan holds one sample at a time, and memory keeps all the others.

This is a baseline. A read costs the server as much for one sample as for a stripe.

Mohan, Phanishayee, Raniwala and Chidambaram, "Analyzing and mitigating data stalls in DNN training", PVLDB 14(5), 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from brand.protocol.mapping import Mapping
from brand.protocol.plan import READ, Plan
from brand.protocol.policy import Policy
from brand.protocol.random import Stream, permutation


@dataclass(frozen=True)
class MinioPolicy(Policy):
    """Samples come in random order, each by a read of its own. Groups only say which node owns which chunks."""

    name: ClassVar[str] = "minio"

    def plan(self, mapping: Mapping, seed: int, epoch: int) -> Plan:
        """The plan of one epoch. It does not depend on the groups of the mapping."""
        sample_of = permutation(mapping.samples, seed, Stream.ACCESS, epoch)
        reads = np.empty(mapping.samples, READ)
        reads["deadline"], reads["count"] = np.arange(mapping.samples), 1
        reads["chunk"], reads["first"] = np.divmod(sample_of, mapping.chunk_size)
        return Plan(mapping, sample_of, reads)

    def held(self, mapping: Mapping) -> int:
        """One sample."""
        del mapping
        return 1

    @property
    def kept_unit(self) -> int:
        """A sample."""
        return 1
