"""How many elements are read for several jobs that share a cache? (JOADER, appendix A.2)

Each job draws every element of its own set once. In a round, each job that is not done draws one element; an element
that several jobs draw in one round is read at most once. An element that is in the cache is not read. `dependent` jobs
draw by JOADER's rule (`brand.orders.joader.tree`), `independent` ones shuffle for themselves. The caches: `lru`,
`fifo`, `random`, and `refcnt` (JOADER, 4.4; `brand.simulate.rounds.Counted`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from brand.orders.base.random import RandomStream, Words
from brand.orders.joader.tree import Tree, draw_rounds
from brand.simulate.rounds import Counted

Sampling = Literal["dependent", "independent"]
Policy = Literal["lru", "fifo", "random", "refcnt"]
_ROUNDS: Final = 256


def misses(sets: Sequence[NDArray[np.integer]], slots: int, sampling: Sampling, policy: Policy, seed: int = 0) -> int:
    """Return the number of elements that are read, with a cache of `slots` elements. `sets`: the draws of each job.

    Each set has the shape (draws,).
    """
    elements = 1 + max(int(each.max()) for each in sets)
    wanted = np.bincount(np.concatenate(sets), minlength=elements)
    cache, read = _cache(policy, slots, wanted.tolist(), seed), 0
    rounds = _dependent(sets, elements, seed) if sampling == "dependent" else _independent(sets, seed)
    for drawn in rounds:
        for element in dict.fromkeys(drawn):
            read += cache.miss(element)
            cache.drawn(element, drawn.count(element))
    return read


def _dependent(sets: Sequence[NDArray[np.integer]], elements: int, seed: int) -> Iterator[list[int]]:
    tree, words = Tree(elements), Words(seed, RandomStream.ROUNDS)
    jobs = [tree.insert(np.isin(np.arange(elements), each)) for each in sets]
    while jobs := [job for job in jobs if job.left]:
        yield from draw_rounds(tree, jobs, min(_ROUNDS, *(job.left for job in jobs)), words).tolist()
        for job in [job for job in jobs if not job.left]:
            tree.remove(job)


def _independent(sets: Sequence[NDArray[np.integer]], seed: int) -> Iterator[list[int]]:
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(each).tolist() for each in sets]
    for turn in range(max(map(len, orders))):
        yield [order[turn] for order in orders if turn < len(order)]


class _Cache(Protocol):
    def miss(self, element: int) -> bool:
        """Use an element. Return whether it must be read; then it is cached."""

    def drawn(self, element: int, jobs: int) -> None:
        """Note that `jobs` jobs have drawn an element."""


class _Queue:
    """A cache with eviction `lru`, `fifo` or `random`."""

    def __init__(self, policy: Policy, slots: int, seed: int) -> None:
        self._policy, self._slots, self._held = policy, slots, OrderedDict[int, None]()
        self._rng, self._list = np.random.default_rng(seed), list[int]()

    def miss(self, element: int) -> bool:
        if element in self._held:
            if self._policy == "lru":
                self._held.move_to_end(element)
            return False
        if len(self._held) == self._slots:
            self._leave()
        self._held[element] = None
        self._list.append(element)
        return True

    def _leave(self) -> None:
        if self._policy != "random":
            self._held.popitem(last=False)
            return
        at = int(self._rng.integers(len(self._list)))
        self._list[at], self._list[-1] = self._list[-1], self._list[at]
        del self._held[self._list.pop()]

    def drawn(self, element: int, jobs: int) -> None:
        """Do nothing: draws do not matter here."""


def _cache(policy: Policy, slots: int, wanted: list[int], seed: int) -> _Cache:
    return Counted(slots, wanted, keeps=True) if policy == "refcnt" else _Queue(policy, slots, seed)
