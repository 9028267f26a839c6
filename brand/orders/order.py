"""The few numbers that fix the order of every epoch. A loader state keeps them and a client sends them to its server.

Everything else (memory limits, workers, timing) changes how fast samples arrive, never their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Mapping as Values
from dataclasses import dataclass
from typing import Any, Final

from numpy.typing import NDArray

from brand.errors import UsageError
from brand.orders.base.joins import Join, alone
from brand.orders.base.mapping import Mapping
from brand.orders.base.part import RandomSubset, Subset, named
from brand.orders.base.plan import EpochPlan, PlanWindows
from brand.orders.base.policy import Policy, check_number, check_type
from brand.orders.base.tickets import MAX_POSITIONS
from brand.orders.policies.registry import policy_named

MAX_EPOCH: Final = (1 << 16) - 1
MAX_SEED: Final = (1 << 128) - 1
_OF_ALL: Final = ("data_set", "samples", "chunk_size", "seed", "protocol")
"""Fields that the JSON of every order has in addition to the fields of its policy."""
_PART: Final = "part"
"""The field of an order of a subset."""
_TIMES: Final = "times"
"""The field of an order that a sampler with weights draws, together with others."""
_VERSION: Final = "version"
"""The field of the version of an order, unless it is 1."""


def differences(mine: Values[str, Any], theirs: Values[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the fields in which two orders differ, by name, as `Order.differences`. Both are outputs of `to_json`."""
    both = {name: (mine.get(name, "absent"), theirs.get(name, "absent")) for name in {**mine, **theirs}}
    return {name: values for name, values in both.items() if values[0] != values[1]}


def _version_of(kind: type[Policy]) -> dict[str, int]:
    return {} if kind.version == 1 else {_VERSION: kind.version}


def renewed(value: Values[str, Any], *, epoch: int, begun: bool) -> dict[str, Any]:
    """Return the order of a state in the version of this release.

    `begun`: whether `epoch` has begun. Raises `UsageError` if it has, in an order of another version: the rest of it
    would have other samples; and if the version is newer. Raises ValueError if there is no such order.
    """
    kind, version = policy_named(value.get("protocol")), value.get(_VERSION, 1)
    check_type(_VERSION, version, int)
    if version > kind.version:
        raise UsageError("the state is of a newer release of Brand: install that release, or a later one")
    if begun and version != kind.version:
        raise UsageError(
            f"the state is of another release of Brand, in which epoch {epoch} has another order: end the epoch with "
            f"that release, or begin it again with set_epoch({epoch})"
        )
    return {name: of for name, of in value.items() if name != _VERSION} | _version_of(kind)


def _check_epoch(epoch: int) -> None:
    if not 0 <= epoch <= MAX_EPOCH:
        raise ValueError(f"epoch {epoch} is not from 0 to {MAX_EPOCH:,}")


def disagreement(differ: dict[str, tuple[Any, Any]]) -> UsageError:
    """Return the error of a rank whose order differs from that of another rank of its job in these fields.

    Ranks divide one order. If each had its own, it would draw only its fraction of it, and lose the rest.
    """
    fields = "; ".join(f"{field} is {mine} here and {theirs} there" for field, (mine, theirs) in differ.items())
    same = "give all ranks the same seed=, subset=, order= and memory="
    return UsageError(f"two ranks of one job disagree: {fields}; {same}")


@dataclass(frozen=True, slots=True)
class Order:
    """The order of all epochs of one run over one data set. Raises ValueError if its numbers do not fit together."""

    data_set: str
    """Id of the data set."""
    samples: int
    chunk_size: int
    seed: int
    policy: Policy
    subset: Subset | RandomSubset | None = None
    """The subset that is drawn; None if all samples are."""
    times: int = 0
    """How often an epoch of a sampler with weights draws each of these samples; 0: a sampler draws this order alone."""

    def __post_init__(self) -> None:
        check_type("data_set", self.data_set, str)
        check_number("samples", self.samples, 1, MAX_POSITIONS)
        check_number("chunk_size", self.chunk_size, 1, MAX_POSITIONS)
        check_type("seed", self.seed, int)
        if not 0 <= self.seed <= MAX_SEED:
            raise ValueError(f"seed {self.seed} is not from 0 to 2**128 - 1")
        check_type("policy", self.policy, Policy)
        self.policy.check_fits(self.mapping)
        if self.subset is not None and self.subset.samples != self.samples:
            raise ValueError(f"a subset of {self.subset.samples:,} samples, and the order has {self.samples:,}")
        if self.subset is not None and self.policy.no_part is not None:
            raise ValueError(self.policy.no_part)
        check_number("times", self.times, 0, MAX_EPOCH)
        if self.shares and (self.times or isinstance(self.subset, RandomSubset)):
            raise ValueError(f"{self.policy.name!r}: jobs that share reads have no weights")

    @property
    def draws(self) -> int:
        """Samples that an epoch draws; positions are 0 to `draws` - 1."""
        return self.samples if self.subset is None else len(self.subset)

    @property
    def mapping(self) -> Mapping:
        return self.policy.mapping(self.samples, self.chunk_size)

    @property
    def joins(self) -> bool:
        """Whether a plan depends on the points at which the job joined others."""
        return self.shares and not self.grows

    @property
    def shares(self) -> bool:
        """Whether its jobs share reads."""
        return self.policy.common is not None

    @property
    def grows(self) -> bool:
        return self.policy.grows

    @property
    def ever(self) -> Subset | None:
        """The samples that some epoch can draw; None if those are all."""
        return self.subset.ever if isinstance(self.subset, RandomSubset) else self.subset

    def drawn_in(self, epoch: int) -> Subset | None:
        """Return the samples that an epoch draws; None if it draws all."""
        return self.subset.of_epoch(self.seed, epoch) if isinstance(self.subset, RandomSubset) else self.subset

    def plan(self, epoch: int, joins: Sequence[Join] = ()) -> EpochPlan:
        """Return the plan of one epoch. `joins`: the joins of the job in it, with `shared`; empty if it is alone."""
        _check_epoch(epoch)
        return self.policy.plan_joined(self.mapping, self.seed, self.drawn_in(epoch), joins or alone(epoch))

    def drawn(self, epoch: int) -> Iterator[NDArray[Any]]:
        """Yield the places in the order in which an epoch of a job that is alone draws them, part by part."""
        _check_epoch(epoch)
        yield from self.policy.drawn(self.mapping, self.seed, self.drawn_in(epoch), epoch)

    def windows(self, epoch: int) -> PlanWindows | None:
        """Return the plan of one epoch in windows, for a job that is alone; None if it can only be made as a whole."""
        return None if self.grows else self.policy.windows(self.mapping, self.seed, self.drawn_in(epoch), epoch)

    def places(self, epoch: int, first: int, end: int) -> NDArray[Any]:
        """Return the places of the samples at the positions `first` to `end` - 1 of an epoch of a job that is alone."""
        windows = self.windows(epoch)
        if windows is None:
            return self.plan(epoch).sample_of[first:end]
        return windows.window(first, end).sample_of

    def by_position(self, epoch: int, values: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Return the value of the sample at each position of an epoch, shape (draws,). `values`: an array, by place."""
        (by_place,) = values
        found: NDArray[Any] = by_place[self.plan(epoch).sample_of]
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the order as plain values: its fields and those of the policy. A subset is written as its digest."""
        own = {
            "data_set": self.data_set,
            "samples": self.samples,
            "chunk_size": self.chunk_size,
            "group_chunks": self.policy.group_chunks,  # here, because the bytes of a state have this order of fields
            "seed": self.seed,
            "protocol": self.policy.name,
        }
        part: dict[str, Any] = {} if self.subset is None else {_PART: self.subset.digest}
        times = {_TIMES: self.times} if self.times else {}
        return own | self.policy.to_json() | part | times | _version_of(type(self.policy))

    def differences(self, other: Order) -> dict[str, tuple[Any, Any]]:
        """Return the fields that differ, by name, with the value of each order; `absent` if an order lacks one."""
        return differences(self.to_json(), other.to_json())

    @classmethod
    def from_json(cls, value: Any, subset: Subset | RandomSubset | None = None) -> Order:
        """Read the output of `to_json`. `subset` is the one that the digest names. Raises ValueError if invalid."""
        if not isinstance(value, Values) or not set(_OF_ALL) <= set(value):
            raise ValueError(f"an order has the fields {', '.join(_OF_ALL)}, and those of its protocol")
        digest = None if subset is None else subset.digest
        if value.get(_PART) != digest:
            raise ValueError(f"the order is of {named(value.get(_PART))}, and not of {named(digest)}")
        kind = policy_named(value["protocol"])
        if value.get(_VERSION, 1) != kind.version:
            raise ValueError(f"an order {kind.name!r} of version {value.get(_VERSION, 1)}; this is {kind.version}")
        own = (*_OF_ALL, _PART, _TIMES, _VERSION)
        policy = kind.from_json({name: of for name, of in value.items() if name not in own})
        sizes = value["data_set"], value["samples"], value["chunk_size"], value["seed"]
        return cls(*sizes, policy, subset, value.get(_TIMES, 0))
