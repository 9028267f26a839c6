"""What does code that was written for torchvision's `ImageFolder` ask of a data set beside its samples?

It asks for labels and classes. A data set without them raises an `AttributeError` that says which fields it has, so
that `hasattr` and `getattr` with a default work.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import NoLabelsError
from brand.storage.dataset import StoredDataSet

FIELD: Final = "label"


def targets(data: StoredDataSet) -> NDArray[np.int64]:
    """The label of each sample by index, shape (len,), int64: a read-only array in memory.

    Raises `NoLabelsError`.
    """
    fields = dict(data.header.schema.fields)
    if fields.get(FIELD) != "int":
        there = ", ".join(f"{name}: {codec}" for name, codec in fields.items())
        raise NoLabelsError(f"targets are those of an 'int' field {FIELD!r}, and this data set has {there}")
    column: NDArray[np.int64] = data.column(FIELD).view()
    column.flags.writeable = False
    return column


def class_to_idx(data: StoredDataSet) -> dict[str, int]:
    """Label of each class by its name. Raises `NoLabelsError`."""
    classes = data.header.classes
    if classes is None:
        how = "brand.pack(classes=...) names them, and so do the folders of `brand convert images`"
        raise NoLabelsError(f"the labels of this data set have no names; {how}")
    return {name: label for label, name in enumerate(classes)}


def transform_hint(names: tuple[str, ...] | None, files: Collection[str]) -> str:
    """A hint where a `transform` of the whole sample fails: it may expect a picture, as `ImageFolder` gives it.

    `names` are the fields of a sample that is a tuple; `files` are the fields that hold images or clips.
    """
    given = "a dict of its fields" if names is None else f"a tuple of {', '.join(names)}"
    field = next((name for name in (names or sorted(files)) if name in files), "FIELD")
    how = f"for a function of one field write transform={{{field!r}: function}}"
    return f"transform was given the whole sample, {given}; {how}"
