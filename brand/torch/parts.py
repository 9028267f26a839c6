"""Which samples does a user mean by `part=`: a mask over all samples, or their indices?"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError, counted
from brand.protocol.part import Part
from brand.storage.catalogue import Catalogue


def as_part(data: Catalogue, part: Any) -> Part | None:
    """The places of `part`: bools for all samples, shape (samples,), or indices, each once. None: all samples.

    Deleted samples of a collection are in no part; a mask may say anything of them. Raises `UsageError` for anything
    else, and where there is no sample; `DeletedError` where an index is that of a deleted sample.
    """
    if part is None:
        drawn = data.drawn()
        return None if drawn is None else Part.of(drawn)
    wanted, samples = np.asarray(part), len(data)
    if wanted.dtype == np.bool_:
        if wanted.shape != (samples,):
            raise UsageError(f"part= is a mask of shape {wanted.shape}; this data set has {counted(samples, 'sample')}")
        wanted = np.flatnonzero(wanted)
        wanted = wanted if data.deleted is None else np.setdiff1d(wanted, data.deleted, assume_unique=True)
    elif wanted.size and (wanted.ndim != 1 or wanted.dtype.kind not in "iu"):
        raise UsageError(f"part= is a {wanted.dtype} array of shape {wanted.shape}: give one bool a sample, or indices")
    if not wanted.size:
        raise UsageError("part= has no sample")
    outside = wanted[(wanted < 0) | (wanted >= samples)]
    if len(outside):
        raise UsageError(f"part= has sample {outside[0]}; this data set has samples 0 to {samples - 1:,}")
    mask = np.zeros(data.header.samples, np.bool_)
    mask[data.places(wanted)] = True
    if np.count_nonzero(mask) < len(wanted):
        alike = np.sort(wanted)
        twice = alike[1:][alike[1:] == alike[:-1]][0]
        raise UsageError(f"part= has sample {twice} twice; give each index once, or a mask as an array of bools")
    return None if mask.all() else Part.of(mask)


def indices_of(data: Catalogue, part: Part) -> NDArray[np.int64]:
    """Indices of the samples of a part, ascending."""
    return np.sort(data.indices(np.flatnonzero(part.mask)))
