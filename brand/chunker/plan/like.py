"""Checks that a new data set can become a segment of a collection: the properties that both must share.

All segments have equal fields, chunk size and dictionary. Classes keep their numbers, and new ones get the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from brand.errors import SchemaError
from brand.formats.compression import Compression
from brand.formats.header import Schema


@dataclass(frozen=True)
class Like:
    """The facts of the existing segments."""

    schema: Schema
    classes: tuple[str, ...] | None
    chunk_size: int
    compression: Compression

    def check(self, schema: Schema, classes: tuple[str, ...] | None) -> None:
        """Raise `SchemaError` if samples with this schema and these classes do not fit."""
        if (told := difference(self.schema, schema)) is not None:
            raise SchemaError(
                f"the new samples do not fit the collection: {told}. All samples of a collection have the same fields "
                "in the same order: convert these to a data set of their own"
            )
        known = self.classes
        if known is None and classes is None:
            return
        if known is None or classes is None or classes[: len(known)] != known:
            raise SchemaError(
                f"the classes of the new samples do not begin with the {len(known or ())} classes of the collection, "
                "so labels would change their meaning. `brand append images` and `brand append audio` give classes of "
                "the same name their old numbers"
            )


def difference(known: Schema, new: Schema) -> str | None:
    """Return in words how a schema differs from the known one; None if it does not."""
    if known.fields == new.fields:
        return None
    here, there = dict(known.fields), dict(new.fields)
    if lost := [name for name in here if name not in there]:
        return f"they have no field {lost[0]!r}"
    if more := [name for name in there if name not in here]:
        return f"they have a field {more[0]!r}, which the collection does not have"
    if other := [name for name in here if here[name] != there[name]]:
        return f"field {other[0]!r} is {there[other[0]]}, and {here[other[0]]} in the collection"
    return f"their fields are in the order {', '.join(there)}, and {', '.join(here)} in the collection"
