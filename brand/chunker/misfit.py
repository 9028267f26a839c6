"""Does the whole folder hold another kind of files than the conversion takes? Then leaving files out does not help."""

from __future__ import annotations

from typing import Final

import numpy as np

from brand.chunker.source import FolderSource
from brand.errors import counted
from brand.formats.media import HEAD_BYTES, kind_of

_LOOKED_AT: Final = 64
"""How many files are looked at, evenly spread over the folder."""
_VERBS: Final = {"image": "`brand convert images` is for pictures", "audio": "`brand convert audio` is for sound files"}


def misfit_hint(source: FolderSource) -> str:
    """What the user can do where no file looked at is of the kind that is converted; else empty."""
    total, kinds = len(source), set[str]()
    looked_at = min(total, _LOOKED_AT)
    for index in np.linspace(0, max(0, total - 1), looked_at, dtype=np.int64).tolist():
        try:
            with (source.root / source.listing.key(index)).open("rb") as file:
                kinds.add((kind_of(file.read(HEAD_BYTES)) or "").partition("/")[0])
        except OSError:
            continue
    if source.file_field in kinds or not kinds:
        return ""
    what = {"image": "a picture", "audio": "a sound file"}[source.file_field]
    which = f"none of the {counted(total, 'file')}" if looked_at == total else f"none of {looked_at} files looked at"
    how = next((verb for kind, verb in _VERBS.items() if kind in kinds), "brand.pack takes samples of any kind")
    return f"In this folder {which} is {what}: {how}"
