"""Expressions over columns: they choose the rows that a slow model, and a filter of Arrow, choose.

The model evaluates a tree row by row with three truth values; `None` is neither true nor false.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from brand.errors import UsageError
from brand.formats.constants import NOTHING
from brand.storage.dataset.predicate import MAX_CHARACTERS, MAX_DEPTH, ColumnTable, chosen_by

SCHEMA = {"label": "int", "age": "int", "flag": "int", "score": "float", "other": "float", "caption": "str"}
NAMES = ("cat", "big dog", 'a "quoted" \\ one', "cat")
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Row = Mapping[str, Any]
Tree = tuple[Any, ...]
SMALL = st.integers(-4, 4)
HALVES = SMALL.map(lambda number: number / 2)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "label": st.integers(-1, len(NAMES) - 1),
            "age": st.none() | SMALL,
            "flag": st.booleans(),
            "score": st.none() | HALVES,
            "other": st.none() | HALVES,
        }
    ),
    min_size=1,
    max_size=12,
)
NUMBERS = ("label", "age", "score", "other")
CONDITIONS = st.one_of(
    st.tuples(st.just("compare"), st.sampled_from(NUMBERS), st.sampled_from(list(COMPARISONS)), SMALL | HALVES),
    st.tuples(
        st.just("fields"), st.sampled_from(NUMBERS), st.sampled_from(list(COMPARISONS)), st.sampled_from(NUMBERS)
    ),
    st.tuples(st.just("in"), st.sampled_from(NUMBERS), st.lists(SMALL | HALVES, min_size=1, max_size=4), st.booleans()),
    st.tuples(st.just("null"), st.sampled_from(("age", "score")), st.sampled_from(("is", "==", "is not", "!="))),
    st.tuples(st.just("name"), st.sampled_from(NAMES), st.booleans()),
    st.tuples(st.just("flag"), st.booleans()),
    st.tuples(st.just("between"), HALVES, st.sampled_from(NUMBERS), SMALL),
)
TREES: st.SearchStrategy[Tree] = st.recursive(
    CONDITIONS,
    lambda some: st.one_of(
        st.tuples(st.just("not"), some),
        st.tuples(st.sampled_from(("and", "or")), st.lists(some, min_size=2, max_size=3)),
    ),
    max_leaves=6,
)


def quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def text_of(tree: Tree) -> str:
    """The expression, with no more parentheses than it needs."""
    kind = tree[0]
    if kind in ("compare", "fields"):
        return f"{tree[1]} {tree[2]} {tree[3]}"
    if kind == "in":
        return f"{tree[1]}{' not' if tree[3] else ''} in [{', '.join(map(str, tree[2]))}]"
    if kind == "null":
        return f"{tree[1]} {tree[2]} null"
    if kind == "name":
        return f"label not in ({quoted(tree[1])},)" if tree[2] else f"{quoted(tree[1])}==label"
    if kind == "flag":
        return f"flag == {str(tree[1]).lower()}"
    if kind == "between":
        return f"{tree[1]}<{tree[2]}<={tree[3]}"
    weak = {"not": ("and", "or"), "and": ("or",), "or": ()}[kind]
    inner = [tree[1]] if kind == "not" else tree[1]
    parts = [f"({text_of(each)})" if each[0] in weak else text_of(each) for each in inner]
    return f"not {parts[0]}" if kind == "not" else f" {kind} ".join(parts)


def truth(tree: Tree, row: Row) -> bool | None:
    """The slow model of one row: `None` is unknown."""
    kind = tree[0]
    if kind == "not":
        inner = truth(tree[1], row)
        return None if inner is None else not inner
    if kind in ("and", "or"):
        found, strong = [truth(each, row) for each in tree[1]], kind == "or"
        return strong if strong in found else None if None in found else not strong
    if kind == "null":
        return (row[tree[1]] is None) == (tree[2] in ("is", "=="))
    if kind == "name":
        return bool((row["label"] >= 0 and NAMES[row["label"]] == tree[1]) != tree[2])
    if kind == "flag":
        return bool(row["flag"] == tree[1])
    if kind == "between":
        return None if row[tree[2]] is None else tree[1] < row[tree[2]] <= tree[3]
    left = row[tree[1]]
    right = row[tree[3]] if kind == "fields" else tree[3]
    if left is None or right is None:
        return None
    return (left in tree[2]) != tree[3] if kind == "in" else bool(COMPARISONS[tree[2]](left, right))


def arrow(tree: Tree) -> Any:
    """The filter of Arrow."""
    kind = tree[0]
    if kind == "not":
        return ~arrow(tree[1])
    if kind in ("and", "or"):
        join = operator.and_ if kind == "and" else operator.or_
        return functools.reduce(join, [arrow(each) for each in tree[1]])
    if kind == "null":
        missing = pc.field(tree[1]).is_null()
        return missing if tree[2] in ("is", "==") else ~missing
    if kind == "name":
        same = pc.field("label").isin([value for value, name in enumerate(NAMES) if name == tree[1]])
        return ~same if tree[2] else same
    if kind == "flag":
        return pc.field("flag") == tree[1]
    if kind == "between":
        return (pc.field(tree[2]) > tree[1]) & (pc.field(tree[2]) <= tree[3])
    if kind == "in":  # `isin` of Arrow calls a missing value "not in the list"
        same = functools.reduce(operator.or_, [pc.field(tree[1]) == number for number in tree[2]])
        return ~same if tree[3] else same
    return COMPARISONS[tree[2]](pc.field(tree[1]), pc.field(tree[3]) if kind == "fields" else tree[3])


def table_of(rows: Sequence[Row]) -> ColumnTable:
    """The rows as columns, as a data set stores them."""

    def read(name: str) -> NDArray[Any]:
        codec = SCHEMA[name]
        assert codec != "str"
        values = [NOTHING[codec] if row[name] is None else row[name] for row in rows]
        return np.array(values, "<i8" if codec == "int" else "<f8")

    return ColumnTable(len(rows), SCHEMA, {"label": NAMES}, read)


def chosen(text: str, table: ColumnTable) -> list[bool]:
    """The mask, also of an expression that chooses nothing."""
    try:
        return list(chosen_by(text, table).tolist())
    except UsageError as error:
        if "chooses no sample: " not in str(error):
            raise
        return [False] * table.samples


@given(ROWS, TREES)
def test_an_expression_chooses_the_rows_of_the_model_and_of_arrow(rows: list[Row], tree: Tree) -> None:
    """With missing values, class names of which two are equal, bools, and `not`, `and`, `or` by their rank."""
    found = chosen(text_of(tree), table_of(rows))
    assert found == [truth(tree, row) is True for row in rows]
    kinds = {"label": pa.int64(), "age": pa.int64(), "flag": pa.bool_(), "score": pa.float64(), "other": pa.float64()}
    stored = pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()})
    numbered = stored.append_column("number", pa.array(range(len(rows))))
    assert np.flatnonzero(found).tolist() == numbered.filter(arrow(tree))["number"].to_pylist()


ROW = {"label": 0, "age": 2**53 + 1, "flag": 1, "score": 0.5, "other": None}
OTHER = {**ROW, "label": 1, "age": -(2**63) + 1, "score": None}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("age == 9007199254740993", [True, False]),
        ("age in [9007199254740993.5, 9223372036854775808, 9007199254740993]", [True, False]),
        ("age > 9007199254740992.0", [True, False]),
        ("age < 99999999999999999999999 and score == .5e0", [True, False]),
        ("not age > -99999999999999999999999 or label != 'cat'", [False, True]),
        ("score != 3", [True, False]),
        ("not score == 3 or score == None", [True, True]),
        ("label == 'cat' or label == 'big dog' and age > 0", [True, False]),
        ("(label == 'cat' or label == 'big dog') and age > 0", [True, False]),
        ("not " * MAX_DEPTH + "age > 0", [True, False]),
        ("age in [" + "7, " * 9_000 + "9007199254740993]", [True, False]),
    ],
)
def test_numbers_are_exact_and_not_binds_closest(text: str, wanted: list[bool]) -> None:
    assert chosen(text, table_of([ROW, OTHER])) == wanted


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (" ", "subset= is an empty text"),
        ("age = 3", "at character 5, '=': write '==' for '='"),
        ("age == 3 AND age < 4", "at character 10, 'AND': write 'and' for 'AND'"),
        ("!age == 3", "at character 1, '!': write 'not' for '!'"),
        ("years < 3", r"at character 1, 'years': no field 'years' .*columns: label, age, flag, score, other"),
        ("label == cat", r"at character 10, 'cat': no field 'cat' \(a text is written in quotes\)"),
        ("caption == 3", r"field 'caption' \(str\) is not stored as a column: read it once and give a mask"),
        ("label == 'cats'", r"at character 10, .*label has no class of this name: is it 'cat'\?"),
        ("label in ['xyz']", "no class of this name; classes: 'cat', 'big dog'"),
        ("age == 'cat'", "age is int, and its values have no names: compare it with a number"),
        ("score in ['cat']", "score is float, and its values have no names"),
        ("label < 'cat'", "compared with ==, != and in only"),
        ("score == true", "compare score with a number"),
        ("label in [true]", "compare label with a number or the name of a class"),
        ("label is null", "a sample without a class has -1: write label == -1"),
        ("age in [null]", "null is in no list: write age is null"),
        ("age < null", "null is compared with == and != only"),
        ("age is 3", "'is' is followed by null"),
        ("age in []", "the list is empty"),
        ("age in [label]", "a list has numbers or texts"),
        ("age in 3", r"a list is expected, such as \[3, 5\]"),
        ("age in [3 5]", "',' or ']' is expected"),
        ("3 in [3]", "a list is compared with a field"),
        ("null is null", "null is compared with a field"),
        ("3 < 4", "a field on at least one side"),
        ("flag", "'flag' alone is no condition: write flag == true"),
        ("age <", "at its end: a field or a value is expected"),
        ("(age < 3", r"at its end: '\)' is expected"),
        ("age < 3)", "at character 8, .*'and', 'or' or the end"),
        ("age < 3; 4", "at character 8, ';'"),
        ("age * 2 < 3", "at character 5, .*compute a mask"),
        ("age.real < 3", r"at character 4, '\.'"),
        ("__import__('os')", "no field '__import__'"),
        ("label == 'cat", "the quote has no end"),
        ("age < 1e999", "this is no number, or too large"),
        ("age < " + "9" * 5_000, "this is no number, or too large"),
        ("age > 0 and age < 0", "chooses no sample: age is -9223372036854775807 to 9007199254740993"),
        ("other < 0", "chooses no sample: other has no values"),
        ("not " * (MAX_DEPTH + 1) + "age > 0", "more than 50 parentheses and 'not' inside each other"),
        ("(" * 5_000, "more than 50 parentheses"),
        ("age < 3" + " " * MAX_CHARACTERS, "100,007 characters, and at most 100,000 are possible: give a mask"),
    ],
)
def test_an_error_names_the_place_and_the_next_step(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        chosen_by(text, table_of([ROW, OTHER]))


@given(st.text(st.sampled_from("age score'\"()[],<=!.-+19e \\\n\0é and or not in is null"), max_size=30))
def test_any_text_is_an_expression_or_an_error_of_use(text: str) -> None:
    with contextlib.suppress(UsageError):
        assert chosen_by(text, table_of([ROW, OTHER])).any()
