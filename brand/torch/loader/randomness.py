"""Which random functions of a transform take their numbers from a generator of the whole process?

Those of the modules `random` and `numpy.random` do. Threads take the numbers in any order, so no seed can give a sample
its own. The code of a transform and of its objects tells, without running it; that of installed packages, too.
"""

from __future__ import annotations

import dis
import random
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from brand.torch.loader.assigned import INSTALLED, SKIPPED, codes, functions_of

PROCESS_GENERATORS: Final = (random.random.__self__, np.random.rand.__self__)  # type: ignore[attr-defined]
"""The generators whose methods the two modules have as functions."""
_known: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
"""Class or function -> the result. Each thread asks at the beginning of each iteration."""


def process_random(value: Any) -> set[str]:
    """Return the random functions that a function, or a method of an object's class, names: `random.random`.

    Functions that these name are followed; for those of installed packages, only within their module.
    """
    asked = value if isinstance(value, types.FunctionType) else type(value)
    if asked not in _known:
        _known[asked] = set(_named(asked))
    return _known[asked]


def _named(asked: types.FunctionType | type) -> Iterator[str]:
    pending, seen = list(functions_of(asked)), set[types.CodeType]()
    while pending:
        function = pending.pop()
        if function.__code__ in seen:
            continue
        seen.add(function.__code__)
        installed = function.__code__.co_filename.startswith(INSTALLED)
        for name, value in _values(function):
            if any(getattr(value, "__self__", None) is each for each in PROCESS_GENERATORS):
                yield name
            elif isinstance(value, types.FunctionType) and not (installed and value.__module__ != function.__module__):
                pending.append(value)


def _values(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the globals that a function reads, and the attributes of modules that it reads: their names, and values."""
    for code in codes(function.__code__):
        steps = [step for step in dis.get_instructions(code) if step.opname not in SKIPPED]
        imported: dict[str, Any] = {}
        for at, step in enumerate(steps):
            if step.opname == "IMPORT_NAME" and steps[at + 1].opname.startswith("STORE_"):
                imported[steps[at + 1].argval] = sys.modules.get(step.argval)
            elif step.opname.startswith("LOAD_") and isinstance(step.argval, str):
                scope: Mapping[str, Any] = function.__globals__ if "GLOBAL" in step.opname else imported
                if step.argval in scope:
                    yield _attribute(step.argval, scope[step.argval], steps[at + 1 :])


def _attribute(name: str, value: Any, steps: list[dis.Instruction]) -> tuple[str, Any]:
    """Return the name and value of the attributes of modules that are read next."""
    for step in steps:
        if not isinstance(value, types.ModuleType) or step.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            break
        name, value = f"{name}.{step.argval}", vars(value).get(step.argval)
    return name, value
