"""Which names in states and data sets are not those of this version? The one table of old spellings.

Names that are written as they always were, whatever the code calls them, so that earlier states stay equal:

    order of a state     `protocol` (the order's name), `part` (digest of the subset)
    plan of a conversion `parts` (number of tasks)

Names that are read, and no longer written:
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

OLD_ORDERS: Final[Mapping[str, str]] = MappingProxyType({"minio": "uniform"})
"""The order of an earlier version -> the order that has the same plans."""
