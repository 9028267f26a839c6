"""Which policies exist, by the names that JSON gives them?"""

from __future__ import annotations

from typing import Any, Final

from brand.protocol.coordl import CoordlPolicy
from brand.protocol.joader_policy import JoaderPolicy
from brand.protocol.minio import MinioPolicy
from brand.protocol.policy import Policy, check_type
from brand.protocol.pool_policy import PoolPolicy
from brand.protocol.shared_policy import SharedPolicy
from brand.protocol.slot_policy import SlotPolicy
from brand.protocol.stripe_policy import StripePolicy
from brand.protocol.uniform import UniformPolicy

POLICIES: Final[dict[str, type[Policy]]] = {
    policy.name: policy
    for policy in (
        StripePolicy,
        SlotPolicy,
        UniformPolicy,
        PoolPolicy,
        MinioPolicy,
        SharedPolicy,
        CoordlPolicy,
        JoaderPolicy,
    )
}
"""To register a policy, add its class. States and messages name only policies that are here."""


def policy_named(name: Any) -> type[Policy]:
    """The policy of this name. Raises ValueError where no policy has the name."""
    check_type("protocol", name, str)
    if name not in POLICIES:
        raise ValueError(f"protocol {name!r} is none of {', '.join(map(repr, POLICIES))}")
    return POLICIES[name]
