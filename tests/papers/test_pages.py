"""The tables of the papers' pages: each module and each test that a row names exists, and each state is a known one."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted(ROOT.glob("docs/dev/paper-*.md"))
STATES = ("served", "compared", "in part", "not built", "needs hardware")


def rows(page: Path) -> list[list[str]]:
    """The cells of a page's table of mechanisms."""
    part = page.read_text(encoding="utf-8").split("## Where each part is\n", 1)[1].split("\n## ", 1)[0]
    part = part[part.index("| paper") :].split("\n\n", 1)[0]
    lines = [line.strip()[1:-1].split("|") for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def code(cell: str) -> list[str]:
    """The texts in code type of a cell."""
    return re.findall(r"`([^`]+)`", cell)


def functions(path: Path) -> set[str]:
    """The functions of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_there_is_a_page_of_each_paper() -> None:
    assert [page.stem for page in PAGES] == ["paper-brand", "paper-hdmlp", "paper-joader", "paper-lobster"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_row_names_what_there_is(page: Path) -> None:
    """A mechanism that is served or compared has a module, and a test or a command that shows it."""
    found = rows(page)
    assert len(found) >= 8
    for paper, mechanism, state, where, shown in found:
        assert paper, mechanism
        assert state in STATES, mechanism
        for module in code(where):
            assert (ROOT / module).is_file(), f"{mechanism}: {module}"
        modules = [
            module for module in code(where) if module.startswith("brand/" if state == "served" else ("b", "ex"))
        ]
        assert modules or state in ("not built", "needs hardware"), f"{mechanism}: which module?"
        tests = [each for each in code(shown) if each.startswith("tests/")]
        commands = [each for each in code(shown) if each.startswith("python ")]
        assert tests or state != "served", f"{mechanism}: which test?"
        assert tests or commands or state != "compared", f"{mechanism}: how is it run?"
        assert shown or state == "needs hardware", f"{mechanism}: what is there instead?"
        for test in tests:
            file, _, name = test.partition("::")
            assert not name or name in functions(ROOT / file), f"{mechanism}: {test}"
            assert (ROOT / file).is_file(), f"{mechanism}: {test}"
        for command in commands:
            word = command.split()
            there = importlib.util.find_spec(word[2]) if word[1] == "-m" else (ROOT / word[1]).is_file()
            assert there, f"{mechanism}: {command}"
