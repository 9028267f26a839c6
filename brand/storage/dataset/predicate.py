"""Which samples does an expression over columns choose, such as `label in [3, 5] and duration < 12`?

`subset=` takes such a text, as a job of the paper JOADER gives a predicate over the data set. The text is parsed here
and never evaluated as Python. Pure: the columns are handed in, and the result is a mask.

    expression  = conjunction {"or" conjunction}
    conjunction = negation {"and" negation}
    negation    = "not" negation | "(" expression ")" | condition
    condition   = value comparison value {comparison value}
                | field ["not"] "in" "[" value {"," value} "]"
                | field "is" ["not"] "null"
    comparison  = "==" | "!=" | "<" | "<=" | ">" | ">="
    value       = field | number | text in quotes | "true" | "false" | "null"

A comparison with a missing value is neither true nor false, as in SQL and in filters of Arrow, so `not` of it does not
choose the sample either.
"""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.formats.constants import NOTHING
from brand.printable import printable

MAX_CHARACTERS: Final = 100_000
"""Maximum length of an expression: a list of some 10,000 numbers fits."""
MAX_DEPTH: Final = 50
"""Maximum number of parentheses and `not` inside each other."""

_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<number>[-+]?(?:\d[\d_]*(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)
    |(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<word>[A-Za-z_]\w*)
    |(?P<sign>==|!=|<=|>=|<>|&&|\|\||[^\s]))""",
    re.VERBOSE | re.DOTALL,
)
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_CONSTANTS: Final = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_RESERVED: Final = {"and", "or", "not", "in", "is", *_CONSTANTS}
_INSTEAD: Final = {
    "=": "==",
    "<>": "!=",
    "&": "and",
    "&&": "and",
    "|": "or",
    "||": "or",
    "!": "not",
    "~": "not",
    **{word.upper(): word for word in ("and", "or", "not", "in", "is", "null")},
}
"""Signs and words of other languages, and what to write instead."""
_SHOWN: Final = 30
_NAMED: Final = 10


@dataclass(frozen=True)
class ColumnTable:
    """The columns that an expression may name. `samples` is the length of each."""

    samples: int
    schema: Mapping[str, str]
    """Field -> codec, also of fields that are not stored as columns."""
    names: Mapping[str, Sequence[str]]
    """Field -> names of its values, by value."""
    read: Callable[[str], NDArray[Any]]
    """Return an `int` or `float` column by the name of its field, shape (samples,)."""

    @property
    def columns(self) -> list[str]:
        """The fields that are stored as columns."""
        return [name for name, codec in self.schema.items() if codec in ("int", "float")]


def chosen_by(text: str, table: ColumnTable) -> NDArray[np.bool_]:
    """Return which samples an expression chooses, shape (samples,); at least one.

    A sample is chosen if the expression is true for it. A comparison with a missing value is neither true nor false.
    Raises `UsageError`, which names the position in the text, if the expression is invalid, names a field that has no
    column, compares values that cannot be compared, or chooses no sample. Source: JOADER, appendix E.2.
    """
    if len(text) > MAX_CHARACTERS:
        raise UsageError(
            f"subset= is a text of {len(text):,} characters, and at most {MAX_CHARACTERS:,} are possible: give a mask "
            "or indices"
        )
    expression = _Expression(text, table)
    mask = expression.evaluate()
    if not mask.any():
        raise UsageError(f"subset={_shown(text)!r} chooses no sample: {expression.ranges()}")
    return mask


class _Truth(NamedTuple):
    """For which samples a condition is true, and for which it is false, shape (samples,) each."""

    true: NDArray[np.bool_]
    false: NDArray[np.bool_]


class _Lexeme(NamedTuple):
    """A number, text, word or sign of an expression. `at` is its position, from 0."""

    kind: str
    text: str
    at: int


class _Operand(NamedTuple):
    """A value of a comparison: a constant, or the column of a field."""

    lexeme: _Lexeme
    field: str | None
    value: Any


class _Expression:
    """An expression that is evaluated while it is parsed, by recursive descent."""

    def __init__(self, text: str, table: ColumnTable) -> None:
        self._text, self._table = text, table
        self._lexemes = _lexemes(text)
        self._next = self._depth = 0
        self._columns: dict[str, NDArray[Any]] = {}

    def evaluate(self) -> NDArray[np.bool_]:
        """Return for which samples the expression is true. Raises `UsageError`."""
        if self._lexemes[0].kind == "end":
            raise UsageError("subset= is an empty text: give an expression such as 'label == 3', or None for all")
        found = self._either()
        if self._here.kind != "end":
            raise self._wrong("'and', 'or' or the end of the text is expected")
        return found.true

    def ranges(self) -> str:
        """Return the ranges of the columns that were compared, for a message."""
        facts = []
        for name, values in self._columns.items():
            known = values[~_missing(values)]
            facts.append(f"{name} is {known.min()} to {known.max()}" if len(known) else f"{name} has no values")
        return ", ".join(facts)

    # -- the grammar ------------------------------------------------------------------------------------------------

    def _either(self) -> _Truth:
        found = self._both()
        while self._take("or"):
            other = self._both()
            found = _Truth(found.true | other.true, found.false & other.false)
        return found

    def _both(self) -> _Truth:
        found = self._negation()
        while self._take("and"):
            found = _and(found, self._negation())
        return found

    def _negation(self) -> _Truth:
        at = self._here
        if not (self._take("not") or self._take("(")):
            return self._condition()
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._wrong(f"more than {MAX_DEPTH} parentheses and 'not' inside each other: give a mask", at)
        if at.text == "not":
            inner = self._negation()
            found = _Truth(inner.false, inner.true)
        else:
            found = self._either()
            if not self._take(")"):
                raise self._wrong("')' is expected")
        self._depth -= 1
        return found

    def _condition(self) -> _Truth:
        left, found = self._operand(), None
        while self._here.text in _COMPARISONS and self._here.kind == "sign":
            sign = self._advance().text
            right = self._operand()
            each = self._compared(left, sign, right)
            left, found = right, each if found is None else _and(found, each)
        if found is not None:
            return found
        if self._take("is"):
            negated = self._take("not")
            if self._here.text not in ("null", "None"):
                raise self._wrong("'is' is followed by null: use == to compare with another value")
            self._advance()
            return self._is_missing(left, negated=negated)
        negated = self._take("not")
        if self._take("in"):
            among = self._among(left, self._values())
            return _Truth(among.false, among.true) if negated else among
        if left.field is not None and (self._here.kind == "end" or self._here.text in ("and", "or", ")")):
            raise self._wrong(f"{left.field!r} alone is no condition: write {left.field} == true", left.lexeme)
        raise self._wrong("a comparison (==, !=, <, <=, >, >=, in, is) is expected")

    def _operand(self) -> _Operand:
        lexeme = self._here
        if lexeme.kind == "word" and lexeme.text not in _RESERVED:
            self._advance()
            return _Operand(lexeme, lexeme.text, self._column(lexeme))
        return self._constant()

    def _constant(self) -> _Operand:
        lexeme = self._here
        if lexeme.kind == "number":
            value: Any = self._number(lexeme)
        elif lexeme.kind == "text":
            value = re.sub(r"\\(.)", r"\1", lexeme.text[1:-1], flags=re.DOTALL)
        elif lexeme.kind == "word" and lexeme.text in _CONSTANTS:
            value = _CONSTANTS[lexeme.text]
        else:
            raise self._wrong("a field or a value is expected")
        self._advance()
        return _Operand(lexeme, None, value)

    def _values(self) -> list[_Operand]:
        opening = self._here
        if not (self._take("[") or self._take("(")):
            raise self._wrong("a list is expected, such as [3, 5]")
        closing = "]" if opening.text == "[" else ")"
        found: list[_Operand] = []
        while not self._take(closing):
            if found and not self._take(","):
                raise self._wrong(f"',' or {closing!r} is expected")
            if found and self._take(closing):
                break
            if self._here.kind == "word" and self._here.text not in _CONSTANTS:
                raise self._wrong("a list has numbers or texts in quotes")
            found.append(self._constant())
        if not found:
            raise self._wrong("the list is empty", opening)
        return found

    # -- conditions -------------------------------------------------------------------------------------------------

    def _compared(self, left: _Operand, sign: str, right: _Operand) -> _Truth:
        """Return where `left sign right` is true, and where it is false; nowhere if a value is missing."""
        if left.field is None and right.field is None:
            raise self._wrong("a comparison has a field on at least one side", left.lexeme)
        for one, other in ((left, right), (right, left)):
            if other.field is None and other.value is None:
                if sign not in ("==", "!="):
                    raise self._wrong("null is compared with == and != only", other.lexeme)
                return self._is_missing(one, negated=sign == "!=")
            if other.field is None and isinstance(other.value, str):
                if sign not in ("==", "!="):
                    raise self._wrong("a name of a class is compared with ==, != and in only", other.lexeme)
                among = self._among(one, [other])
                return among if sign == "==" else _Truth(among.false, among.true)
        unknown = np.zeros(self._table.samples, np.bool_)
        for each in (left, right):
            if each.field is not None:
                unknown |= _missing(each.value)
        one, other = self._constant_for(left, right), self._constant_for(right, left)
        true = np.asarray(_COMPARISONS[sign](one, other), np.bool_) & ~unknown
        return _Truth(true, ~true & ~unknown)

    def _among(self, field: _Operand, values: Sequence[_Operand]) -> _Truth:
        """Return where the field has one of the values, and where it has none of them and is not missing."""
        if field.field is None:
            raise self._wrong("a list is compared with a field", field.lexeme)
        numbers: list[int | float] = []
        for each in values:
            if each.value is None:
                raise self._wrong(f"null is in no list: write {field.field} is null", each.lexeme)
            if isinstance(each.value, str):
                numbers += self._values_of_name(field, each)
            else:
                numbers.append(self._constant_for(each, field))
        column: NDArray[Any] = field.value
        if column.dtype.kind == "i":  # only a whole number of 64 bits can be equal
            low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
            numbers = [number for number in numbers if isinstance(number, int) and low <= number <= high]
        unknown = _missing(column)
        true = np.isin(column, np.array(numbers, column.dtype)) & ~unknown
        return _Truth(true, ~true & ~unknown)

    def _is_missing(self, field: _Operand, *, negated: bool) -> _Truth:
        if field.field is None:
            raise self._wrong("null is compared with a field", field.lexeme)
        if field.field in self._table.names:
            raise self._wrong(f"a sample without a class has -1: write {field.field} == -1", field.lexeme)
        unknown = _missing(field.value)
        return _Truth(~unknown, unknown) if negated else _Truth(unknown, ~unknown)

    def _constant_for(self, operand: _Operand, field: _Operand) -> Any:
        """Return the value of an operand for a comparison with a field. Raises `UsageError` if they do not fit."""
        if operand.field is not None:
            return operand.value
        whole = field.value.dtype.kind == "i"
        if isinstance(operand.value, bool) and (not whole or field.field in self._table.names):
            with_what = "a number or the name of a class" if whole else "a number"
            raise self._wrong(f"compare {field.field} with {with_what}", operand.lexeme)
        # an int column would be rounded to compare it with a float
        return int(operand.value) if whole and operand.value == int(operand.value) else operand.value

    def _values_of_name(self, field: _Operand, name: _Operand) -> list[int]:
        """Return the values of a field that have this name."""
        names = self._table.names.get(str(field.field))
        if names is None:
            why = f"{field.field} is {self._table.schema[str(field.field)]}, and its values have no names"
            raise self._wrong(f"{why}: compare it with a number", name.lexeme)
        found = [value for value, each in enumerate(names) if each == name.value]
        if not found:
            close = difflib.get_close_matches(name.value, names, n=1)
            some = ", ".join(map(repr, names[:_NAMED])) + (", ..." if len(names) > _NAMED else "")
            hint = f": is it {close[0]!r}?" if close else f"; classes: {some}"
            raise self._wrong(f"{field.field} has no class of this name{hint}", name.lexeme)
        return found

    def _column(self, lexeme: _Lexeme) -> NDArray[Any]:
        """Return the column of a field, and note that it was compared."""
        name, table = lexeme.text, self._table
        if name not in self._columns:
            codec, there = table.schema.get(name), ", ".join(table.columns)
            if codec is None:
                hint = " (a text is written in quotes)" if table.names else ""
                raise self._wrong(f"no field {name!r}{hint}; columns: {there}", lexeme)
            if codec not in ("int", "float"):
                raise self._wrong(
                    f"field {name!r} ({codec}) is not stored as a column: read it once and give a mask "
                    f"(docs/guides/subset.md); columns: {there}",
                    lexeme,
                )
            self._columns[name] = table.read(name)
        return self._columns[name]

    def _number(self, lexeme: _Lexeme) -> int | float:
        try:
            value = float(lexeme.text)
            if math.isfinite(value):
                return value if re.search("[.eE]", lexeme.text) else int(lexeme.text)
        except ValueError:
            pass
        raise self._wrong("this is no number, or too large", lexeme)

    # -- lexemes ----------------------------------------------------------------------------------------------------

    @property
    def _here(self) -> _Lexeme:
        return self._lexemes[self._next]

    def _advance(self) -> _Lexeme:
        self._next += 1
        return self._lexemes[self._next - 1]

    def _take(self, text: str) -> bool:
        """Whether the next lexeme is this word or sign; if so, go past it."""
        taken = self._here.text == text and self._here.kind in ("word", "sign")
        self._next += taken
        return taken

    def _wrong(self, why: str, lexeme: _Lexeme | None = None) -> UsageError:
        """Return the error at a lexeme; by default the next one. For a sign of another language, it names ours."""
        at = self._here if lexeme is None else lexeme
        if at.text in _INSTEAD and at.kind != "text":
            why = f"write {_INSTEAD[at.text]!r} for {at.text!r}"
        elif lexeme is None and at.kind == "sign" and at.text in "+-*/%":
            why = f"{at.text!r} is not possible: compute a mask, such as subset=ds.column(...) * 2 < 10"
        elif at.kind == "sign" and at.text in "'\"":
            why = "the quote has no end"
        where = "at its end" if at.kind == "end" else f"at character {at.at + 1}, {_shown(at.text)!r}"
        return UsageError(f"subset={_shown(self._text)!r}, {where}: {why}")


def _lexemes(text: str) -> list[_Lexeme]:
    """Return the numbers, texts, words and signs of an expression, and its end."""
    found = [
        _Lexeme(str(match.lastgroup), match[str(match.lastgroup)], match.start(str(match.lastgroup)))
        for match in _TOKEN.finditer(text)
    ]
    return [*found, _Lexeme("end", "", len(text))]


def _and(one: _Truth, other: _Truth) -> _Truth:
    return _Truth(one.true & other.true, one.false | other.false)


def _missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = values == NOTHING["int"] if values.dtype.kind == "i" else np.isnan(values)
    return found


def _shown(text: str) -> str:
    return printable(text if len(text) <= 2 * _SHOWN else f"{text[:_SHOWN]}...{text[-_SHOWN:]}")
