"""Which number does a class get, if its source has one number and the user has given another?

Classes are the same if they have the same name. Given classes keep their numbers, whether the source has them or not.
If the labels of a source are texts, they are the names of given classes. Pure.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from brand.errors import SchemaError, UsageError, counted
from brand.formats.header import NO_LABEL, Schema
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


@dataclass(frozen=True)
class LabelTexts:
    """Numbers of classes whose names are the values of a column of texts."""

    given: tuple[str, ...]

    def relabelled(self, columns: Mapping[str, Sequence[Any]], called: Sequence[str]) -> Mapping[str, Sequence[Any]]:
        """Return the columns of a block with numbers as labels. Raises `SchemaError` if a label is no class.

        The text `-1` is no label, if it is not the name of a class.
        """
        number_of: dict[Any, int | None] = {str(NO_LABEL): NO_LABEL, None: None}
        number_of |= {name: label for label, name in enumerate(self.given)}
        texts = [text.decode() if isinstance(text, bytes) else text for text in columns["label"]]
        texts = [text.strip() if isinstance(text, str) and text not in number_of else text for text in texts]
        for at, text in enumerate(texts):
            if text not in number_of:
                raise SchemaError(
                    f"{called[at]}, field 'label': the class {_quoted([text])} is not among the {_given(self.given)}"
                )
        return {**columns, "label": [number_of[text] for text in texts]}


def renumbered(
    schema: Schema, found: tuple[str, ...] | None, given: tuple[str, ...]
) -> tuple[Schema, NewLabels | LabelTexts | None]:
    """Return the schema of samples with given classes, and their numbers; None if they are those of the source.

    `found` are the names that the source has for its numbers. Raises `UsageError` if it has no labels or other classes.
    """
    codec = dict(schema.fields).get("label")
    if codec == "str":
        fields = [(name, "int" if name == "label" else codec) for name, codec in schema.fields]
        return Schema.parse(fields), LabelTexts(given)
    if codec == "float":
        raise UsageError("field 'label' is float, and labels are whole numbers: --field label=int")
    if codec != "int":
        raise UsageError(NO_LABELS)
    return schema, None if found is None else NewLabels.of(found, given)


def check_numbered(schema: Schema, column: str, cure: str) -> None:
    """Raise `UsageError` if a user has called a column of texts the labels; `cure` gives names of classes."""
    if column and schema.codec("label") == "str":
        raise UsageError(
            f"label {column!r}: its values are texts: {cure} says their numbers, by the names of the classes"
        )


def check_known(found: Sequence[str], given: Sequence[str]) -> None:
    """Raise `UsageError` if there are classes that are not among the given ones."""
    known = set(given)
    unknown = [name for name in found if name not in known]
    if unknown:
        alike = {_plain(name): name for name in given}
        other = next(((name, alike[_plain(name)]) for name in unknown if _plain(name) in alike), None)
        spelled = "" if other is None else f" ({_ascii(other[0])} is spelled {_ascii(other[1])} there)"
        raise UsageError(
            f"{counted(len(unknown), 'class is', 'classes are')} not among the {_given(given)}: {_quoted(unknown)}"
            f"{spelled}. Add the names behind the others, or leave these classes out of the source"
        )


def check_forms(names: Sequence[str]) -> None:
    """Raise `UsageError` if two names differ only in their form of Unicode, so that they look alike."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(unicodedata.normalize("NFC", name), name)
        if other != name:
            raise UsageError(
                f"the classes {_ascii(name)} and {_ascii(other)} are one text in two forms of Unicode, and would be "
                "two classes: rename one of the folders, or move its files into the other one"
            )


def class_facts(
    classes: Sequence[str], used: Set[int], *, given: bool, known: int, natural: bool
) -> tuple[Noticed, ...]:
    """Return what there is to say about classes of folders, by label, of which `used` have samples.

    `given`: whether the user gave the names; `known` is the number of classes that a collection has already.
    """
    facts = []
    empty = [name for label, name in enumerate(classes) if label not in used]
    if empty and not known:
        what = "given class[es]" if given else "class[es]"
        facts.append(Noticed("classes_missing", len(empty), empty[0], f"{{count}} {what} [has|have] no samples here"))
    if 0 < known < len(classes):
        template = "{count} class[es] [is|are] new in the collection"
        facts.append(Noticed("classes_new", len(classes) - known, classes[known], template))
    if not given and not known and all(map(str.isdecimal, classes)):
        others = [name for label, name in enumerate(classes) if int(name) != label]
        template = "{count} class[es] [has|have] a number as name that is not [its|their] label"
        cure = "" if natural else ": --order natural sorts them by value"
        if others:
            facts.append(Noticed("classes_are_numbers", len(others), others[0], template + cure))
    return tuple(facts)


def missing_classes(found: Sequence[str], given: Sequence[str]) -> tuple[Noticed, ...]:
    """Return the fact that a source has no names of given classes, if there are any; they keep their numbers."""
    known = set(found)
    names = [name for name in given if name not in known]
    template = "{count} given class[es] [has|have] no samples here"
    return (Noticed("classes_missing", len(names), names[0], template),) if names else ()


def _plain(name: str) -> str:
    """Return a name without the differences that are easily overlooked: case, spaces at its ends, form of Unicode."""
    return unicodedata.normalize("NFKC", name).casefold().strip()


def _ascii(name: str) -> str:
    return ascii(name) if unicodedata.normalize("NFC", name) != name or not name.isascii() else repr(name)


def _given(names: Sequence[str]) -> str:
    return f"{counted(len(names), 'given class', 'given classes')} ({_quoted(names)})"


def _quoted(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(f"'{printable(name)}'" for name in names[:_SHOWN]) + more
