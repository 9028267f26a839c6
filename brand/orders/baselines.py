"""Orders of other systems, to compare with. See `docs/dev/orders.md`."""

from brand.orders.policies.other_systems import CoorDL as CoorDL
from brand.orders.policies.other_systems import Joader as Joader
from brand.orders.policies.other_systems import Pool as Pool

__all__ = ["CoorDL", "Joader", "Pool"]
