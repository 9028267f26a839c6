"""What does one node do next if no feature is on? It decides on its epochs, draws, reads and cached samples.

A draw waits for the reads that load its samples. If no more reads can start (`unblock`), the node frees memory: first
samples that wait to be written to the cache folder, then samples that jobs hold early, then samples of runs without
draws, then skipped positions, then cached samples. If that is not enough, it answers the draw with the samples in
memory, and the client reads the missing samples directly. Lack of memory never changes the sample order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.node.decide.cache.caching import CacheStart, Caching
from brand.node.decide.cache.keeping import Keeping, Reserved
from brand.node.decide.draws.draws import Draws
from brand.node.decide.draws.job_stats import jobs
from brand.node.decide.epochs.epochs import Epochs
from brand.node.decide.reads.operations import StoredChunks
from brand.node.decide.reads.reads import Reads
from brand.node.decide.state.counters import Counters
from brand.node.decide.state.features import LEAST, Decodes
from brand.node.decide.state.members import Members, SampleLimits, largest_sent
from brand.node.decide.stimuli import KeptChosen
from brand.node.memory.allocator import Allocator
from brand.node.memory.residents import Residents, as_chosen
from brand.node.wire.numbers import ClientNumber, NodeNumber
from brand.reprs import Reprs

LARGEST_SHARE: Final = 4
"""A node never holds a sample that is larger than `1 / LARGEST_SHARE` of its memory."""
SKIP_SLACK: Final = 8192
"""Positions that are this far behind the draws were skipped. Nearer positions may be with a slow worker.

If half of the samples that fit in memory are fewer, their number counts instead.
"""


@dataclass(frozen=True, slots=True)
class DecodingStart:
    """The decoded memory and the decode workers of a server."""

    allocator: Allocator
    workers: int
    least_runs: int = 1
    """Number of runs that must have the same decode spec before the server decodes for it."""
    allotment: str = LEAST
    """How the workers are divided among ranks: `LEAST`, or a name of `brand.node.decide.decoding.allotment.BY_NAME`."""


def epochs_of(
    residents: Residents,
    chunk_size: int,
    members: Members,
    remote_pages: int,
    unreachable: Callable[[], Iterable[NodeNumber]],
) -> Epochs:
    """Return the epochs of a node that has begun none. Other nodes may fill `remote_pages` of its memory."""
    sent = largest_sent(remote_pages, members.nodes)
    limits = SampleLimits(residents, _largest(residents), members.node, sent)
    return Epochs(residents, limits, chunk_size, members, unreachable)


def _largest(residents: Residents) -> int:
    return max(1, (residents.pool.allocator.count - 1) // LARGEST_SHARE)


class Core(Reprs, shows="residents draws reads epochs"):
    """The state of a data server without its features.

    Other nodes may fill `remote_pages` of its memory. `decodes` decodes samples for clients. None if clients decode.
    """

    def __init__(
        self,
        data: StoredChunks,
        residents: Residents,
        epochs: Epochs,
        members: Members,
        remote_pages: int,
        cache: CacheStart | None,
        decodes: Decodes | None,
    ) -> None:
        self.data, self.residents, self.remote_pages, self.epochs = data, residents, remote_pages, epochs
        self._decodes = decodes
        self.counters = Counters()
        self.caching = Caching(residents, data.chunk_size, _largest(residents), self.counters.cache, cache)
        self.reads = Reads(data, residents, epochs, self.caching, self.counters, remote_pages)
        self.draws = Draws(residents, epochs, members, self.counters.draws, decodes)
        reserved = Reserved(remote_pages, data.storage.busy_bytes)
        self.keeping = Keeping(residents, epochs, members, self.caching, reserved)

    @property
    def idle(self) -> bool:
        """Whether no client waits for a draw, and no other node for samples."""
        return not self.draws.waiting and not self.epochs.features.waited_for

    def on_client_gone(self, client: ClientNumber) -> None:
        """Release the draws, leases and epochs of a client that has disconnected."""
        self.draws.on_client_gone(client)
        self.epochs.remove_client(client)

    @property
    def bridge(self) -> int:
        """Estimate of the samples that memory holds for runs that draw them later than others."""
        residents = self.residents
        pages = residents.pool.allocator.count - 1 - self.remote_pages - residents.kept_pages
        return int(pages / residents.pool.mean_pages / 2)

    def on_choice(self, chosen: KeptChosen) -> None:
        """Apply the planner's choice of samples for the memory cache and the cache folders."""
        if not self.keeping.on_choice(chosen.number):
            return
        if chosen.mask is not None:
            mask = as_chosen(chosen.mask)
            if chosen.since is not None:
                kept = self.residents.kept_places()
                self._hold_for_epochs(kept[~mask.at(kept)])
            self.residents.keep(mask)
            if chosen.since is not None:
                self.epochs.rebuild()
        if chosen.cached is not None:
            self.caching.on_choice(chosen.cached, chosen.since, chosen.whole_unit)

    def unblock(self, now_s: float) -> bool:
        """Free memory, or answer the oldest draw with the samples in memory, if draws wait and no more reads can start.

        Returns whether either was done.
        """
        if self.draws.settle(now_s):
            return True
        stuck = self.draws.first_stuck(now_s)
        elsewhere = self.reads.no_room and self.epochs.features.waits_for_reads
        if (stuck is None and not elsewhere) or self.reads.under_way or self.draws.leases.fresh(now_s):
            return False
        if self.reads.waits_for_plan(now_s):  # of any epoch: no read is missing memory
            return False
        made_room = (
            self.caching.writing.make_room()
            or self.reads.make_room(now_s)
            or self.epochs.drop_idle(now_s)
            or self._give_up_skipped()
            or self.keeping.evict_some(self.data.chunk_size)
        )
        if not made_room and stuck is not None:
            self.draws.answer_stuck(stuck, now_s)
        return made_room or stuck is not None

    def tend(self, now_s: float) -> None:
        """Answer draws that wait for nothing any more, and end draws that have waited too long."""
        self.epochs.tick(now_s)
        self.draws.settle(now_s)
        if self.draws.tend(now_s):
            self.epochs.drop_idle(now_s)  # samples of idle runs may fill the memory that owners need to send
        while self.draws.settle(now_s) or self.draws.end_overdue(now_s):
            pass  # an answer may let draws of other jobs in lock step go on

    @property
    def used_bytes(self) -> int:
        """Bytes of the memory for samples that are in use."""
        allocator = self.residents.pool.allocator
        return (allocator.count - 1 - allocator.free) * allocator.page

    def facts(self, mean_bytes: float, now_s: float) -> dict[str, Any]:
        """Return counters, memory by kind in bytes, and progress, as plain values."""
        allocator, residents = self.residents.pool.allocator, self.residents
        page, active = allocator.page, [item for item in self.epochs.lives.live() if item[1].begun]
        return {
            **self.counters.to_json(mean_bytes),
            "memory": {
                "limit": allocator.bytes,
                "used": self.used_bytes,
                "cached": residents.kept_pages * page,
                "leased": sum(int(residents.counts(p).sum()) for p in self.draws.leases.places()) * page,
                "free": allocator.free * page,
            },
            "cache": self.caching.facts(),
            "decoding": None if self._decodes is None else self._decodes.facts(),
            "reading": self.reads.under_way,
            "waiting": len(self.draws.waiting),
            "jobs": jobs(self.epochs, now_s),
            "epochs": [
                {"run": run, "epoch": epoch, "fetched": at.drawn, "samples": len(residents.pages_of), "start": at.start}
                for (run, epoch), at in ((key, live.epoch.progress) for key, live in active)
            ],
        }

    def _hold_for_epochs(self, dropped: NDArray[np.intp]) -> None:
        """Have the active epochs hold cached samples that are about to be dropped, until their ranks have drawn them.

        An epoch of a job that does not share plans no reads of samples that are cached when it is built.
        """
        for _, live in self.epochs.lives.live():
            epoch = live.epoch
            if not epoch.plan.shares:
                self.residents.refer(epoch.hold(dropped, epoch.front() - self._skip_slack * epoch.division.replicas))

    @property
    def _skip_slack(self) -> int:
        pool = self.residents.pool
        return min(SKIP_SLACK, int(pool.allocator.count / pool.mean_pages / 2))

    def _give_up_skipped(self) -> bool:
        """Free samples before the positions that clients ask for. Return whether there were any."""
        found, slack = False, self._skip_slack
        for key, live in self.epochs.lives.live():
            waiting = [draw.positions for draw in self.epochs.lives[key].draws]
            if waiting:
                epoch = live.epoch
                before = epoch.skipped_before(waiting) - slack * epoch.division.replicas
                held = epoch.give_up_before(max(before, epoch.progress.start))
                self.residents.let_go(held)
                found = found or bool(len(held))
        return found
