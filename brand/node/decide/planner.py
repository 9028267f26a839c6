"""Execute the instructions that ask for a plan or a window. Pure: a server calls this in a thread, a replay at once."""

from __future__ import annotations

from brand.node.decide.state.instructions import MakePlan, MakeWindow
from brand.node.decide.stimuli import PlanMade, WindowMade
from brand.orders.base.plan import read_of_sample


def make_plan(wanted: MakePlan) -> PlanMade:
    """Return the plan of an epoch, in windows if the epoch takes them and the order has them."""
    epoch = wanted.key[1]
    if wanted.ruled is not None:
        wanted.ruled.prepare()
    windows = wanted.order.windows(epoch) if wanted.in_windows else None
    if windows is not None:
        return PlanMade(wanted.key, windows, None, wanted.joins)
    plan = wanted.order.plan(epoch, wanted.joins)
    return PlanMade(wanted.key, plan, read_of_sample(plan), wanted.joins)


def make_window(wanted: MakeWindow) -> WindowMade:
    """Return a window of the plan of an epoch."""
    return WindowMade(wanted.key, wanted.number, *wanted.window.make())
