"""Every exception of the library is in the tree that `brand/errors.py` draws, and the tree is drawn as it is."""

from __future__ import annotations

import ast
import builtins
import re
from pathlib import Path

from brand import errors
from brand.errors import BrandError

_LINE = re.compile(r"^(?P<branch>[│ ]*(?:├── |└── )?)(?P<name>\w+Error)\b", re.MULTILINE)
_ALSO = re.compile(r"\(also (\w+)\)$")


def drawn_tree() -> dict[str, tuple[str, ...]]:
    """The bases of each class, by name, as the docstring of `brand.errors` draws them."""
    found: dict[str, tuple[str, ...]] = {}
    above: list[str] = []
    assert errors.__doc__ is not None
    for line in errors.__doc__.partition("\n\n")[2].partition("\n\n")[0].splitlines():
        match = _LINE.match(line.removeprefix("    "))
        assert match is not None, line
        depth = len(match["branch"]) // 4
        also = _ALSO.search(line)
        found[match["name"]] = (above[depth - 1] if depth else "Exception", *(also.groups() if also else ()))
        above[depth:] = [match["name"]]
    return found


def _is_exception(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def test_the_drawn_tree_equals_the_classes() -> None:
    """Names, branches and the builtin classes that they also are."""
    classes = {
        name: tuple(base.__name__ for base in value.__bases__)
        for name, value in vars(errors).items()
        if _is_exception(value)
    }
    assert drawn_tree() == classes


def test_no_other_module_defines_an_exception(repository: Path) -> None:
    """`brand/errors.py` is the one home of the library's exceptions."""
    known = {name for module in (builtins, errors) for name, value in vars(module).items() if _is_exception(value)}
    found = []
    for path in sorted((repository / "brand").rglob("*.py")):
        classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
        bases = {node.name: {ast.unparse(base).rpartition(".")[2] for base in node.bases} for node in classes}
        found += [f"{path.relative_to(repository)}: {name}" for name, its in bases.items() if its & known]
    assert [each for each in found if not each.startswith("brand/errors.py: ")] == []
    assert found


def test_every_error_is_a_brand_error() -> None:
    """`except BrandError` catches whatever the library raises on purpose."""
    classes = [value for value in vars(errors).values() if _is_exception(value)]
    assert [cls for cls in classes if not issubclass(cls, BrandError)] == []
