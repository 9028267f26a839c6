"""Which plans does the planner have to make, and which of those are still of use?"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from brand.node.decide.state.features import EpochFeature
from brand.node.decide.state.lives import EpochTable, Key, PlanWanted
from brand.node.decide.state.runs import Runs
from brand.node.decide.state.tasks import MakePlan
from brand.node.memory.residents import Residents
from brand.orders.base.joins import Join

Asked = tuple[Key, tuple[Join, ...]]
"""An epoch, and the joins of its plan."""


class Plans:
    """The plans of one node that the planner is asked for. `want` requests a plan for an epoch that has none."""

    def __init__(
        self, residents: Residents, runs: Runs, lives: EpochTable, features: EpochFeature, want: Callable[[Key], None]
    ) -> None:
        self._residents, self._runs, self._lives = residents, runs, lives
        self._features, self._want = features, want
        self._asked: frozenset[Asked] = frozenset()
        """Plans that the planner was asked for and that were of use at the last check."""

    def __repr__(self) -> str:
        return f"Plans({sorted(key for key, _ in self._asked)})"

    def wanted(self, now_s: float, bridge: int) -> Iterator[MakePlan]:
        """Yield plans to make, each once. `bridge`: about how many samples memory holds for later runs."""
        for key, life in self._lives.items():
            if isinstance(life.stage, PlanWanted) and (joins := self._features.joins(key, now_s)) is not None:
                life.hand_out()
                yield self._ask(key, joins)
        for key, joins in self._features.rejoins(now_s, bridge):
            yield self._ask(key, joins)

    def remake(self, key: Key) -> None:
        """Request the plan of an epoch again, because its joins have changed. No draw of it was answered."""
        life = self._lives.get(key)
        if life is not None:
            self._residents.let_go(life.discard_plan())
            self._want(key)

    def of_use(self) -> frozenset[Asked]:
        """Return the requested plans that are still of use, as a value that any thread may keep."""
        if self._asked:
            self._asked = frozenset(asked for asked in self._asked if self._is_of_use(*asked))
        return self._asked

    def _ask(self, key: Key, joins: tuple[Join, ...]) -> MakePlan:
        self._asked |= {(key, joins)}
        return MakePlan(key, self._runs[key[0]].order, joins)

    def _is_of_use(self, key: Key, joins: tuple[Join, ...]) -> bool:
        life = self._lives.get(key)
        return life is not None and (life.planned or self._features.wants(key, joins))
