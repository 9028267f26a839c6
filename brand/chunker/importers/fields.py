"""Which columns of a source become fields, under which names and with which codecs, and what replaces a missing value?

A source has columns, each with a codec of its own. `FieldMapping` has the options of the user. `Fields` is the result:
the schema, and the conversion from the source's values to those of the fields. Pure.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

import numpy as np

from brand.chunker.importers.lists import parsed_list
from brand.chunker.importers.natural import FLOAT_DECLARED, INT_DECLARED, Fit, Misfit, fitted
from brand.chunker.sources.shards import Bad, Block
from brand.chunker.sources.texttable import Dialect
from brand.errors import UsageError, counted
from brand.formats.constants import MAX_FIELDS
from brand.formats.header import CODECS, ELEMENTS, Schema, is_field_name
from brand.printable import printable

PARSED: Final = ("json", "ndarray", *ELEMENTS)
"""Codecs whose values are JSON in a cell of a table in text."""
_LONGEST: Final = 63
_DTYPES: Final = {"int": np.dtype(np.int64), "float": np.dtype(np.float64)}

_PARSERS: Final[dict[str, Callable[[str], Any]]] = {
    "str": str,
    "int": int,
    "float": float,
    "bytes": str.encode,
    "image": str.encode,
    "audio": str.encode,
}


@dataclass(frozen=True)
class FieldMapping:
    """The options of a user for the fields of an import. Names are those of the source, or of the fields."""

    columns: tuple[str, ...] = ()
    """The columns to read; empty for all."""
    codecs: Mapping[str, str] = field(default_factory=dict)
    """Codecs in place of the natural codecs of columns."""
    nulls: Mapping[str, str] = field(default_factory=dict)
    """Replacements of missing values, as texts."""
    renames: Mapping[str, str] = field(default_factory=dict)
    """Field -> column of the source."""
    packed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Field that becomes one array -> the columns of numbers in it; a name may be a pattern (`pixel*`)."""
    dialect: Dialect = field(default_factory=Dialect)
    """The form of a CSV file."""
    split: str | None = None
    """The split or configuration to read; `all` for all of them. None if the source has only one."""
    label: str = ""
    """The column of whole numbers, or of names of given classes, that becomes the field `label`; empty for `label`."""
    gather: tuple[str, ...] = ()
    """The columns of a table next to files, of which each file gets a list of all its rows. A name may be a pattern."""

    def __post_init__(self) -> None:
        for name, codec in self.codecs.items():
            if codec not in CODECS:
                raise UsageError(f"--field {name}={codec}: there is no such codec; the codecs are {', '.join(CODECS)}")
        for name in (*self.renames, *self.packed):
            if not is_field_name(name) or name == "index":
                raise UsageError(f"{name!r} cannot be a field: use letters, digits and '_', not a digit first")
        twice = [column for column, times in Counter(self.renames.values()).items() if times > 1]
        if twice:
            raise UsageError(f"--field gives the column {twice[0]!r} two names")

    @property
    def names(self) -> Mapping[str, str]:
        """Column -> the field that it is renamed to."""
        renames = {**self.renames, "label": self.label} if self.label else self.renames
        return {column: name for name, column in renames.items()}


def fields_told(told: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the codecs and the renames of `NAME=CODEC`, `NEW=COLUMN` and `NEW=COLUMN:CODEC`, for `FieldMapping`.

    A value that is the name of a codec is a codec, also if a column has this name: then write `NEW=COLUMN:CODEC`.
    """
    codecs, renames = dict[str, str](), dict[str, str]()
    for name, value in told.items():
        column, colon, codec = value.rpartition(":")
        if value in CODECS:
            codecs[name] = value
        elif colon and codec in CODECS:
            renames[name], codecs[name] = column, codec
        else:
            renames[name] = value
    return codecs, renames


@dataclass(frozen=True)
class Fields:
    """The fields of an import."""

    pairs: tuple[tuple[str, str, str], ...]
    """(column, field, codec) of each field that is one column, in the schema's order."""
    packs: tuple[tuple[str, tuple[str, ...], np.dtype[Any]], ...]
    """(field, columns, dtype) of each field that is an array of several columns; these are the last of the schema."""
    schema: Schema
    nulls: Mapping[str, Any]
    """Field -> replacement of a missing value."""
    fits: Mapping[str, Fit]
    """Column of which the user has not chosen the codec -> conversion of its values."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns that are read, each once."""
        packed = (column for _, columns, _ in self.packs for column in columns)
        return tuple(dict.fromkeys([*(column for column, _, _ in self.pairs), *packed]))

    @property
    def choice(self) -> str:
        """The options that change the values, as a text that is equal for equal options."""
        packs = [(name, columns, str(dtype)) for name, columns, dtype in self.packs]
        return repr((self.columns, sorted((name, repr(value)) for name, value in self.nulls.items()), packs))

    @property
    def renamed(self) -> list[str]:
        """Notes on columns whose fields have other names."""
        return [
            f"column {printable(column)!r} is field {name!r}" for column, name, _ in self.pairs if column != name
        ] + [
            f"{counted(len(columns), 'column')} from {printable(columns[0])!r} to {printable(columns[-1])!r} are field"
            f" {name!r}, an array of {dtype}"
            for name, columns, dtype in self.packs
        ]

    def block(self, columns: Mapping[str, Sequence[Any]], called: Sequence[str]) -> Block:
        """Return samples as a block of fields, from the source's columns; converts what each codec can be made of."""
        return Block(
            {name: self._converted(name, codec, columns[column]) for column, name, codec in self.pairs}, called
        )

    def checked(self, columns: Mapping[str, Sequence[Any]], called: Sequence[str]) -> Iterator[Block | Bad]:
        """Yield samples as a block of fields, and each sample with a value that its natural codec does not take as bad.

        A codec that the user chose converts; a natural codec takes only values that the first rows could have had.
        """
        made: dict[str, Sequence[Any]] = {}
        wrong: dict[int, Bad] = {}
        for column, name, codec in self.pairs:
            fit = self.fits.get(column)
            if fit is None:
                made[name] = self._converted(name, codec, columns[column])
            else:
                made[name] = self._filled(name, _fitted(columns[column], fit))
            if fit is not None or codec in PARSED:
                _note_misfits(wrong, name, codec, made[name], called, parsed=fit is None)
        for name, members, dtype in self.packs:
            numbers = []
            for column in members:
                values = self._filled(name, _fitted(columns[column], self.fits.get(column)))
                numbers.append(_numbers(wrong, name, column, values, dtype, called))
            made[name] = list(np.stack(numbers, axis=1))
        if not wrong:
            yield Block(made, called)
            return
        yield from (wrong[position] for position in sorted(wrong))
        left = [position for position in range(len(called)) if position not in wrong]
        if left:
            yield Block({n: [v[i] for i in left] for n, v in made.items()}, [called[i] for i in left])

    def block_of_rows(self, rows: Sequence[Mapping[str, Any]], called: Sequence[str]) -> Block:
        """Return samples as a block of fields, from dicts; a name that a dict lacks is a missing value."""
        return self.block(self.columns_of(rows), called)

    def columns_of(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
        """Return dicts as columns; a name that a dict lacks is a missing value."""
        return {column: [row.get(column) for row in rows] for column in self.columns}

    def _filled(self, name: str, values: Sequence[Any]) -> Sequence[Any]:
        if name not in self.nulls or isinstance(values, np.ndarray):
            return values
        return [self.nulls[name] if value is None else value for value in values]

    def _converted(self, name: str, codec: str, values: Sequence[Any]) -> Sequence[Any]:
        if isinstance(values, np.ndarray):
            if (codec, values.dtype.kind) != ("int", "f"):
                return values
            values = values.tolist()
        values = self._filled(name, values)
        convert, exact = _CONVERSIONS.get(codec, (None, object))
        return values if convert is None or set(map(type, values)) <= {exact} else [convert(value) for value in values]


def _fitted(values: Sequence[Any], fit: Fit | None) -> Sequence[Any]:
    return values if fit is None or isinstance(values, np.ndarray) else fitted(values, fit)


def _note_misfits(
    wrong: dict[int, Bad], name: str, codec: str, values: Sequence[Any], called: Sequence[str], *, parsed: bool = False
) -> None:
    """Add the samples with a misfit among the values of a field to `wrong`, by position.

    `parsed`: the values are cells that the user declares as JSON.
    """
    if isinstance(values, np.ndarray) or Misfit not in set(map(type, values)):
        return
    for position, misfit in enumerate(values):
        if not isinstance(misfit, Misfit):
            continue
        value = misfit.value
        cure = "str" if parsed else _codec_for_both(codec, value)
        if parsed:
            found = f"it is no JSON: {value!r:.40}"
        elif codec == "int" and isinstance(value, int):
            found = f"{value} does not fit 64 bits"
        else:
            found = f"expected {codec}, as in the first rows, found {type(value).__name__} ({value!r:.40})"
        hint = f"--field {name}={cure} stores {'all as text' if cure == 'str' else f'the field as {cure}'}"
        wrong.setdefault(position, Bad(called[position], f"field {name!r}: {found}", hint))


def _codec_for_both(codec: str, value: Any) -> str:
    """Return a codec that holds the values of a codec and this one."""
    if codec == "json" or isinstance(value, list | dict):
        return "json"
    return "float" if codec == "int" and isinstance(value, float) else "str"


def _numbers(
    wrong: dict[int, Bad],
    field: str,
    column: str,
    values: Sequence[Any],
    dtype: np.dtype[Any],
    called: Sequence[str],
) -> np.ndarray[Any, Any]:
    """Return a column of an array as numbers of a dtype; add the samples in which it is none to `wrong`."""
    if isinstance(values, np.ndarray):
        numbers = values
    else:
        _note_misfits(wrong, column, "float" if dtype.kind == "f" else "int", values, called)
        missing = [position for position, value in enumerate(values) if value is None]
        for position in missing:
            reason, hint = f"field {field!r}: column {column!r} is missing", f"--null {field}=VALUE replaces it"
            wrong.setdefault(position, Bad(called[position], reason, hint))
        numbers = np.array([0 if value is None or isinstance(value, Misfit) else value for value in values])
    if dtype.kind == "f" and numbers.dtype.kind in "iu":
        exact = numbers.astype(dtype).astype(numbers.dtype) == numbers
        for position in np.flatnonzero(~exact).tolist():
            reason = f"field {field!r}: {numbers[position]} of column {column!r} cannot be stored as {dtype}"
            wrong.setdefault(position, Bad(called[position], reason, f"Leave {column} out of --pack-columns"))
    made: np.ndarray[Any, Any] = numbers.astype(dtype)
    return made


def choose(
    columns: Iterable[tuple[str, str]],
    choice: FieldMapping,
    fits: Mapping[str, Fit] | None = None,
    dtypes: Mapping[str, np.dtype[Any]] | None = None,
) -> Fields:
    """Return the fields for columns of these natural codecs. Raises `UsageError` if the options do not fit them.

    `fits` has conversions for columns whose values decided their codec; `dtypes` the dtypes of columns of numbers.
    """
    given = choice.names
    offered = [(column, given.get(column) or field_name(column, codec), codec) for column, codec in columns]
    _check_names(offered, choice)
    natural = {column: codec for column, _, codec in offered}
    packs = _packs(natural, choice, dtypes or {})
    packed = {column for _, members, _ in packs for column in members}
    explicit = {*choice.columns, *choice.codecs, *choice.renames.values(), choice.label}
    taken = [
        (column, name, codec)
        for column, name, codec in offered
        if is_taken(column, choice) and (column not in packed or explicit & {column, name})
    ]
    seen: dict[str, str] = dict.fromkeys(choice.packed, "--pack-columns")
    for column, name, _ in taken:
        if name in seen:
            both = f"columns {printable(seen[name])!r} and {printable(column)!r} would both be field {name!r}"
            raise UsageError(
                f"{both}: rename one (--field NEW={shlex.quote(column)}, or in the table), or leave one out with"
                " --columns"
            )
        seen[name] = column
    chosen = [
        (column, name, choice.codecs.get(name, choice.codecs.get(column, codec))) for column, name, codec in taken
    ]
    for column, name, codec in chosen:
        if codec == "null":
            raise UsageError(
                f"column {column!r} has no values in the rows that were read, so its codec is unknown: give --field"
                f" {name}=CODEC with --null {name}=VALUE, or leave it out with --columns"
            )
    labels = next((codec for column, _, codec in chosen if column == choice.label), "int")
    if choice.label and labels not in ("int", "str"):
        hint = f": --field {choice.label}=int" if labels == "float" else ""
        raise UsageError(f"label {choice.label!r}: that column is {labels}, and labels are whole numbers{hint}")
    if len(chosen) + len(packs) > MAX_FIELDS:
        raise UsageError(_too_wide(len(chosen) + len(packs), chosen))
    schema = Schema.parse([*((name, codec) for _, name, codec in chosen), *((name, "ndarray") for name, _, _ in packs)])
    told = {name: choice.nulls.get(name, choice.nulls.get(column)) for column, name, _ in chosen}
    nulls = {name: _parsed(name, schema.codec(name), text) for name, text in told.items() if text is not None}
    for name, _, dtype in packs:
        if name in choice.nulls:
            nulls[name] = _parsed(name, "float" if dtype.kind == "f" else "int", choice.nulls[name])
    asked = {column for column, name, _ in chosen if {column, name} & choice.codecs.keys()}
    kept = {column: fit for column, fit in (fits or {}).items() if column not in asked}
    return Fields(tuple(chosen), packs, schema, nulls, kept)


def _check_names(offered: Sequence[tuple[str, str, str]], choice: FieldMapping) -> None:
    """Raise `UsageError` if the user names a column that the source does not have."""
    known = {name for column, name, _ in offered for name in (column, name)} | choice.packed.keys()
    there = printable(", ".join(column for column, _, _ in offered))
    columns = {column for column, _, _ in offered}
    for name, column in choice.renames.items():
        if column not in columns:
            told = f"there is no such codec; the codecs are {', '.join(CODECS)}"
            raise UsageError(f"--field {name}={column}: {told}. Nor is it a column; there are {there}")
    for asked in (*choice.columns, *choice.codecs, *choice.nulls, *filter(None, (choice.label,))):
        if asked not in known:
            codec = choice.codecs.get(asked)
            more = f"; --field {asked}={codec}:{codec} renames column {codec!r}" if codec in columns else ""
            raise UsageError(f"the source has no column {asked!r}; there are {there}{more}")


def _packs(
    natural: Mapping[str, str], choice: FieldMapping, dtypes: Mapping[str, np.dtype[Any]]
) -> tuple[tuple[str, tuple[str, ...], np.dtype[Any]], ...]:
    """Return the fields that hold several columns. Raises `UsageError` if a column is missing, or not of numbers."""
    packs = []
    for name, told in choice.packed.items():
        members: dict[str, None] = {}
        for asked in told:
            found = [asked] if asked in natural else [column for column in natural if fnmatchcase(column, asked)]
            if not found:
                there = printable(", ".join(natural))
                raise UsageError(f"--pack-columns {name}: the source has no column {asked!r}; there are {there:.400}")
            members |= dict.fromkeys(found)
        for column in members:
            if natural[column] not in ("int", "float"):
                raise UsageError(
                    f"--pack-columns {name}: column {column!r} is {natural[column]}, and an array holds numbers"
                )
        own = [dtypes.get(column, _DTYPES[natural[column]]) for column in members]
        packs.append((name, tuple(members), np.result_type(*own)))
    return tuple(packs)


def _too_wide(fields: int, chosen: Sequence[tuple[str, str, str]]) -> str:
    """Return the message for a table that has too many columns, with the option that packs its numbers."""
    numbers = [column for column, _, codec in chosen if codec in ("int", "float")]
    fronts = Counter(column.rstrip("0123456789") for column in numbers)
    front, times = fronts.most_common(1)[0] if fronts else ("", 0)
    told = f"'{front}*'" if front and times > 1 else ",".join([*numbers[:2], "..."])
    how = f"--pack-columns vector={told} makes one array of columns of numbers" if numbers else "there are few numbers"
    return (
        f"the source has {fields:,} columns, and a sample has at most {MAX_FIELDS} fields: {how}; --columns takes some"
        " columns. For pack: ({'vector': row} for row in table.to_numpy())"
    )


def is_taken(column: str, choice: FieldMapping) -> bool:
    """Return whether a user chose this column, by its own name or that of its field."""
    names = {column, field_name(column), field_name(column, "int"), choice.names.get(column, column)}
    return not choice.columns or bool(names & set(choice.columns))


def is_read(column: str, choice: FieldMapping) -> bool:
    """Return whether a column is read: as a field, or as a part of an array."""
    patterns = (pattern for members in choice.packed.values() for pattern in members)
    return is_taken(column, choice) or any(column == one or fnmatchcase(column, one) for one in patterns)


def field_name(column: str, codec: str = "str") -> str:
    """Return the name of a column's field: characters that the name of a field must not contain become `_`."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", column)[:_LONGEST] or "_"
    if not is_field_name(name):
        name = f"_{name}"[:_LONGEST]
    return f"{name}_" if name == "index" or (name == "key" and codec not in ("str", "null")) else name


def _parsed(name: str, codec: str, text: str) -> Any:
    """Return the value that a user means by a text."""
    try:
        if codec == "json":
            return json.loads(text)
        if codec == "ndarray":
            return np.asarray(json.loads(text))
        if codec in ELEMENTS:
            return parsed_list(text)
        return _PARSERS[codec](text)
    except ValueError:
        raise UsageError(f"--null {name}={text}: that is not a value for a field of codec {codec}") from None


def _as_text(value: Any) -> Any:
    if isinstance(value, bool | int | float) or value.__class__.__name__ == "Decimal":
        return str(value)
    return value.isoformat() if hasattr(value, "isoformat") else value


def _as_int(value: Any) -> Any:
    if isinstance(value, str) and INT_DECLARED.fullmatch(value):
        return int(value)
    number = float(value) if isinstance(value, str) and FLOAT_DECLARED.fullmatch(value) else value
    whole = isinstance(number, float) and number.is_integer() and abs(number) < _MOST_EXACT
    return int(number) if whole else value  # 1.0, as pandas writes numbers if some are missing


def _as_float(value: Any) -> Any:
    return float(value) if isinstance(value, str) and FLOAT_DECLARED.fullmatch(value) else value


def _as_array(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    try:
        array = np.asarray(value)
    except ValueError:
        return value
    return value if array.dtype == object else array


_MOST_EXACT: Final = 1 << 53
"""All smaller whole numbers have a float of their own."""
_CONVERSIONS: Final[dict[str, tuple[Callable[[Any], Any], type]]] = {
    "str": (_as_text, str),
    "int": (_as_int, int),
    "float": (_as_float, float),
    "ndarray": (_as_array, np.ndarray),
}
"""Codec -> conversion of each value, and the type that needs no conversion.

A value that cannot be converted is not changed, and is refused later.
"""
