"""How are samples deleted? The next version names their indices: no read and no fetch returns them from then on.

Their bytes remain in the segments, and older versions read them. So a deletion can be undone, until `compact` writes
the segments without them.
"""

from __future__ import annotations

import numpy as np

from brand.chunker.sources.request import Target
from brand.collect.finding import FoundSamples, NamedSamples, find
from brand.collect.home import collection_folder, joined, writing
from brand.errors import UsageError, counted
from brand.formats.version import Version
from brand.storage.dataset.segments import read_list
from brand.storage.maintenance.progress import OnChunk, silent


def delete(collection: Target, wanted: NamedSamples, *, on_chunk: OnChunk = silent) -> tuple[Version, FoundSamples]:
    """Delete samples. Returns the new version, and the deleted samples.

    Raises `UsageError`, `FormatError`, `StorageError`.
    """
    folder = collection_folder(collection)
    found = find(joined(folder), wanted, on_chunk)
    with writing(folder) as writer:
        before = writer.present
        deleted = read_list(folder, before.deleted, before.samples)
        if len(twice := np.intersect1d(deleted, found.indices)):
            raise UsageError(f"sample {twice[0]} was deleted by another command meanwhile: nothing was done")
        if len(deleted) + len(found.indices) == before.samples:
            raise UsageError("no sample would be left: nothing was done. Remove the folder of the collection instead")
        listed = writer.put_indices(np.union1d(deleted, found.indices))
        note = f"delete {counted(len(found.indices), 'sample')}"
        return writer.publish(note, before.parts, listed, before.overlays), found


def undelete(collection: Target, indices: list[int]) -> Version:
    """Undo deletions. Raises `UsageError` if a sample is not deleted, or its bytes are no longer stored."""
    folder = collection_folder(collection)
    with writing(folder) as writer:
        before = writer.present
        deleted = read_list(folder, before.deleted, before.samples)
        wanted = np.unique(np.array(indices, np.int64))
        gone = [read_list(folder, part.absent, part.end) for part in before.parts]
        if len(other := np.setdiff1d(wanted, deleted)):
            raise UsageError(f"sample {other[0]} is not deleted: nothing was done")
        if len(lost := np.intersect1d(wanted, np.concatenate(gone))):
            raise UsageError(
                f"the bytes of sample {lost[0]} are no longer in this version: `brand compact` removed them. An older "
                "version may have them (`brand versions`)"
            )
        left = writer.put_indices(np.setdiff1d(deleted, wanted))
        return writer.publish(f"undelete {counted(len(wanted), 'sample')}", before.parts, left, before.overlays)
