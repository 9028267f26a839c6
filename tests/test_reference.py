"""The API reference names every public attribute of the public classes, and nothing that they do not have."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest

import brand
from brand.storage.dataset.dataset import StoredDataSet

PAGES = Path(__file__).resolve().parent.parent / "docs" / "api"
CLASSES: list[type[Any]] = [thing for name in brand.__all__ if isinstance(thing := getattr(brand, name), type)]
OPENED: type[Any] = StoredDataSet
"""What `brand.open` returns."""

_DIRECTIVE = re.compile(r"^\.\. autoclass:: (?P<name>\S+)\n(?P<options>(?: {3}:.*\n)*)", re.MULTILINE)
_OPTION = re.compile(r"^ {3}:(?P<option>[\w-]+):(?P<value>.*)$", re.MULTILINE)


def reference() -> dict[str, dict[str, str]]:
    """Options of each class that the pages name, by its name without modules."""
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(PAGES.glob("*.md")))
    return {
        match["name"].rpartition(".")[2]: dict(_OPTION.findall(match["options"])) for match in _DIRECTIVE.finditer(text)
    }


def names_in(value: str) -> set[str]:
    """The names of a list in an option."""
    return {name.strip() for name in value.split(",") if name.strip()}


def parameters(public: type[Any]) -> set[str]:
    """The parameters of a constructor, which the reference shows with their meaning."""
    return set(inspect.signature(public).parameters)


def shown_by_dir(public: type[Any]) -> set[str]:
    """Attributes without an underscore that a class of this library defines."""
    found = set()
    for name in dir(public):
        home = next((base for base in public.__mro__ if name in vars(base)), public)
        if not name.startswith("_") and home.__module__.partition(".")[0] == "brand":
            found.add(name)
    return found


def assigned(public: type[Any]) -> set[str]:
    """Attributes without an underscore that methods of the class assign to `self`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(public)))
    stored = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
    return {n.attr for n in stored if ast.unparse(n.value) == "self" and not n.attr.startswith("_")}


def public_names(public: type[Any]) -> set[str]:
    """What users see of a class. Attributes that keep an argument of the constructor are named with it."""
    values = is_dataclass(public) or hasattr(public, "_fields")
    names = shown_by_dir(public) - (parameters(public) if values else set())
    return names | (assigned(public) - parameters(public))


@pytest.mark.parametrize("public", CLASSES, ids=lambda public: public.__name__)
def test_the_reference_names_what_dir_shows(public: type[Any]) -> None:
    """A new public attribute is listed on the page of its class, or gets an underscore."""
    members = reference().get(public.__name__, {}).get("members", "")
    assert names_in(members) - parameters(public) == public_names(public) - parameters(public)


@pytest.mark.xfail(reason="what brand.open returns has methods for the library, too, until it is a class of its own")
def test_the_reference_names_what_an_opened_data_set_shows() -> None:
    """The same for the object that `brand.open` returns."""
    assert names_in(reference()[OPENED.__name__]["members"]) == public_names(OPENED)


def test_every_public_class_is_in_the_reference() -> None:
    """All classes of `brand.__all__` have a place; errors are listed by their module."""
    assert {public.__name__ for public in CLASSES} - set(reference()) == {"BrandError"}


def test_a_public_attribute_that_no_page_names_is_found() -> None:
    """Properties, methods, class attributes and attributes of instances count; private ones do not."""

    class Public(brand.BrandSampler):
        __module__ = "brand.somewhere"
        limit = 3

        def __init__(self, path: str) -> None:
            self.path, self.size, self._hidden = path, 5, 6

        def close(self) -> None:
            """End."""

        def _private(self) -> None:
            """Not for users."""

    assert public_names(Public) - public_names(brand.BrandSampler) == {"limit", "close", "size"}
