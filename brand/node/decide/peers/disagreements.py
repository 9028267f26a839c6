"""Why can a run not continue? Nodes draw different orders under its name.

The server refuses such a run before it answers a draw of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from brand.errors import UsageError
from brand.node.decide.state.runs import Runs
from brand.node.wire.drawing import Drawing
from brand.node.wire.numbers import ClientNumber, NodeNumber, RunNumber
from brand.orders.order import Order

REMEMBER_S: Final = 2.0
"""Time that a run is refused after its last client has disconnected."""


class Disagreements:
    """Runs that the server refuses, with the reasons."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._wrong: dict[RunNumber | None, str] = {}
        """Reasons by run. The reason of key None is for all runs."""
        self._lately: dict[tuple[str, Order], tuple[str, float]] = {}
        """The reason by name and order of a refused run, and the time until which it is remembered."""

    def __repr__(self) -> str:
        return f"Disagreements({self._wrong})"

    @property
    def all_refused(self) -> bool:
        """Whether another node refuses to work with this node."""
        return None in self._wrong

    def refuse_all(self, reason: str) -> None:
        """Refuse all runs, because another node refuses to work with this node."""
        self._wrong[None] = reason

    def refuse(self, name: str, order: Order, reason: str) -> None:
        """Refuse a run that another node refuses."""
        run = self._runs.number_of(name, order)
        if run is not None:
            self._wrong[run] = reason

    def clear(self) -> None:
        """Clear the reason that is for all runs after a node has agreed to work with this node."""
        self._wrong.pop(None, None)

    def note(self, runs: Iterable[RunNumber], reason: str) -> None:
        """Refuse these runs."""
        self._wrong |= dict.fromkeys(runs, reason)

    def check(self, node: NodeNumber) -> None:
        """Refuse the runs that ranks of this node (`node`) and of other nodes have begun in different ways."""
        for number, run in self._runs.items():
            reason = run.conflict(node)
            if reason is not None:
                self._wrong[number] = reason

    def refused_clients(self, now_s: float) -> Iterator[tuple[ClientNumber, UsageError]]:
        """Yield the clients to refuse, with the reasons. The server refuses them at once, and again until they
        disconnect.

        A process registers on each of its connections. A connection that opens shortly after the refusal is refused,
        too.
        """
        self._lately = {
            named: (reason, until_s) for named, (reason, until_s) in self._lately.items() if until_s > now_s
        }
        self._wrong = {run: reason for run, reason in self._wrong.items() if run is None or run in self._runs}
        for number, run in self._runs.items() if self._lately else ():
            lately = self._lately.get((run.name, run.order))
            if lately is not None:
                self._wrong.setdefault(number, lately[0])
        for wrong, reason in self._wrong.items():
            if wrong is not None:
                run = self._runs[wrong]
                self._lately[run.name, run.order] = reason, now_s + REMEMBER_S
            for client in self._runs.clients(wrong):
                if client >= 0:  # other nodes have negative numbers (`as_client`)
                    yield client, UsageError(reason)


def disagreement(here: NodeNumber, drawings: Iterable[Drawing], there: NodeNumber, drawing: Drawing) -> str | None:
    """Return why nodes `here` and `there` draw different orders under the same name, or None if they agree."""
    for ours in drawings:
        if ours.name != drawing.name:
            continue
        if ours.order != drawing.order:
            if ours.turn is None or ours.turn != drawing.turn:
                continue
            return f"nodes {here} and {there} disagree: {_differences(here, ours.order, there, drawing.order)}"
        reason = ours.begin.conflict(ours.epoch, drawing.begin) if ours.epoch == drawing.epoch else None
        if reason is not None:
            return reason
    return None


def _differences(here: NodeNumber, ours: Order, there: NodeNumber, theirs: Order) -> str:
    """Return the fields in which two orders differ, as a text."""
    found = ours.differences(theirs)
    parts = [f"{name} is {mine} on node {here} and {other} on node {there}" for name, (mine, other) in found.items()]
    if "group_chunks" in found:
        parts.append("group_chunks follows from the memory: give all nodes the same --memory (in Python: memory=)")
    return "; ".join(parts)
