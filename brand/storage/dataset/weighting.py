"""Which weight does a user give each sample by `weights=`: a number each, one for each class, or `"balanced"`?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError, counted
from brand.storage.dataset.catalogue import Catalogue

BALANCED: Final = "balanced"
_LABEL: Final = "label"
_NAMED: Final = 5
"""The most classes that a message lists."""
_OWN: Final = (
    "give a number for each sample, weights=w with w.shape == (len(dataset),), such as w = 1 / np.bincount(c)[c] of "
    'c = dataset.column("species")'
)


def weights_by_index(data: Catalogue, weights: Any, drawn: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the weight of each sample, by index, shape (len(data),); 0 for samples that are not `drawn`, by index.

    Raises `UsageError` if `weights` has another form, or if a weight is no number or is below 0.
    """
    by_index: Any
    if isinstance(weights, str):
        if weights != BALANCED:
            raise UsageError(f"weights={weights!r}: the text {BALANCED!r} is possible, or {_OWN}")
        by_index = _balanced(data, drawn)
    elif isinstance(weights, Mapping):
        by_index = _of_classes(data, weights, drawn)
    else:
        by_index = _of_each(data, weights)
    found = np.zeros(len(data))
    found[drawn] = by_index[drawn]
    for what, wrong in (("not a finite number", ~np.isfinite(found)), ("below 0", found < 0)):
        if wrong.any():
            index = int(wrong.argmax())
            raise UsageError(f"weights=: that of sample {index} is {found[index]:g}, {what}")
    if not found.any():
        raise UsageError("weights=: all are 0, so no sample could be fetched")
    return found


def describe(data: Catalogue, index: int) -> str:
    """Return a name of a sample for messages, with its class if it has one."""
    if data.schema.get(_LABEL) != "int":
        return f"sample {index}"
    return f"sample {index} (class {_named(data, int(data.column(_LABEL)[index]))})"


def _of_each(data: Catalogue, weights: Any) -> NDArray[np.float64]:
    try:
        found = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        raise UsageError(f"weights= is a {type(weights).__name__}: {_OWN}") from None
    if found.shape != (len(data),):
        raise UsageError(
            f"weights= has the shape {found.shape}; this data set has {counted(len(data), 'sample')}: give a number "
            "for each of them, or a dict with a number for each class"
        )
    return found


def _balanced(data: Catalogue, drawn: NDArray[np.int64]) -> NDArray[np.float64]:
    labels = _labels(data, drawn, f'weights="{BALANCED}"')
    _, class_of, sizes = np.unique(labels[drawn], return_inverse=True, return_counts=True)
    found = np.zeros(len(data))
    found[drawn] = 1 / sizes[class_of]
    return found


def _of_classes(data: Catalogue, weights: Mapping[Any, Any], drawn: NDArray[np.int64]) -> NDArray[np.float64]:
    labels = _labels(data, drawn, "weights= of classes")
    names = data.names.get(_LABEL, ())
    found, known = np.full(len(data), np.nan), np.zeros(len(data), np.bool_)
    for key, weight in weights.items():
        if isinstance(key, str) and key in names:
            here = np.isin(labels, [n for n, name in enumerate(names) if name == key])
        elif isinstance(key, int | np.integer) and not isinstance(key, bool):
            here = labels == key
        else:
            raise UsageError(
                f"weights=: no class is called {key!r}; classes: {_some(names or np.unique(labels[drawn]))}"
            )
        if isinstance(weight, bool) or not isinstance(weight, int | float | np.number):
            raise UsageError(f"weights=: that of class {key!r} is {weight!r}, not a number")
        found[here], known[here] = weight, True
    missing = np.unique(labels[drawn][~known[drawn]])
    if len(missing):
        which = _some([_named(data, int(label)) for label in missing])
        raise UsageError(
            f"weights= has nothing for {counted(len(missing), 'class', 'classes')}: {which}; 0 leaves out a class"
        )
    return found


def _labels(data: Catalogue, drawn: NDArray[np.int64], what: str) -> NDArray[Any]:
    """Return the column of labels. Raises `UsageError` if a sample that is drawn has no class."""
    if data.schema.get(_LABEL) != "int":
        raise UsageError(f"{what} needs the field {_LABEL!r} with the number of each sample's class: {_OWN}")
    labels = data.column(_LABEL)
    without = int(np.count_nonzero(labels[drawn] < 0))
    if without:
        raise UsageError(
            f"{what}: {counted(without, 'sample')} {'has' if without == 1 else 'have'} no class (a label below 0). "
            f'Leave them out with subset="{_LABEL} >= 0", or {_OWN}'
        )
    return labels


def _named(data: Catalogue, label: int) -> str:
    names = data.names.get(_LABEL, ())
    return repr(names[label]) if 0 <= label < len(names) else str(label)


def _some(names: Any) -> str:
    return ", ".join(map(str, list(names)[:_NAMED])) + (", ..." if len(names) > _NAMED else "")
