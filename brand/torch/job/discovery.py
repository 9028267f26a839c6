"""How do the data servers of one job find each other, and how do its ranks find out that they disagree?

The servers of several nodes find each other through the key-value store of the job, without an extra step. The first
rank of a node that fetches starts the node's server, writes the server's address to the store, and waits for the other
nodes. The store is that of `torch.distributed`, or, before it is initialised, the one at `MASTER_ADDR`, `MASTER_PORT`.
Both are one store, and Brand's keys have none of the prefixes of `torch.distributed`, so ranks and DataLoader workers
find the same values. A connection to the store serves one process: a forked worker opens its own. The store also holds
the job's token: a process that reaches the store is part of the job, as for `torch.distributed`.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import logging
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Protocol

from brand.errors import ServerError, UsageError, counted
from brand.forks import after_in_child
from brand.node.setup.memory import Memory
from brand.node.setup.server_spec import Member, Tls
from brand.node.wire.network import split_address
from brand.orders.order import Order, differences, disagreement
from brand.reprs import Reprs
from brand.torch.job.ranks import (
    job_name,
    master,
    named_master,
    this_machine,
    this_network,
)
from brand.torch.pytorch import process_group, torch

log = logging.getLogger("brand")

LIMIT_S: Final = 60.0
"""Seconds for which nodes wait for each other."""
_STEP_S: Final = 0.05
_GRACE_S: Final = 1.0
"""Additional seconds to wait for the store, so that PyTorch's own error is raised first."""

_RESTARTS: Final = "TORCHELASTIC_RESTART_COUNT="

_inherited: list[Any] = []
"""Stores to which the parent of this forked process is connected."""
_agreed = Counter[str]()
"""Number of calls of `check_agreed` in this process, by place."""
_begun = Counter[str]()
"""Number of calls of `missing_ranks` in this process, by place."""


class _Store(Protocol):
    """The methods that this module needs of a store of `torch.distributed`."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...
    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...


@dataclass(frozen=True, repr=False)
class JobNodes(Reprs, shows="name node nodes"):
    """The nodes of this process's job: satisfies `brand.node.client.client.Cluster`. Can be pickled."""

    name: str
    node: int
    nodes: int
    peer_memory: Memory = None
    tls: Tls | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    """The facts from which `name` is made, by name. Nodes with other facts do not find each other."""

    def member(self) -> Member:
        """Return this node's number, the job's token, and the address to listen at. Raises `ServerError`."""
        store = _store()
        token = _text(store.compare_set(self._key("token"), "", secrets.token_hex(32)))
        # A server that replaces another one listens where the other nodes look for it.
        bind = _text(store.get(self._address(self.node))) if store.check([self._address(self.node)]) else None
        return Member(self.node, self.nodes, token, bind or f"{_own_host()}:0", self.peer_memory, self.tls)

    def meet(self, address: str) -> list[str | None]:
        """Publish the address of this node's server. Returns those of the others, by node.

        Raises `ServerError` if a node does not answer, `UsageError` if no other node can reach an address.
        """
        store = _store()
        there = _text(store.compare_set(self._address(self.node), "", address))
        if there != address:
            raise ServerError(
                f"two nodes say that they are node {self.node}: its server listens at {there}, and one at {address}"
            )
        _publish_keys(store, f"node {self.node}", self.keys)
        store.set(self._network(self.node), this_network())
        keys = [key(node) for node in range(self.nodes) for key in (self._address, self._network)]
        _wait(lambda: store.check(keys), lambda: self._missing(store))
        addresses = [_text(store.get(self._address(node))) for node in range(self.nodes)]
        if len({_text(store.get(self._network(node))) for node in range(self.nodes)}) > 1:
            _check_reachable(addresses)
        return [None if node == self.node else there for node, there in enumerate(addresses)]

    def _missing(self, store: _Store) -> tuple[str, str]:
        missing = [node for node in range(self.nodes) if not store.check([self._address(node)])]
        named = f"{'node' if len(missing) == 1 else 'nodes'} {', '.join(map(str, missing))}"
        return f"no data server on {named}", _difference(store, [f"node {node}" for node in missing], self.keys)

    def _address(self, node: int) -> str:
        return self._key(f"node/{node}")

    def _network(self, node: int) -> str:
        return self._key(f"network/{node}")

    def _key(self, what: str) -> str:
        return f"brand/{self.name}/{what}"


def find_nodes(rank: int, replicas: int, name: str, facts: Mapping[str, str] | None = None) -> tuple[int, int] | None:
    """Return the number of this node and the number of nodes, if the launcher does not say them: ranks tell each other.

    Nodes are numbered by their lowest rank. Before `torch.distributed` is initialised, the log has a warning and the
    result is None: there is no store yet, and ranks may not wait for each other. `facts` are those from which `name` is
    made. Raises `ServerError` if a rank does not answer in time.
    """
    if process_group() is None:
        log.warning(
            "nothing says on how many nodes the %d ranks of this job are, so each node reads for itself; make the "
            "BrandSampler after torch.distributed.init_process_group",
            replicas,
        )
        return None
    store = _store()
    keys = [f"brand/{name}/rank/{number}" for number in range(replicas)]
    _publish_keys(store, f"rank {rank}", facts or {})
    store.set(keys[rank], this_machine())

    def missing() -> tuple[str, str]:
        ranks = [str(number) for number, key in enumerate(keys) if not store.check([key])]
        verb = "has" if len(ranks) == 1 else "have"
        what = f"rank {', '.join(ranks)} of {counted(replicas, 'rank')} {verb} not used the BrandDataset"
        return what, _difference(store, [f"rank {number}" for number in ranks], facts or {})

    _wait(lambda: store.check(keys), missing)
    machines = list(dict.fromkeys(_text(store.get(key)) for key in keys))
    return machines.index(this_machine()), len(machines)


def check_agreed(place: str, facts: str, what: str) -> None:
    """Raise `UsageError` if the first rank of the job at this place has written something other than `facts`.

    Ranks that draw from a mixture divide one sequence. If one of them had other weights, some samples would be lost and
    others drawn twice, and no data server could see it. The ranks run one program, so the n-th call of a rank at a
    place means the n-th call of all ranks there. The first rank writes its facts to the job's store, and each rank
    compares its own.

    `what` is the user's name for the facts. If the ranks have no common store, the call does nothing.
    """
    _agreed[place] += 1
    first = _first_of_job(f"{place}|{_agreed[place]}", facts)
    if first != facts:
        raise UsageError(f"two ranks of one job disagree: {what} {facts} here and {first} there; give all the same")


def check_same_order(number: int, order: Order) -> None:
    """Raise `UsageError` if another rank of the job draws another order by the same sampler; `number` names it.

    A data server compares the orders of its own clients, but ranks with different `memory=` have different servers.
    """
    mine = order.to_json()
    theirs = json.loads(_first_of_job(f"order|{order.data_set}|{number}", json.dumps(mine)))
    if differ := differences(mine, theirs):
        raise disagreement(differ)


def check_same_begin(number: int, order: Order, epoch: int, position: int) -> None:
    """Raise `UsageError` if another rank of the job has first begun this sampler elsewhere; `number` names the sampler.

    A data server compares the positions at which ranks begin one epoch. It cannot compare ranks in different epochs,
    because a fast rank may be in a later epoch than the others. But all begin the training at the same place.
    """
    mine = f"epoch {epoch}, position {position:,}"
    theirs = _first_of_job(f"begin|{order.data_set}|{number}", mine)
    if theirs != mine:
        raise UsageError(
            f"two ranks of one job disagree: a BrandSampler begins at {mine} here and at {theirs} there; load the same "
            "state and set the same epoch on all ranks"
        )


def missing_ranks(place: str) -> list[int]:
    """Return the ranks of `torch.distributed` that have never called this function for a place.

    Returns none of them at the first call, because ranks need not begin together.
    """
    _begun[place] += 1
    if _begun[place] > 2:  # the second call has told
        return []
    group, store = process_group(), _store()
    assert group is not None
    keys = _keys_of_begun(place, group.get_world_size())
    store.set(keys[group.get_rank()], "yes")
    return [] if _begun[place] == 1 else [rank for rank, key in enumerate(keys) if not store.check([key])]


def others_begun(place: str, wait_s: float) -> bool:
    """Whether another rank of `torch.distributed` has called `missing_ranks` for a place; waits for the first one."""
    if (group := process_group()) is None:
        return True
    mine, store = group.get_rank(), _store()
    others = [key for rank, key in enumerate(_keys_of_begun(place, group.get_world_size())) if rank != mine]
    end_s = time.monotonic() + wait_s
    while not any(store.check([key]) for key in others):
        if time.monotonic() > end_s:
            return False
        time.sleep(_STEP_S)
    return True


def _keys_of_begun(place: str, ranks: int) -> list[str]:
    """Return the keys at which ranks say that they have begun, by rank."""
    key = hashlib.blake2s(f"{job_name()}|{place}".encode(), digest_size=12).hexdigest()
    return [f"brand/begun/{key}/{rank}" for rank in range(ranks)]


def _first_of_job(place: str, facts: str) -> str:
    """Return the facts that the first rank of the job wrote for a place: `facts`, if no rank was earlier.

    Also returns `facts` if the ranks have no common store. No rank waits for another.
    """
    name = job_name()
    if name is None or process_group() is None:
        return facts
    key = hashlib.blake2s(place.encode(), digest_size=12).hexdigest()
    return _text(_store().compare_set(f"brand/{name}/agree/{key}", "", facts))


def _publish_keys(store: _Store, member: str, keys: Mapping[str, str]) -> None:
    """Add the facts with which a node or rank looks for the others to those that it has published before.

    Nodes with other facts do not wait for this node, so this entry, which has no such facts in its key, lets them say
    why.
    """
    before, listed = "", [dict(keys)]
    while (found := _text(store.compare_set(_keys_of(member), before, json.dumps(listed)))) != json.dumps(listed):
        before, listed = found, json.loads(found)
        if dict(keys) in listed:
            return
        listed.append(dict(keys))


def _difference(store: _Store, members: Sequence[str], keys: Mapping[str, str]) -> str:
    """Return how the facts of one of the missing nodes or ranks differ from `keys`; empty if none has published any."""
    for member in members:
        if not store.check([_keys_of(member)]):
            continue
        differing = [
            [f"{name}{other.get(name)} (here {value})" for name, value in keys.items() if other.get(name) != value]
            for other in json.loads(_text(store.get(_keys_of(member))))
            if other.get(_RESTARTS) == keys.get(_RESTARTS)  # the store may outlive a restart
        ]
        if found := min(filter(None, differing), key=len, default=None):
            return f"{member} has {', '.join(found)}; give all of them the same"
    return ""


def _keys_of(member: str) -> str:
    return f"brand/keys/{member}"


def _check_reachable(addresses: Sequence[str]) -> None:
    """Raise `UsageError` if one of several machines has published a loopback address."""
    for node, address in enumerate(addresses):
        host, _ = split_address(address)
        if ipaddress.ip_address(host.partition("%")[0]).is_loopback:
            named = named_master()
            cause = f"MASTER_ADDR={named}" if named else "without MASTER_ADDR, its own name"
            raise UsageError(
                f"the data server of node {node} listens at {address}, which no other node reaches, because on that "
                f"node {cause} means loopback: set MASTER_ADDR (torchrun: --master-addr, or --local-addr) to the IP "
                "address of node 0, which `hostname -I` prints there"
            )


def _wait(done: Callable[[], bool], missing: Callable[[], tuple[str, str]]) -> None:
    """Wait for other nodes. `missing` returns the nodes that are missing, and the reason if it is known."""
    end_s = time.monotonic() + LIMIT_S
    while not done():
        if time.monotonic() > end_s:
            named, reason = missing()
            reason = reason or "do all ranks fetch from the same data set?"
            raise ServerError(f"{named} within {LIMIT_S:.0f} s: {reason}")
        time.sleep(_STEP_S)


def _store() -> _Store:
    store = _store_of_group()
    if store is not None and not any(store is other for other in _inherited):
        found: _Store = store
        return found
    host, port = master() if store is None else (store.host, store.port)
    if torch is None:
        raise UsageError(
            "nodes find each other through a store of PyTorch, which is not installed: start servers with "
            "`brand launch` and give server="
        )
    try:
        return _connected(host, port)
    except (RuntimeError, ValueError) as error:
        raise ServerError(
            f"the job's store at {host}:{port} cannot be reached, so nodes cannot find each other: {error}; call "
            "torch.distributed.init_process_group first, or start servers with `brand launch` and give server="
        ) from None


def _connected(host: str, port: int) -> _Store:
    """Return a new connection to the store. Raises RuntimeError, ValueError.

    If a socket listens and nobody answers, PyTorch waits for ever. This happens after the death of rank 0, whose forked
    workers still have the store's socket. So a thread connects, and is abandoned after the limit.
    """
    found: list[_Store | BaseException] = []

    def connect() -> None:
        try:
            timeout = timedelta(seconds=LIMIT_S)
            found.append(
                torch.distributed.TCPStore(host, port, is_master=False, timeout=timeout)  # type: ignore[attr-defined]
            )
        except (RuntimeError, ValueError) as error:
            found.append(error)

    thread = threading.Thread(target=connect, name="brand-store", daemon=True)
    thread.start()
    thread.join(LIMIT_S + _GRACE_S)
    if not found:
        # Where the parent looked up a name while it forked, the C library's lock stays closed in the child for ever.
        cure = ' (a forked worker: multiprocessing_context="spawn" may help)' if _inherited else ""
        raise RuntimeError(f"no answer in {LIMIT_S:.0f} s{cure}")
    (outcome,) = found
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _store_of_group() -> Any:
    """Return the store of this process's default group, without its prefixes; None if there is no group."""
    if (group := process_group()) is None:
        return None
    store: Any = group.distributed_c10d._get_default_store()
    while isinstance(store, group.PrefixStore):
        store = store.underlying_store
    return store


def _inherit() -> None:
    """Let a forked child open its own connection: on a shared one, two processes would get each other's answers."""
    group, store = process_group(), _store_of_group()
    if isinstance(store, getattr(group, "TCPStore", ())):
        _inherited.append(store)


after_in_child(_inherit)


def _own_host() -> str:
    """Return the address of this node on the network of the ranks; loopback if all ranks are on this node."""
    host, port = ("", 0)
    with suppress(UsageError):  # without an address of the job, take this machine's own
        host, port = master()
    try:
        family, _, _, _, where = socket.getaddrinfo(host or socket.gethostname(), port or 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(where)  # sends nothing
            found = str(probe.getsockname()[0])
    except OSError as error:
        raise ServerError(f"no address by which other nodes could reach this one: {error}") from None
    return f"[{found}]" if ":" in found else found


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
