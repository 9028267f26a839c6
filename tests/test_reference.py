"""The API reference names every public attribute of the public classes, and nothing that they do not have."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest

import brand
from brand import orders
from brand.orders import baselines

PAGES = Path(__file__).resolve().parent.parent / "docs" / "reference"
CLASSES: list[type[Any]] = [
    thing
    for package in (brand, orders, baselines)
    for name in package.__all__
    if isinstance(thing := getattr(package, name), type) and not issubclass(thing, Exception)
]
"""The public classes but `BrandError`: the reference lists errors by their module."""

_DIRECTIVE = re.compile(r"^\.\. autoclass:: (?P<name>\S+)\n(?P<options>(?: {3}:.*\n)*)", re.MULTILINE)
_OPTION = re.compile(r"^ {3}:(?P<option>[\w-]+):(?P<value>.*)$", re.MULTILINE)


def reference() -> dict[str, dict[str, str]]:
    """Options of each class that the pages name, by its name without modules."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(PAGES.glob("python-*.md")))
    return {
        match["name"].rpartition(".")[2]: dict(_OPTION.findall(match["options"])) for match in _DIRECTIVE.finditer(text)
    }


def names_in(value: str) -> set[str]:
    """The names of a list in an option."""
    return {name.strip() for name in value.split(",") if name.strip()}


def parameters(public: type[Any]) -> set[str]:
    """The parameters of a constructor, which the reference shows with their meaning."""
    return set(inspect.signature(public).parameters)


def is_ours(base: type[Any]) -> bool:
    """Whether a class is defined in this repository."""
    return base.__module__.partition(".")[0] in ("brand", "tests")


def shown_by_dir(public: type[Any]) -> set[str]:
    """Attributes without an underscore that a class of this repository defines."""
    homes = {name: next(base for base in public.__mro__ if name in vars(base)) for name in public_part(dir(public))}
    return {name for name, home in homes.items() if is_ours(home)}


def assigned(public: type[Any]) -> set[str]:
    """Attributes without an underscore that methods of the class, or of its bases here, assign to `self`."""
    bases = [base for base in public.__mro__ if is_ours(base)]
    nodes = [n for base in bases for n in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(base))))]
    stored = [n for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
    return public_part(n.attr for n in stored if ast.unparse(n.value) == "self")


def public_part(names: Iterable[str]) -> set[str]:
    """Names without an underscore."""
    return {name for name in names if not name.startswith("_")}


def public_names(public: type[Any]) -> set[str]:
    """What users see of a class. Attributes that keep an argument of the constructor are named with it."""
    values = is_dataclass(public) or hasattr(public, "_fields")
    names = shown_by_dir(public) - (parameters(public) if values else set())
    return names | (assigned(public) - parameters(public))


@pytest.mark.parametrize("public", CLASSES, ids=lambda public: public.__name__)
def test_the_reference_names_what_dir_shows(public: type[Any]) -> None:
    """A new public attribute is listed on the page of its class, or gets an underscore."""
    pages = reference()
    listed = set[str]().union(*(names_in(pages.get(base.__name__, {}).get("members", "")) for base in public.__mro__))
    assert listed - parameters(public) == public_names(public) - parameters(public)


def test_every_public_class_is_in_the_reference() -> None:
    """All of them have a place."""
    assert len(CLASSES) >= 16
    assert {public.__name__ for public in CLASSES} - set(reference()) == set()


def test_a_public_attribute_that_no_page_names_is_found() -> None:
    """Properties, methods, class attributes and attributes of instances count; private ones do not."""

    class Public(brand.BrandSampler):
        limit = 3

        def __init__(self, path: str) -> None:
            self.path, self.size, self._hidden = path, 5, 6

        def close(self) -> None:
            """End."""

        def _private(self) -> None:
            """Not for users."""

    of_base = public_names(brand.BrandSampler) | parameters(brand.BrandSampler)
    assert public_names(Public) - of_base == {"limit", "close", "size"}
