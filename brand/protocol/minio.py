"""Protocol `minio`: the plan of `uniform` under the name of a baseline, the static cache MinIO of CoorDL.

CoorDL's cache takes what comes first until it is full, and never replaces it. What comes first in a random order is a
random choice, and so are the samples that `uniform` keeps. So both read the same share of an epoch.

Mohan, Phanishayee, Raniwala and Chidambaram, "Analyzing and mitigating data stalls in DNN training", PVLDB 14(5), 2021.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from brand.protocol.uniform import UniformPolicy


@dataclass(frozen=True)
class MinioPolicy(UniformPolicy):
    """The orders and the memory of `uniform`."""

    name: ClassVar[str] = "minio"
