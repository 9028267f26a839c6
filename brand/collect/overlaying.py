"""How does a collection get a column for all its samples without a change of any segment?

As a list that a version names. A later overlay with the name replaces it. Samples that are appended afterwards have no
value in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from brand.chunker.sources.request import Target
from brand.collect.home import collection_folder, joined, writing
from brand.errors import SchemaError, UsageError, counted
from brand.formats.schema import Schema
from brand.formats.version import Overlay, Version
from brand.storage.dataset.segments import NOTHING


def overlay(collection: Target, name: str, values: ArrayLike | None) -> Version:
    """Give all samples a value, by index: whole numbers or floats of shape (samples,). None removes the column.

    Raises `SchemaError` if the name or the values do not fit, `UsageError`, `StorageError`.
    """
    folder = collection_folder(collection)
    if values is not None:
        schema = joined(folder).manifest.header.schema
        if name in schema.names:
            raise SchemaError(f"the samples have a field {name!r} already: give the column another name")
        Schema.parse([*schema.fields, (name, "int")])  # the rules for names
    with writing(folder) as writer:
        before = writer.present
        others = {key: each for key, each in before.overlays.items() if key != name}
        if values is None:
            if len(others) == len(before.overlays):
                raise UsageError(f"there is no column {name!r} to remove")
            return writer.publish(f"remove column {name}", before.parts, before.deleted, others)
        codec, checked = _checked(name, np.asarray(values), before.samples)
        listed = writer.put(checked)
        assert listed is not None
        made = Overlay(codec, listed)
        return writer.publish(f"column {name}", before.parts, before.deleted, {**others, name: made})


def read_column(path: Path) -> NDArray[Any]:
    """Return the values in a .npy file. Raises `UsageError` if it cannot be read."""
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(f"{path} is not a .npy file of numbers: {error}") from error
    if not isinstance(found, np.ndarray):
        raise UsageError(f"{path} holds several arrays: save one with numpy.save")
    return found


def _checked(name: str, values: NDArray[Any], samples: int) -> tuple[str, NDArray[Any]]:
    if values.shape != (samples,):
        raise SchemaError(
            f"column {name!r} has shape {values.shape}: one value for each index is needed, those of deleted samples "
            f"included, for {counted(samples, 'sample')}"
        )
    if values.dtype.kind not in "iufb":
        raise SchemaError(f"column {name!r} is of dtype {values.dtype}: give whole numbers or floats")
    if values.dtype.kind == "f":
        return "float", values.astype("<f8")
    if values.dtype.kind == "u" and len(values) and int(values.max()) > np.iinfo(np.int64).max:
        raise SchemaError(f"column {name!r} has the value {values.max()}, and the largest is 2^63 - 1")
    if values.dtype.kind == "i" and (values == NOTHING["int"]).any():
        raise SchemaError(f"column {name!r} has the value -2^63, which means a missing value")
    return "int", values.astype("<i8")
