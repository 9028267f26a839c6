"""Orders of other systems, to compare with. See `docs/protocols/baselines.md`."""

from brand.protocol.coordl import CoorDL as CoorDL
from brand.protocol.joader_policy import Joader as Joader
from brand.protocol.pool_policy import Pool as Pool

__all__ = ["CoorDL", "Joader", "Pool"]
