"""The variables that a transform changes and that no copy of it has for itself: of modules, classes and functions.

Each worker process of a `DataLoader` has its own; threads share them, and a transform that stores something for each
sample there mixes samples. The code of the user's functions tells, without running it.
"""

from __future__ import annotations

import dis
import sysconfig
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

INSTALLED: Final = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
"""Folders of installed packages."""
SKIPPED: Final = ("PRECALL", "CACHE", "PUSH_NULL", "EXTENDED_ARG")
"""Instructions between a call and what it calls, which not all versions of Python have."""
_ONCE: Final = frozenset(("__init__", "__new__", "__post_init__", "__init_subclass__", "__setstate__", "__reduce_ex__"))
"""Methods that run when an object is made, not for each sample."""
_CHANGING: Final = frozenset(("append", "extend", "insert", "add", "update", "setdefault", "pop", "remove", "clear"))
_CHANGEABLE: Final = (list, dict, set, bytearray)

_known: WeakKeyDictionary[Any, list[str]] = WeakKeyDictionary()
"""Class or function -> the result. Each thread asks at the beginning of each iteration."""


def shared_by(value: Any) -> list[str]:
    """Return what a function, or a method of an object's class, changes: `LAST`, `Crop.window`. Sorted, each once.

    Functions that these name are followed; those of installed packages are left out.
    """
    asked = value if isinstance(value, types.FunctionType) else type(value)
    if asked not in _known:
        _known[asked] = sorted(_changed(asked))
    return _known[asked]


def _changed(asked: types.FunctionType | type) -> set[str]:
    found = set[str]()
    pending, seen = list(functions_of(asked)), set[types.CodeType]()
    while pending:
        function = pending.pop()
        if function.__code__ in seen or function.__code__.co_filename.startswith(INSTALLED):
            continue
        seen.add(function.__code__)
        scope = function.__globals__
        for code in codes(function.__code__):
            steps = [step for step in dis.get_instructions(code) if step.opname not in SKIPPED]
            found.update(_assigned(steps, scope))
            if isinstance(asked, type):  # a copy of a function has copies of its default values
                found.update(_defaults(function, steps))
            named = (scope.get(step.argval) for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
            pending += [each for each in named if isinstance(each, types.FunctionType)]
    return found


def functions_of(asked: types.FunctionType | type) -> Iterator[types.FunctionType]:
    """Yield a function, or the methods of a class that run for each sample."""
    if isinstance(asked, types.FunctionType):
        yield asked
        return
    for kind in asked.__mro__:
        for name, each in vars(kind).items():
            each = getattr(each, "__func__", each)  # of a classmethod or staticmethod
            if isinstance(each, types.FunctionType) and name not in _ONCE:
                yield each


def _defaults(function: types.FunctionType, steps: Sequence[dis.Instruction]) -> Iterator[str]:
    """Yield the default values that a function changes: `state[0] = x`, `state.append(x)`."""
    count, defaults = function.__code__.co_argcount, function.__defaults__ or ()
    last = function.__code__.co_varnames[count - len(defaults) : count]
    values = {**dict(zip(last, defaults, strict=True)), **(function.__kwdefaults__ or {})}
    for at, step in enumerate(steps):
        if step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR"):
            loaded = steps[max(0, at - 2)].argval
        elif step.opname in ("LOAD_METHOD", "LOAD_ATTR") and step.argval in _CHANGING:
            loaded = steps[at - 1].argval
        else:
            continue
        if isinstance(loaded, str) and isinstance(values.get(loaded), _CHANGEABLE):
            yield f"the default of {loaded} in {function.__qualname__}"


def codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of a function, and of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes(constant)


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
