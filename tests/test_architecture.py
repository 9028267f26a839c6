"""The table "Where is it" of the developer documentation leads to names that are there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LEAST_ROWS = 14

_ROW = re.compile(r"\| [^|*`]+ \| `(?P<module>[\w/]+\.py)` \| (?P<names>`[\w.]+`(?:, `[\w.]+`)*) \|")
_NO_ROW = re.compile(r"\| behaviour \| module \| name \||\|---\|---\|---\||\| \*\*.+\*\* \| \| \|")


def rows(page: str) -> list[tuple[str, list[str]]]:
    """Modules and names of the table; each of its lines has to be a row, a heading or a group's name."""
    page = page.partition("## Where is it\n")[2].partition("\n## ")[0]
    lines = [line for line in page.splitlines() if line.startswith("|") and not _NO_ROW.fullmatch(line)]
    found = [(line, _ROW.fullmatch(line)) for line in lines]
    assert [line for line, match in found if match is None] == []
    return [(match["module"], re.findall(r"`(.+?)`", match["names"])) for _, match in found if match is not None]


def defined(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    """Functions, classes and values of a module, and `Class.name` for those of its classes."""
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                yield prefix + name
            case ast.Assign(targets=targets):
                yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))
            case ast.ClassDef(name=name):
                yield prefix + name
                yield from defined(node.body, f"{prefix}{name}.")


def missing(page: str) -> list[str]:
    """What the table of a page names and the code does not have."""
    lost = []
    for module, names in rows(page):
        path = ROOT / "brand" / module
        there = set(defined(ast.parse(path.read_text(encoding="utf-8")).body)) if path.is_file() else set()
        lost += [f"{module}: {name}" for name in names if name not in there]
    return lost


@pytest.fixture(scope="module")
def page() -> str:
    """The page as it stands."""
    return (ROOT / "docs" / "dev" / "architecture.md").read_text(encoding="utf-8")


def test_the_page_names_what_is_there(page: str) -> None:
    """Each module of the table exists, and each name is defined in it."""
    assert missing(page) == []
    assert len(rows(page)) >= LEAST_ROWS


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("`Reads.next`", "`Reads.nxt`"), ("`choose_order`", "`chose_order`"), ("`node/decide/core.py`", "`node/core.py`")],
)
def test_a_wrong_name_is_found(page: str, right: str, wrong: str) -> None:
    """A method, a function or a module that was renamed is no longer found."""
    assert len(missing(page.replace(right, wrong))) == 1


@pytest.mark.parametrize(
    "line", ["| what is read next | `node/decide/reads/reads.py` | Reads.next |", "| what is read next |"]
)
def test_a_line_that_is_no_row_is_found(page: str, line: str) -> None:
    """A line without a module or a name is a mistake, not a line to leave out."""
    with pytest.raises(AssertionError):
        rows(re.sub(r"^\| what is read next .*$", line, page, flags=re.MULTILINE))
