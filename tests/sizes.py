"""Which classes of the library are the largest? `make sizes` prints a report; no test fails by it.

A count of lines, methods and fields says where to look, and says nothing about whether a class has one purpose.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

LIBRARY = Path(__file__).resolve().parent.parent / "brand"
SHOWN = 10


def fields_of(owner: ast.ClassDef) -> set[str]:
    """Return the fields that a class declares, or that its methods assign."""
    declared = {
        node.target.id for node in owner.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    stored = [node for node in ast.walk(owner) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    return declared | {node.attr for node in stored if ast.unparse(node.value) == "self"}


def main() -> None:
    """Print the largest classes, by lines."""
    rows = []
    for path in sorted(LIBRARY.rglob("*.py")):
        for owner in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)):
            methods = [node for node in owner.body if isinstance(node, ast.FunctionDef)]
            lines = (owner.end_lineno or owner.lineno) - owner.lineno + 1
            rows.append((lines, len(methods), len(fields_of(owner)), owner.name, path.relative_to(LIBRARY)))
    for lines, count, fields, name, path in sorted(rows, key=lambda row: row[:3], reverse=True)[:SHOWN]:
        sys.stdout.write(f"{lines:5} lines {count:3} methods {fields:3} fields  {name} ({path})\n")


if __name__ == "__main__":
    main()
