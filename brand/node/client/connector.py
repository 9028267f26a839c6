"""Connects a process to its server, starts a server first if needed, or explains the failure.

A process that finds no server at its address starts one, `python -c ...`, and sends it a `ServerSpec` on its standard
input. The server detaches (two forks, its own session), so no process has to wait for it, and Ctrl-C, which is sent to
all processes of a terminal, does not end it while others draw from it. The server ends when its client processes, the
training processes, have ended. If several processes start a server at the same time, the kernel gives the address to
one server, and the other processes connect to it.

`look_at` connects to a server of any data set, asks for the statistics, and disconnects.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, replace
from typing import Any, Protocol

from brand.errors import EndedError, ServerDiedError, ServerError, unpack_error
from brand.node.client.decoded import DecodeSpecs
from brand.node.client.direct_hits import Files
from brand.node.client.session import START_LIMIT_S, Session
from brand.node.setup.server_spec import Member, ServerSpec
from brand.node.wire.client_messages import AskStats, PeerAddresses, ServerFacts, pack
from brand.node.wire.messages import Kind, unpack_json
from brand.pythonchild import blocked, child_command
from brand.reprs import Reprs
from brand.starting import not_started
from brand.storage.io.files import no_descriptor_left


class Cluster(Protocol):
    """Finds the servers of the other nodes for the server of this node. Picklable."""

    def member(self) -> Member:
        """Return the cluster member that the server of this node is. Raises `ServerError`."""
        ...

    def meet(self, address: str) -> list[str | None]:
        """Tell the other nodes the address of this node's server. Raises `ServerError`, `UsageError`.

        Returns the addresses of their servers, by node; None for this node.
        """
        ...


@dataclass(slots=True, eq=False, repr=False)
class Connector(Reprs, shows="spec.address attach"):
    """Connects to the server of one data set; the arguments are those of `Client`. Picklable."""

    spec: ServerSpec
    data_set: str
    attach: bool
    cluster: Cluster | None
    specs: DecodeSpecs | None
    files: Files
    _served: ServerFacts | None = None
    """The server to which this process, or its parent before a fork, was last connected."""
    _said: str = ""
    """The last message of that server when it ended."""

    def connect(self, owner: int, worker: tuple[int, int] | None = None) -> Session:
        """Return a new connection for `worker`, (worker, number of workers), of process `owner`.

        A server that this method starts ends with `owner`. Raises `ServerError`, ConnectionError.
        """
        try:
            return self._joined(self._session(owner, worker))
        except ConnectionError:
            if self.attach:
                raise ServerError(self._why_none()) from None
        member = None if self.cluster is None else self.cluster.member()
        start_server(replace(self.spec, owners=(owner,), member=member))
        return self._joined(self._session(owner, worker))

    def note_end(self, error: Exception) -> None:
        if isinstance(error, EndedError):
            self._said = str(error)

    def given_up(self, error: OSError) -> ServerError:
        """Return the error to raise after the last attempt."""
        if isinstance(error, ServerError):  # the server could not be started
            return ServerError(str(error))
        return ServerError(f"the data server at {self.spec.address} does not answer: {error}")

    def _why_none(self) -> str:
        """Return why there is no server, as a text for the user."""
        address, start = self.spec.address, f"`brand serve {self.spec.where}`"
        if self._served is None:
            return f"no data server at {address}: start one with {start}, or leave out server="
        one = f"node {self._served.node} of {self._served.nodes}" if self._served.nodes > 1 else "this data set"
        how = self._said or "it was killed or has crashed; see the output of the command that started it"
        return (
            f"the server of {one} at {address}, process {self._served.process}, has ended: {how}; "
            f"start it again ({start}), and continue from the last checkpoint"
        )

    def _session(self, owner: int, worker: tuple[int, int] | None) -> Session:
        return Session(self.spec.address, self.data_set, owner, worker, self.specs, self.files)

    def _joined(self, session: Session) -> Session:
        """Tell the server the addresses of the other nodes, if there are any and it lacks them. Returns `session`."""
        self._served, self._said = session.server, ""
        if self.cluster is not None and session.server.listens_at is not None and not session.server.joined:
            try:
                addresses = self.cluster.meet(session.server.listens_at)
            except BaseException:
                session.close()
                raise
            session.send(pack(PeerAddresses(tuple(addresses))))
        return session


def look_at(address: str, cells: int = 0) -> dict[str, Any]:
    """Return counters of the server at an address, for any data set, with the last `cells` cells of each training loop.

    Raises `ServerError` if there is no server.
    """
    try:
        connection = Session(address, None, None)
        try:
            return unpack_json(connection.request(pack(AskStats(cells)), Kind.STATS))
        finally:
            connection.close()
    except (ConnectionError, TimeoutError) as error:
        raise ServerError(f"no data server at {address}: {error}") from None


def start_server(spec: ServerSpec) -> None:
    """Start a server and wait until it listens. The new server ends at once if another server listens already.

    Raises `ServerError`; `ServerDiedError` if the server ended without a message; the error of the server itself if the
    data set or its cache folder cannot be used.
    """
    module = "brand.node.serve.process" if spec.member is None else "brand.cluster.process"
    try:
        with blocked():  # until it ignores them
            started = subprocess.Popen(
                child_command(module), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            )
    except OSError as error:
        why = no_descriptor_left(error) or not_started(error) or str(error)
        raise ServerError(f"the data server for {spec.where} cannot be started: {why}") from None
    with started as process:
        try:
            said, _ = process.communicate(spec.to_json().encode(), START_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise ServerError(f"the data server for {spec.where} did not start within {START_LIMIT_S:.0f} s") from None
    try:
        answer = json.loads(said)
    except ValueError:
        why = f"the data server for {spec.where} ended before it listened; it may have said why"
        raise ServerDiedError(why) from None
    if "error" in answer:
        own = unpack_error(answer.get("raised", {}))
        if own is not None and not isinstance(own, OSError):  # an OSError would be taken for a lost connection
            raise own
        raise ServerError(f"the data server for {spec.where} did not start: {answer['error']}")
