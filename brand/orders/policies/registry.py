"""The orders by the names that users, states and messages give them."""

from __future__ import annotations

from typing import Any, Final, Literal

from brand.errors import UsageError
from brand.formats.constants import OLD_ORDERS
from brand.orders.base.policy import OrderChoice, Policy, check_type
from brand.orders.policies.other_systems import CoorDL, Joader, Pool
from brand.orders.policies.shared_policy import Shared
from brand.orders.policies.slot_policy import Slots
from brand.orders.policies.storage_order import StorageOrder
from brand.orders.policies.stripe_policy import Stripes
from brand.orders.policies.uniform import Uniform

CHOICES: Final[tuple[type[OrderChoice], ...]] = (Stripes, Slots, Uniform, Shared, StorageOrder, Pool, CoorDL, Joader)
"""The choices of all orders. To register an order, add the class of its choice."""
POLICIES: Final[dict[str, type[Policy]]] = {choice.policy.name: choice.policy for choice in CHOICES}
"""The policies by the names in states and messages."""
NAMED: Final[dict[str, type[OrderChoice]]] = {each.policy.name: each for each in CHOICES if not each.baseline}
"""The choices by the names that users give."""

OrderOption = Literal["stripes", "slots", "uniform", "shared", "storage"] | OrderChoice
"""An order, as users give it: by name, or with its options."""


def policy_named(name: Any) -> type[Policy]:
    """Return the policy of a name, also of a name in states of earlier versions. Raises ValueError if there is none."""
    check_type("protocol", name, str)
    name = OLD_ORDERS.get(name, name)
    if name not in POLICIES:
        raise ValueError(f"order {name!r} is none of {', '.join(map(repr, POLICIES))}")
    return POLICIES[name]


def choice_of(option: OrderOption) -> OrderChoice:
    """Return the choice that a user gives. Raises `UsageError` if it is neither a name nor a choice."""
    if isinstance(option, OrderChoice):
        return option
    if not isinstance(option, str) or option not in NAMED:
        names = ", ".join(map(repr, NAMED))
        classes = ", ".join(f"{each.__name__}(...)" for each in CHOICES)
        raise UsageError(f"order={option!r}: give {names}, or one of {classes}")
    return NAMED[option]()
