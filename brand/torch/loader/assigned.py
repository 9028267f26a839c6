"""What does a transform assign that no copy of it can have for itself? Global variables, and attributes of classes.

Each worker process of a `DataLoader` has its own; threads share them, and a transform that stores something for each
sample there mixes samples. The code of the user's functions tells, without running it.
"""

from __future__ import annotations

import dis
import sysconfig
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

INSTALLED: Final = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
"""Folders of installed packages."""
_NOT_A_LOAD: Final = ("PRECALL", "CACHE", "PUSH_NULL", "EXTENDED_ARG")
_ONCE: Final = frozenset(("__init__", "__new__", "__post_init__", "__init_subclass__", "__setstate__", "__reduce_ex__"))
"""Methods that run when an object is made, not for each sample."""


def assigned_by(value: Any) -> list[str]:
    """Return what a function, or a method of an object's class, assigns: `LAST`, `Crop.window`. Sorted, each once.

    Functions that these name are followed; those of installed packages are left out.
    """
    found = set[str]()
    pending, seen = list(_functions_of(value)), set[types.CodeType]()
    while pending:
        function = pending.pop()
        if function.__code__ in seen or function.__code__.co_filename.startswith(INSTALLED):
            continue
        seen.add(function.__code__)
        scope = function.__globals__
        for code in _codes(function.__code__):
            steps = [step for step in dis.get_instructions(code) if step.opname not in _NOT_A_LOAD]
            found.update(_assigned(steps, scope))
            named = (scope.get(step.argval) for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
            pending += [each for each in named if isinstance(each, types.FunctionType)]
    return sorted(found)


def _functions_of(value: Any) -> Iterator[types.FunctionType]:
    if isinstance(value, types.FunctionType):
        yield value
        return
    for kind in type(value).__mro__:
        for name, each in vars(kind).items():
            each = getattr(each, "__func__", each)  # of a classmethod or staticmethod
            if isinstance(each, types.FunctionType) and name not in _ONCE:
                yield each


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of a function, and of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _assigned(steps: Sequence[dis.Instruction], scope: Mapping[str, Any]) -> Iterator[str]:
    for at, step in enumerate(steps):
        if step.opname == "STORE_GLOBAL":
            yield str(step.argval)
        elif step.opname == "STORE_ATTR" and (owner := _owner(steps[:at], scope)):
            yield f"{owner}.{step.argval}"


def _owner(steps: Sequence[dis.Instruction], scope: Mapping[str, Any]) -> str:
    """Return the class or module of which an attribute is assigned after these steps; empty for any other object."""
    if steps and steps[-1].opname == "SWAP":  # X.n += 1
        copies = [at for at, step in enumerate(steps) if step.opname == "COPY"]
        steps = steps[: copies[-1]] if copies else ()
    if not steps:
        return ""
    if steps[-1].opname == "LOAD_ATTR" and steps[-1].argval == "__class__":
        return "__class__"
    if steps[-1].opname == "CALL":
        is_type = len(steps) > 2 and steps[-3].opname == "LOAD_GLOBAL" and steps[-3].argval == "type"
        return "type(self)" if is_type else ""
    named = steps[-1].argval if steps[-1].opname in ("LOAD_GLOBAL", "LOAD_NAME") else None
    return str(named) if isinstance(scope.get(str(named)), type | types.ModuleType) else ""
