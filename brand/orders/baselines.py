"""Orders of other systems, to compare with. See `docs/protocols/baselines.md`."""

from brand.orders.policies.coordl import CoorDL as CoorDL
from brand.orders.policies.joader_policy import Joader as Joader
from brand.orders.policies.pool_policy import Pool as Pool

__all__ = ["CoorDL", "Joader", "Pool"]
