"""Which number does a class get, if its source has one number and the user has given another?

Classes are the same if they have the same name. Given classes keep their numbers, whether the source has them or not.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from brand.errors import SchemaError, UsageError, counted
from brand.formats.header import NO_LABEL
from brand.formats.noticed import Noticed
from brand.printable import printable

NO_LABELS: Final = (
    "names of classes were given, and the source has no 'int' field 'label': --label COLUMN says which column it is"
)
_SHOWN: Final = 5
"""Classes that a message names."""


@dataclass(frozen=True)
class NewLabels:
    """New numbers of the classes of a source, by their old numbers."""

    new: tuple[int, ...]

    @classmethod
    def of(cls, found: Sequence[str], given: Sequence[str]) -> NewLabels | None:
        """Return the new numbers of the classes that a source has; None if they are the old ones.

        Raises `UsageError` if the source has classes that are not among the given ones.
        """
        check_known(found, given)
        number_of = {name: label for label, name in enumerate(given)}
        new = tuple(number_of[name] for name in found)
        return None if new == tuple(range(len(found))) else cls(new)

    def relabelled(self, columns: Mapping[str, Sequence[Any]], called: Sequence[str]) -> Mapping[str, Sequence[Any]]:
        """Return the columns of a block with the new labels. Raises `SchemaError` if a label is no class."""
        labels = columns["label"]
        known = np.asarray([NO_LABEL if label is None else label for label in labels])
        wrong = np.flatnonzero((known < NO_LABEL) | (known >= len(self.new))) if known.dtype.kind in "iu" else [0]
        if len(wrong):
            at, classes = int(wrong[0]), counted(len(self.new), "class", "classes")
            raise SchemaError(f"{called[at]}, label {labels[at]!r} is not one of the {classes} of the source")
        new = np.array([*self.new, NO_LABEL], np.int64)[known]
        if any(label is None for label in labels):  # refused later, with its own message
            return {**columns, "label": [None if a is None else b for a, b in zip(labels, new.tolist(), strict=True)]}
        return {**columns, "label": new}


def check_known(found: Sequence[str], given: Sequence[str]) -> None:
    """Raise `UsageError` if there are classes that are not among the given ones."""
    known = set(given)
    unknown = [name for name in found if name not in known]
    if unknown:
        more = f" and {len(unknown) - _SHOWN:,} more" if len(unknown) > _SHOWN else ""
        some = ", ".join(map(printable, unknown[:_SHOWN])) + more
        raise UsageError(
            f"{counted(len(unknown), 'class is', 'classes are')} not among the "
            f"{counted(len(given), 'given class', 'given classes')}: {some}. Add the names behind the others, or leave "
            "these classes out of the source"
        )


def missing_classes(found: Sequence[str], given: Sequence[str]) -> tuple[Noticed, ...]:
    """Return the fact that given classes are not in the source, if there are any; they keep their numbers."""
    known = set(found)
    names = [name for name in given if name not in known]
    template = "{count} given class[es] [has|have] no samples here"
    return (Noticed("classes_missing", len(names), names[0], template),) if names else ()
