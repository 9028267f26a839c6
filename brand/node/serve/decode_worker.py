"""The process of a decode worker: it decodes the samples of batches, which may be hostile.

It maps the server's memory read-only, compares checksums, decodes as a client does (`brand.formats.preparation`), and
writes the results into its staging memory, from which the server copies them. It touches no storage, no other process.

A file may crash a decoder, or make it run forever: only this process ends. An alarm ends it even without a server.
"""

from __future__ import annotations

import mmap
import os
import resource
import signal
import socket
import sys
import warnings
from contextlib import suppress
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import MissingExtraError
from brand.formats.compression import Decompressor
from brand.formats.constants import ROW
from brand.formats.contents import StoredSamples
from brand.formats.media import load_plugin
from brand.formats.pixels import clipped
from brand.formats.record import RecordDecoder
from brand.node.memory.pages import ROW_BYTES
from brand.node.wire.decoding import (
    BATCH_S,
    CANNOT,
    ENOUGH,
    MOST,
    PAGE,
    READY,
    UNTRIED,
    DecodeSpec,
    Setup,
    pack_sizes,
    pack_values,
    unpack_order,
)
from brand.node.wire.messages import Chains

MOST_MEMORY: Final = 4 << 30
"""Bytes of address space that a decode worker may add to those at its start, because a file may ask for any amount."""
_GOES_FIRST: Final = 900
"""If the system runs out of memory, it ends a decode worker before other processes (oom_score_adj)."""


def main() -> None:
    """Decode the batches that arrive over the socket named on the command line, until the server closes it."""
    *_, line, arena, staging, size = map(int, sys.argv[3:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    warnings.simplefilter("ignore")
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(_GOES_FIRST))
    place = mmap.mmap(staging, 0)
    setup = Setup.unpack(place[:size])
    for plugin in setup.plugins:
        with suppress(MissingExtraError):  # the client decodes what this process cannot
            load_plugin(plugin)
    memory = mmap.mmap(arena, os.fstat(arena).st_size, prot=mmap.PROT_READ)
    with open("/proc/self/statm") as file:
        most = int(file.read().split()[0]) * mmap.PAGESIZE + MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    pages = np.frombuffer(memory, np.uint8).reshape(-1, setup.page)
    clipped.raise_first()
    preparer = BatchDecoder(setup, pages, np.frombuffer(place, np.uint8))
    with socket.socket(fileno=line) as server:
        server.send(READY)
        while packet := server.recv(MOST):
            # Later than the server's own limit: the alarm matters only if the server cannot end this process.
            signal.alarm(round(2 * BATCH_S))
            number, order = unpack_order(packet)
            if isinstance(order, DecodeSpec):
                preparer.learn(number, order)
            else:
                server.send(pack_sizes(preparer.prepare(number, order)))
            signal.alarm(0)


class BatchDecoder:
    """Decodes samples in `pages`, shape (pages, page size), to the memory `staging`."""

    def __init__(self, setup: Setup, pages: NDArray[np.uint8], staging: NDArray[np.uint8]) -> None:
        self._schema, self._pages, self._staging = setup.schema, pages, staging
        self._decompressor = Decompressor(setup.dictionary)
        self._specs: dict[int, tuple[DecodeSpec, RecordDecoder]] = {}

    def learn(self, number: int, want: DecodeSpec) -> None:
        self._specs[number] = want, RecordDecoder(self._schema, [want.field])

    def prepare(self, number: int, chains: Chains) -> list[int]:
        """Decode samples, each to the next free page of the staging memory.

        Returns the size of each: `CANNOT` if it cannot be decoded, `UNTRIED` if earlier samples have filled the memory.
        """
        page, counts = self._pages.shape[1], chains.counts.astype(np.int64)
        memory = self._pages[chains.pages].reshape(-1)
        starts = (np.cumsum(counts) - counts) * page
        rows = memory[starts[:, None] + np.arange(ROW_BYTES)].view(ROW)[:, 0]
        whole = rows["size"].astype(np.int64) + ROW_BYTES <= counts * page
        stored = StoredSamples(memory, starts + ROW_BYTES, rows)
        sizes, used = list[int](), 0
        for sample in range(len(chains)):
            if used >= ENOUGH:
                sizes.append(UNTRIED)
                continue
            made = self._made(number, stored.part(np.array([sample]))) if whole[sample] else None
            room = len(self._staging) - used
            if made is None or sum(map(len, made)) > room:
                sizes.append(UNTRIED if made is not None and used else CANNOT)
                continue
            header, values = made
            at = used + len(header)
            self._staging[used:at] = np.frombuffer(header, np.uint8)
            self._staging[at : at + len(values)] = values
            sizes.append(len(header) + len(values))
            used += -(-sizes[-1] // PAGE) * PAGE
        return sizes

    def _made(self, number: int, stored: StoredSamples) -> tuple[bytes, NDArray[np.uint8]] | None:
        """Return header and values of one sample; None if it cannot be decoded: its client will raise the reason."""
        want, decode = self._specs[number]
        if not stored.right().all():
            return None
        try:
            record: Any = self._decompressor.unpack(stored.view(0), int(stored.rows["raw_size"][0]))
            return pack_values(number, int(stored.rows["index"][0]), want.how(decode(record)[want.field]))
        except Exception:  # noqa: BLE001 - the client decodes the sample itself, and raises the error that names it
            return None
