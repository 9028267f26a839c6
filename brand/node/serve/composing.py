"""Imports the parts of a server that only some servers need: streams to other nodes, decode workers, the log of
decisions.
"""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable
from typing import TYPE_CHECKING

from brand.node.decide.node_state import NodeState
from brand.node.decide.stimuli import Stimulus
from brand.node.memory.arena import Arena
from brand.storage.dataset.dataset import StoredDataSet

if TYPE_CHECKING:
    from brand.node.serve.exchange import StreamExchange
    from brand.node.serve.preparers import DecodeWorkerProcesses
    from brand.node.serve.recording import Recorder
    from brand.node.wire.network import Network


def exchange_of(turn: NodeState, network: Network, page: int, tell: Callable[[Stimulus], object]) -> StreamExchange:
    """Return the streams of one of several nodes. Pages have `page` bytes; `tell` takes the stimuli."""
    from brand.node.serve.exchange import StreamExchange

    return StreamExchange(turn, network, page, tell)


def preparers_of(
    data: StoredDataSet,
    selector: selectors.BaseSelector,
    arena: Arena,
    prepared: Arena,
    post: Callable[[Callable[[], None]], None],
    tell: Callable[[Stimulus], object],
) -> DecodeWorkerProcesses:
    """Return the processes that decode samples of `arena` into `prepared`."""
    from brand.node.serve.preparers import DecodeWorkerProcesses
    from brand.node.wire.preparer import Setup

    setup = Setup(data.header.schema, data.dictionary, arena.pages.shape[1])
    return DecodeWorkerProcesses(selector, setup, arena, prepared, post, tell)


def record_to(path: str | os.PathLike[str], turn: NodeState) -> Recorder:
    """Return the log of all decisions. Raises `UsageError` if it cannot be written."""
    from brand.node.serve.recording import Recorder

    return Recorder(path, turn)
