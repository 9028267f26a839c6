"""Do the ranks of a job say the same, where no node server can see it? The first to say something says it for all.

Ranks that draw from a mixture divide one sequence. If one of them had other weights, samples would be lost, and others
would come twice. The ranks run one program, so what one says the n-th time at a place, all say the n-th time there. It
stands in the job's store, where each rank compares its own with the first one. No rank waits for another.
"""

from __future__ import annotations

import hashlib
from collections import Counter

from brand.errors import UsageError
from brand.torch.discovery import first_said

_said = Counter[str]()
"""How often this process has said something, by place."""


def check_agreed(place: str, facts: str, what: str) -> None:
    """This rank says `facts`. Raises `UsageError` where the first rank to come here has said something else.

    `what` names it to the user. Nothing happens where ranks have no store in common.
    """
    _said[place] += 1
    key = hashlib.blake2s(f"{place}|{_said[place]}".encode(), digest_size=12).hexdigest()
    first = first_said(f"agree/{key}", facts)
    if first not in (None, facts):
        raise UsageError(f"two ranks of one job disagree: {what} {facts} here and {first} there; give all the same")
