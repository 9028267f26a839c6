"""share.json: which chunks of a data set are in this folder, and which node has the others (docs/format.md,
section 10)?

If a data set is divided over the disks of several nodes, each node has one folder: its partition. A partition holds
the whole index and one run of consecutive chunks. `cuts` gives the start of each node's run, so a reader does not
depend on how they were chosen.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import ForeignFileError, LayoutError, OversizedError, UnreadableError
from brand.formats.constants import MAX_CHUNKS, MAX_NODES, MAX_SHARE, SHARE_NAME
from brand.formats.header import Header
from brand.formats.manifest import Manifest
from brand.formats.signed import identity, natural, pack_signed, parse_signed

_MARKER: Final = "brand-share"
_HINT: Final = "Make the partition again with `brand partition`"


@dataclass(frozen=True)
class Share:
    """The checked contents of `share.json`: one node's partition of a data set. Nodes and chunks count from 0."""

    data_set_id: bytes
    node: int
    """The node that has this partition."""
    group_chunks: int
    """Chunks in a group. A run ends only between two groups."""
    cuts: tuple[int, ...]
    """Node `k` has chunks `cuts[k]` to `cuts[k + 1] - 1`. The cuts rise from 0 to the number of chunks."""

    @property
    def nodes(self) -> int:
        """Number of nodes over which the data set is divided."""
        return len(self.cuts) - 1

    @property
    def chunks(self) -> range:
        return range(self.cuts[self.node], self.cuts[self.node + 1])

    def samples(self, header: Header) -> int:
        return min(header.samples, self.chunks.stop * header.chunk_size) - self.chunks.start * header.chunk_size

    def here(self, chunks: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Return which of these chunks are in this partition."""
        found: NDArray[np.bool_] = (chunks >= self.chunks.start) & (chunks < self.chunks.stop)
        return found

    def owners(self, chunks: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        return np.searchsorted(self.cuts, chunks, side="right").astype(np.int64) - 1


def pack_share(share: Share) -> bytes:
    """Return the bytes of `share.json`."""
    facts = {
        "id": share.data_set_id.hex(),
        "node": share.node,
        "group_chunks": share.group_chunks,
        "cuts": list(share.cuts),
    }
    return pack_signed(_MARKER, facts)


def read_share(folder: Path, manifest: Manifest) -> Share | None:
    """Return the partition in a folder; None if the folder holds the whole data set. Raises a `FormatError`."""
    path = folder / SHARE_NAME
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SHARE + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UnreadableError(f"cannot be read: {error.strerror}", path=path) from error
    if len(data) > MAX_SHARE:
        raise OversizedError(
            "the share file is too large", path=path, expected=f"<= {MAX_SHARE} bytes", found=f"> {MAX_SHARE}"
        )
    share = parse_share(data, path)
    for what, expected, found in (
        ("a partition of another data set", manifest.data_set_id.hex(), share.data_set_id.hex()),
        ("a partition of another number of chunks", manifest.header.chunks, share.cuts[-1]),
    ):
        if expected != found:
            raise ForeignFileError(what, path=path, expected=expected, found=found, hint=_HINT)
    return share


def parse_share(data: bytes, path: Path) -> Share:
    """Parse and check a `share.json`. Raises `LayoutError`, `VersionError`, `ChecksumError`, `OversizedError`."""
    value = parse_signed(data, path, marker=_MARKER, name="share file", hint=_HINT)
    try:
        share = Share(
            data_set_id=identity(value["id"]),
            node=natural(value["node"], "node"),
            group_chunks=natural(value["group_chunks"], "group_chunks"),
            cuts=tuple(natural(cut, "a cut") for cut in value["cuts"]),
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise LayoutError(f"the share file is malformed: {error!r}", path=path, hint=_HINT) from error
    if share.nodes > MAX_NODES or max(share.group_chunks, *share.cuts, 0) > MAX_CHUNKS:
        raise OversizedError("the share file exceeds a limit of the format", path=path, hint=_HINT)
    if (fault := _fault(share)) is not None:
        raise LayoutError(f"the share file is malformed: {fault}", path=path, hint=_HINT)
    return share


def _fault(share: Share) -> str | None:
    """Return how a partition contradicts itself; None if it does not."""
    if share.node >= share.nodes:
        return f"node {share.node}, and there are {max(0, share.nodes)} nodes"
    if share.group_chunks < 1:
        return "groups of no chunk"
    cuts = np.array(share.cuts)
    if cuts[0] != 0 or (np.diff(cuts) < 1).any():
        return "the cuts do not rise from 0"
    if (cuts[:-1] % share.group_chunks).any():
        return f"a cut within a group of {share.group_chunks} chunks"
    return None
