"""Which data server does a data set fetch from?

The server is one that the user gives, or that of the job's ranks on this node. It is chosen at the first use, because
ranks of several nodes may have to wait for each other (`discovery`), and because frameworks start their ranks after the
data set was made.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from brand.formats.media import registered_plugins
from brand.formats.preparation import Preparation, for_server
from brand.node.client.client import Client
from brand.node.client.decoded import DecodeSpecs
from brand.node.client.direct import DirectClient, why_no_server
from brand.node.client.direct_hits import Files
from brand.node.setup.caching import Cache
from brand.node.setup.memory import Memory
from brand.node.setup.server_spec import ServerSpec, Tls
from brand.node.wire.connection import own_address
from brand.orders.base.mapping import MOST_LISTED
from brand.storage.dataset.cached import cached_samples
from brand.storage.dataset.dataset import StoredDataSet
from brand.torch.job.discovery import JobNodes, find_nodes
from brand.torch.job.ranks import (
    find_rank,
    job_facts,
    job_name,
    node_by_launcher,
)
from brand.torch.job.worker_signals import on_started, protect_fork_server

log = logging.getLogger("brand")

COMMON: Final = "common"
"""Value of `server=` for one server for all jobs of this user on this machine that fetch from the data set."""
NONE: Final = "none"
"""Value of `server=` for direct reads of this process, without a server."""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of a `BrandDataset` that determine its data server, as the user gives them."""

    server: str | None
    memory: Memory
    peer_memory: Memory
    tls: Tls | None
    cache: tuple[Cache, ...]
    job: str | None
    decode: Mapping[str, Preparation]

    @property
    def attached(self) -> bool:
        return self.server not in (None, NONE)


class ServerResolver:
    """Chooses the data server of one data set. Can be pickled; the constructor opens nothing."""

    def __init__(self, data: StoredDataSet, options: ServerOptions) -> None:
        self._data, self.options = data, options
        self._name = secrets.token_hex(8)
        """A random name for the server and the run, if this process belongs to no job."""

    def __getstate__(self) -> dict[str, Any]:
        protect_fork_server()
        _ = self.client  # a worker in which torch.distributed is not initialised could not find the nodes
        return self.__dict__.copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        on_started()
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return f"ServerResolver({self.client!r})" if self.settled else "ServerResolver(not settled)"

    @property
    def named(self) -> bool:
        """Whether the run has a name that its processes on other nodes know, too."""
        return (self.options.job or job_name()) is not None

    @property
    def settled(self) -> bool:
        return "client" in self.__dict__

    @property
    def without_server(self) -> str:
        """Why samples are read directly, without a server; empty if there is a server."""
        return "" if self.options.attached else f'server="{NONE}"' if self.options.server else why_no_server()

    @cached_property
    def client(self) -> Client | DirectClient:
        """The client of the server. Raises `UsageError`, and `ServerError` if another rank does not answer."""
        options = self.options
        if why := self.without_server:
            if options.server is None:
                unused = ", and without cache=" if options.cache else ""
                log.warning(
                    "%s, so no data server can run; samples are read one by one%s, which is slower", why, unused
                )
            return DirectClient(self._data, job_name() or self._name)
        common = options.server == COMMON
        plugins = registered_plugins() if common else ()
        address, cache = self._address(), options.cache
        # To compare a fetched sample with `index/place.npy`, too, takes a number at a random place of that file. The
        # server compares each row with the table of its chunk in any case, and random access compares both files.
        small = self._data.header.samples <= MOST_LISTED
        spec = ServerSpec(self._data.name, address, options.memory, cache=cache, common=common, plugins=plugins)
        return Client(
            spec,
            self._data.id,
            self._data.mean_bytes,
            options.job or job_name() or self._name,
            attach=options.attached and not common,
            cluster=self.job,
            specs=DecodeSpecs(for_server(options.decode, self._data.header.schema)),
            files=Files(self._data.are_at if small else None, cached_samples(self._data)),
        )

    @cached_property
    def job(self) -> JobNodes | None:
        """The nodes that fetch from the data set together; None for one node or a given server. Raises as `client`."""
        if self.options.attached or job_name() is None:
            return None
        name = hashlib.blake2s(self._facts().encode(), digest_size=8).hexdigest()
        keys = self.job_keys()
        node, nodes = node_by_launcher() or find_nodes(*find_rank(None, None), name, keys) or (0, 1)
        if self._data.share is not None:
            node = self._data.share.node
        options = self.options
        if nodes == 1:
            return None
        return JobNodes(name, node, nodes, peer_memory=options.peer_memory, tls=options.tls, keys=keys)

    @property
    def nodes(self) -> int:
        """Number of nodes that fetch from the data set together. Raises the errors of `client`."""
        if self.options.attached:
            return self.client.server().nodes
        return 1 if self.job is None else self.job.nodes

    def _address(self) -> str:
        """Return the address at which the server listens, or will listen: one for all ranks of a job on this node."""
        server = self.options.server
        if server == COMMON:
            return own_address(f"{COMMON}|{os.getuid()}|{self._data.id}".encode())
        if server is not None:
            return server
        if job_name() is None:
            return own_address(self._name.encode())
        node = 0 if self.job is None else self.job.node
        return own_address(f"{self._facts()}|{node}".encode())

    def _facts(self) -> str:
        """Return facts that are the same for all servers of one data set and job."""
        options = self.options
        cache = "".join(f"|{each.to_json()}" for each in options.cache)
        return f"{job_name()}|{self._data.id}|{options.memory}|{options.peer_memory}{cache}"

    def job_keys(self) -> dict[str, str]:
        """Return the facts of `_facts` by name, as texts for the user."""
        options = self.options
        cache = [each.to_json() for each in options.cache]
        given = {"memory=": options.memory, "peer_memory=": options.peer_memory, "cache=": cache}
        job = {f"{name}=": value for name, value in job_facts().items()}
        return job | {"the data set ": self._data.id} | {name: repr(value) for name, value in given.items()}
