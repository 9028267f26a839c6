"""Which member of a mixture does a ticket belong to, and which epoch of each member has begun? `MixtureMembers`
knows.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

from brand.errors import UsageError
from brand.node.wire.drawing import Announcement
from brand.orders.mixtures.mixed_order import check_weights
from brand.orders.order import Order
from brand.torch.order.draw_port import DrawPort

ONE_NODE: Final = (
    "a Mixture draws on one node: on several nodes, a data server would not know what its ranks draw. Train on one "
    "node, or make one data set of all of them (docs/mixtures.md)"
)


class MixtureMembers:
    """The members of one mixture, by number. `keys` are the data sets by which users name them. Can be pickled."""

    def __init__(self, keys: Sequence[Hashable], ports: Sequence[DrawPort]) -> None:
        self._keys, self.ports = tuple(keys), tuple(ports)
        self.name = f"a mixture of {', '.join(port.name for port in self.ports)}"
        self._member_of: dict[int, int] = {}
        """Number of the member by tag."""
        self._begun: dict[int, int] = {}
        """The last epoch that this process has begun, by tag."""

    def __repr__(self) -> str:
        return f"MixtureMembers({self.name}, epochs by tag {self._begun})"

    def weights_of(self, weights: Mapping[Any, float]) -> tuple[float, ...]:
        """Return the weights by number of the member. Raises `UsageError`."""
        if not isinstance(weights, Mapping) or set(weights) != set(self._keys):
            raise UsageError("weights are a dict with a number for each member of the Mixture, and for nothing else")
        numbers = [weights[key] for key in self._keys]
        try:
            check_weights(numbers)
        except ValueError as error:
            raise UsageError(f"this is no Mixture: {error}") from None
        return tuple(map(float, numbers))

    def know(self, tags: Sequence[int]) -> None:
        """Store the tags by which a sampler draws from the members."""
        self._member_of |= {tag: number for number, tag in enumerate(tags)}

    def member_of(self, tag: int) -> int:
        """Return the member that a ticket with this tag draws from. Raises `UsageError`."""
        if tag not in self._member_of:  # the sampler was made, or loaded its state, after this worker started
            found = [number for number, port in enumerate(self.ports) if port.knows(tag)]
            if not found:
                raise UsageError("this ticket comes from a BrandSampler of another Mixture; give both the same one")
            self._member_of[tag] = found[0]
        return self._member_of[tag]

    def begin(self, tag: int, member: int, order: Order, announcement: Announcement, *, origin: str) -> None:
        """Announce to a member that a sampler is about to draw from it; see `DrawPort.announce`."""
        port = self.ports[member]
        if port.way.nodes > 1:
            raise UsageError(ONE_NODE)
        port.announce(order, announcement, origin=origin)
        self._begun[tag] = announcement.epoch

    def come_to(self, tag: int, epoch: int) -> int:
        """Continue with an epoch of the member with this tag, if this process has not begun it. Returns the member."""
        member = self.member_of(tag)
        if epoch > self._begun.get(tag, -1):
            self.ports[member].come_to(tag, epoch)
            self._begun[tag] = epoch
        return member
