"""How does each decoding thread get a transform of its own? By a copy, as a worker process of a `DataLoader` has one.

Many transforms store the random parameters of a sample in themselves: MONAI, albumentations, tokenizers. If threads
shared such an object, an image would be cropped with the window of one sample and its mask with that of another.

A copy covers what the transform refers to: attributes, items, the variables of functions around it, and the globals
that a function names, unless it belongs to an installed package. Shared remain: what cannot change; an object that says
`thread_safe = True`, or that has a lock; models; arrays and containers that are large; and what cannot be copied.
Random generators in the copy are returned, too, so that they can be seeded for each sample.
"""

from __future__ import annotations

import copy
import dis
import logging
import random
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from brand.torch.data.drawable import Drawable
from brand.torch.loader.assigned import INSTALLED, shared_by
from brand.torch.loader.randomness import PROCESS_GENERATORS, process_random
from brand.torch.pytorch import torch, torch_types

MOST_OBJECTS: Final = 20_000
"""A transform that refers to more objects is shared. Copies for all threads would take too long and too much memory."""
LARGE_ITEMS: Final = 1_000
"""Containers of more items are shared,"""
LARGE_BYTES: Final = 16 << 20
"""and so are larger arrays and tensors."""

_CONSTANT: Final = (
    *(type(None), bool, int, float, complex, str, bytes, range, type, np.generic, np.dtype),
    *(types.ModuleType, types.BuiltinFunctionType, Drawable),
    *torch_types("dtype", "device"),
)
_PLAIN: Final = (list, set, dict, tuple, frozenset, np.ndarray, *torch_types("Tensor", "Generator"))
_LOCKS: Final = (type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event)
_TORCH_RANDOM: Final = torch_types("Generator")
_RANDOM: Final = (np.random.Generator, np.random.RandomState, random.Random, *_TORCH_RANDOM)
_PROCESS_RANDOM: Final = (
    "All threads take numbers from this generator of the process, in any order, so a sample gets other random numbers "
    "in each run and after each resume. Use torch's random functions, or give the transform a generator of its own, "
    "random.Random() or numpy.random.default_rng(): Brand seeds those for each sample (docs/guides/decode.md)"
)
_TENSOR: Final[tuple[type[Any], ...]] = torch_types("Tensor")


log = logging.getLogger("brand")


@dataclass(frozen=True)
class ThreadCopy:
    """The copy of a function for one thread."""

    value: Any
    generators: list[Any] = field(default_factory=list)
    """Random generators that the copy refers to."""

    def seed(self, seed: int) -> None:
        """Seed the generators of the copy. `seed` has 63 bits."""
        for number, generator in enumerate(self.generators):
            _seed(generator, seed + number)


def copy_for_thread(function: Any, name: str, *, alone: bool = False) -> ThreadCopy:
    """Return a copy of a transform or a `collate_fn` (`name`) that no other thread uses.

    If it, or something that it refers to, cannot be copied, threads share that, and the log says so once. If the
    thread is `alone` in its process, nothing is shared, and the generators of the process are the copy's, too.
    """
    if function is None:
        return ThreadCopy(function)
    copier, of_process = _Copier(), list(PROCESS_GENERATORS) if alone else []
    try:
        copied = ThreadCopy(copier.copy(function), copier.generators + of_process)
    except Exception as error:  # noqa: BLE001 - any class may refuse to be copied, in its own way
        if not alone:
            _warn(f"{name} cannot be copied, so all threads share it ({type(error).__name__}: {error})")
        return ThreadCopy(function, of_process)
    if alone:
        return copied
    if copier.random:
        _say(f"{name} uses {', '.join(sorted(copier.random))}. {_PROCESS_RANDOM}")
    for kind in copier.refused:
        _warn(f"{name} refers to an object of {kind}, which cannot be copied, so all threads share this object")
    for changed in sorted(copier.changed):
        _warn(f"{name} changes {changed}, which all threads share")
    return copied


_warned: set[str] = set()


def _warn(text: str) -> None:
    _say(
        f"{text}. If it stores something for each sample, samples get mixed: give num_workers=1, or "
        'worker_type="process". If not, say so with an attribute, thread_safe = True'
    )


def _say(text: str) -> None:
    """Log a text once."""
    if text not in _warned:
        _warned.add(text)
        log.warning("%s", text)


class _Copier:
    """Copies an object and what it refers to, each object once."""

    def __init__(self) -> None:
        self.generators: list[Any] = []
        self.refused: set[str] = set()
        """Names of the classes whose objects cannot be copied, and are shared."""
        self.changed: set[str] = set()
        """The variables that a function changes and that have no copies."""
        self.random: set[str] = set()
        """The random functions of the whole process that a function uses."""
        self._known: dict[int, Any] = {}
        """Copies by the number of the original: a memo as `copy.deepcopy` has one."""
        self._originals: list[Any] = []
        """The originals, which keep their numbers as long as they live."""

    def copy(self, value: Any) -> Any:
        if isinstance(value, _CONSTANT) or _is_shared(value):
            return value
        if id(value) not in self._known:
            self._originals.append(value)
            if len(self._originals) > MOST_OBJECTS:
                raise RuntimeError(f"it refers to more than {MOST_OBJECTS:,} objects")
            self._known[id(value)] = self._copied(value)
            if not isinstance(value, _PLAIN):
                self.changed.update(shared_by(value))
                self.random.update(process_random(value))
        return self._known[id(value)]

    def _copied(self, value: Any) -> Any:
        if isinstance(value, _RANDOM):
            self.generators.append(value.clone_state() if isinstance(value, _TORCH_RANDOM) else copy.deepcopy(value))
            return self.generators[-1]
        kind = type(value)
        if kind is list or kind is set or kind is dict:
            return self._container(value)
        if kind is tuple or kind is frozenset:
            items = [self.copy(item) for item in value]
            return value if all(new is old for new, old in zip(items, value, strict=True)) else kind(items)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, types.MethodType):
            return types.MethodType(value.__func__, self.copy(value.__self__))
        if isinstance(value, partial):
            keywords = {name: self.copy(each) for name, each in value.keywords.items()}
            return partial(self.copy(value.func), *map(self.copy, value.args), **keywords)
        if hasattr(value, "__deepcopy__"):
            return copy.deepcopy(value, self._known)
        return self._instance(value)

    def _container(self, value: Any) -> Any:
        new = type(value)()
        self._known[id(value)] = new
        if isinstance(new, list):
            new.extend(map(self.copy, value))
        elif isinstance(new, set):
            new.update(map(self.copy, value))
        else:
            new.update((key, self.copy(item)) for key, item in value.items())
        return new

    def _instance(self, value: Any) -> Any:
        """Return a copy of any other object, made as its class tells `copy.copy`."""
        try:
            told = value.__reduce_ex__(4)
        except TypeError:  # files, generators, connections
            self.refused.add(type(value).__qualname__)
            return value
        if isinstance(told, str):  # a global constant
            return value
        make, arguments, state, items, pairs = (*told, None, None, None)[:5]
        new = make(*map(self.copy, arguments))
        self._known[id(value)] = new
        if state is not None:
            self._set_state(new, self.copy(state))
        for item in items or ():
            new.append(self.copy(item))
        for key, item in pairs or ():
            new[key] = self.copy(item)
        return new

    def _set_state(self, new: Any, state: Any) -> None:
        if hasattr(new, "__setstate__"):
            new.__setstate__(state)
            return
        attributes, slots = state if isinstance(state, tuple) else (state, None)
        if attributes:
            vars(new).update(attributes)
        for name, value in (slots or {}).items():
            setattr(new, name, value)

    def _function(self, function: types.FunctionType) -> Any:
        """Return a function with copies of the variables that it names; itself, if none of them can change."""
        cells = function.__closure__ or ()
        # A function of its own is known before its variables are copied, because it may be among them.
        new_cells = tuple(types.CellType() for _ in cells)
        scope = dict(function.__globals__)
        new = types.FunctionType(
            function.__code__, scope, function.__name__, self.copy(function.__defaults__), new_cells if cells else None
        )
        new.__kwdefaults__ = self.copy(function.__kwdefaults__)
        vars(new).update(vars(function))
        self._known[id(function)] = new
        changed = new.__defaults__ is not function.__defaults__ or new.__kwdefaults__ is not function.__kwdefaults__
        for old, cell in zip(cells, new_cells, strict=True):
            try:
                content = old.cell_contents
            except ValueError:  # not assigned yet
                continue
            cell.cell_contents = self.copy(content)
            changed |= cell.cell_contents is not content
        named = () if function.__code__.co_filename.startswith(INSTALLED) else _global_names(function.__code__)
        for name in sorted(set(named) & set(scope)):
            scope[name] = self.copy(function.__globals__[name])
            changed |= scope[name] is not function.__globals__[name]
        return new if changed else function


def _is_shared(value: Any) -> bool:
    """Return whether all threads use an object itself."""
    if getattr(value, "thread_safe", False) is True:
        return True
    if isinstance(value, _TENSOR):
        return bool(value.nbytes > LARGE_BYTES or not value.is_leaf)
    if isinstance(value, np.ndarray):
        return value.nbytes > LARGE_BYTES
    if isinstance(value, list | dict | set | frozenset | tuple):
        return len(value) > LARGE_ITEMS
    if torch is not None and isinstance(value, torch.nn.Module):  # a model; transforms are modules without parameters
        return next(value.parameters(), None) is not None
    return isinstance(value, _LOCKS) or any(
        isinstance(each, _LOCKS) for each in getattr(value, "__dict__", {}).values()
    )


def _global_names(code: types.CodeType) -> Iterator[str]:
    """Yield the names of the globals that a function reads, and those of the functions inside it."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _seed(generator: Any, seed: int) -> None:
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        bits.state = type(bits)(seed).state
    elif isinstance(generator, np.random.RandomState):
        generator.seed([seed & (1 << 32) - 1, seed >> 32])
    elif isinstance(generator, random.Random):
        generator.seed(seed)
    else:
        generator.manual_seed(seed)
