"""The table of names in states and data sets that differ from the names in the code of this version.

Names that are still written in their old spelling, so that earlier states remain equal:

    order of a state     `protocol` (the order's name), `part` (digest of the subset)
    batches of a state   `size`, `most`, `row`, `rows` (the limits of `LengthBatchSampler` and `PackedBatchSampler`)
    plan of a conversion `parts` (number of tasks)

Names that are read, and no longer written:
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

OLD_ORDERS: Final[Mapping[str, str]] = MappingProxyType({"minio": "uniform"})
"""The order of an earlier version -> the order that has the same plans."""
