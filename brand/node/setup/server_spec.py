"""The specification of a data server: one value, which a process that starts a server sends to it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from brand.node.setup.caching import Cache
from brand.node.setup.member import Member
from brand.node.setup.memory import Memory
from brand.storage.io.location import Where

if TYPE_CHECKING:
    from brand.node.setup.preparing import Prepared


@dataclass(frozen=True)
class ServerSpec:
    """The specification of a data server at its start."""

    where: Where
    """The data set."""
    address: str
    memory: Memory = None
    owners: tuple[int, ...] = ()
    """The server ends with the last of these processes."""
    member: Member | None = field(default=None, repr=False)
    """The node of several that it is; None if there is one node."""
    cache: Cache | None = None
    """Its cache folder."""
    prepared: Prepared | None = None
    """Resources with which it decodes samples for its clients; None if they decode themselves."""
    common: bool = False
    """Whether several jobs may draw from it, for which it then decodes."""
    depth: int | None = None
    """Reads in flight; None for as many as raise the throughput of the storage."""
    page_cache: bool | None = None
    """Whether large reads use the page cache; None to use it if it can hold all the data."""
    record: str | os.PathLike[str] | None = None
    """The file for a log of all decisions (`brand.node.serve.recording`)."""

    def to_json(self) -> str:
        """Return the text for the standard input of the server."""
        plain = {name: getattr(self, name) for name in ("address", "memory", "owners", "common", "depth", "page_cache")}
        more: dict[str, Any] = {
            "where": os.fspath(self.where) if isinstance(self.where, os.PathLike) else self.where,
            "member": None if self.member is None else self.member.to_json(),
            "cache": None if self.cache is None else self.cache.to_json(),
            "prepared": None if self.prepared is None else asdict(self.prepared),
            "record": None if self.record is None else os.path.abspath(self.record),
        }
        return json.dumps(plain | more)

    @classmethod
    def from_json(cls, text: str) -> ServerSpec:
        """Invert `to_json`."""
        value = json.loads(text)
        spec = cls(**value | {"owners": tuple(value["owners"])})
        member, cache, prepared = value["member"], value["cache"], value["prepared"]
        return replace(
            spec,
            member=None if member is None else Member.from_json(member),
            cache=None if cache is None else Cache(**cache),
            prepared=None if prepared is None else _prepared_of(prepared),
        )


def _prepared_of(value: dict[str, Any]) -> Prepared:
    from brand.node.setup.preparing import Prepared

    return Prepared(**value)
