"""A dataclass describes a message: each field names its packing and the values that are allowed.

    lease: Annotated[int, U64]                           a packed number
    wrong: Annotated[NDArray[np.int64], array("<i8")]    an array: the rest of the body
    name: Annotated[str, text(100, key="run")]           an entry of a JSON object

A field without a `FieldSpec` is not packed: the receiver passes its value to `unpack_body`, such as the number of the
client. If fields of a message depend on each other, its method `check` raises `ProtocolError`. The receiver validates
everything: a body of another size, or with another value, raises `ProtocolError`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any, Final, TypeVar, get_type_hints

import numpy as np

from brand.errors import BrandError, ProtocolError
from brand.node.wire.messages import order_facts, unpack_json, unpack_order

T = TypeVar("T")
Body = bytes | memoryview


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """Packing of one field."""

    checked: Callable[[Any, Any], Any]
    """Returns the value of the field of this name for an entry of the body. Raises `ProtocolError`."""
    plain: Callable[[Any], Any] = lambda value: value
    """Returns the entry of the body for a value."""
    code: str = ""
    """The letters of `struct` in a packed message; more than one, if the body has several numbers for the value."""
    key: str = ""
    """The name in JSON, if it differs from the field's name."""
    rest: bool = False
    """Whether the field is all bytes after the packed numbers."""
    inner: bool = False
    """Whether the fields of the value are fields of the message. `checked` then gets, in place of the name, the values
    that are given to `unpack_body`.
    """


def whole(most: int, least: int = 0, code: str = "") -> FieldSpec:
    """Describe a whole number from `least` to `most`."""

    def checked(name: str, value: Any) -> Any:
        if type(value) is not int or not least <= value <= most:
            raise ProtocolError(f"{name} is {str(value)[:40]}, not a whole number from {least} to {most:,}")
        return value

    return FieldSpec(checked, code=code)


def text(most: int, key: str = "", *, cut: bool = False) -> FieldSpec:
    """Describe a text in JSON of at most `most` characters. `cut`: cut a longer text, and accept any value as text."""

    def checked(name: str, value: Any) -> Any:
        if not cut and (not isinstance(value, str) or len(value) > most):
            raise ProtocolError(f"{name} is a text of at most {most:,} characters")
        return str(value)[:most]

    return FieldSpec(checked, lambda value: value[:most] if cut else value, key=key)


def maybe(spec: FieldSpec) -> FieldSpec:
    """Describe an entry in JSON that may be null, or absent."""
    return replace(
        spec,
        checked=lambda name, value: None if value is None else spec.checked(name, value),
        plain=lambda value: None if value is None else spec.plain(value),
    )


def several(spec: FieldSpec, most: int, least: int = 0) -> FieldSpec:
    """Describe a list in JSON of `least` to `most` values, as a tuple."""

    def checked(name: str, value: Any) -> Any:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise ProtocolError(f"{name} is a list of {least:,} to {most:,} values")
        return tuple(spec.checked(name, each) for each in value)

    return FieldSpec(checked, lambda values: [spec.plain(value) for value in values])


def array(dtype: str, most: int = 1 << 62, least: int = 0, into: str = "") -> FieldSpec:
    """Describe an array of `dtype` with `least` to `most` numbers, of dtype `into` in memory: the rest of a body."""
    kind = np.dtype(dtype)

    def checked(name: str, data: Body) -> Any:
        count, more = divmod(len(data), kind.itemsize)
        if more or not least <= count <= most:
            raise ProtocolError(f"{name} of {len(data)} bytes: {least:,} to {most:,} numbers are expected")
        found = np.frombuffer(data, kind)
        return found.astype(into) if into else found

    return FieldSpec(checked, lambda value: np.asarray(value, kind).tobytes(), rest=True)


def inline(cls: type) -> FieldSpec:
    """Describe a value whose own fields are fields of the message."""
    of = DESCRIBED[cls]
    if of.json_body:
        return FieldSpec(lambda given, found: of.from_entries(found, given), of.entries, inner=True)
    return FieldSpec(lambda given, numbers: of.from_numbers(numbers, given), of.numbers, of.code, inner=True)


def order_entry(refusal: type[BrandError] = ProtocolError) -> FieldSpec:
    """Describe an order, with the bits of its subset. An invalid order raises `refusal`."""

    def checked(_: Any, value: dict[str, Any]) -> Any:
        try:
            return unpack_order(value)
        except (KeyError, ValueError, TypeError) as error:
            raise refusal(f"an invalid order: {error}") from None

    return FieldSpec(checked, order_facts, inner=True)


def _flag(name: str, value: Any) -> Any:
    if not isinstance(value, bool):
        raise ProtocolError(f"{name} is {str(value)[:40]}, not true or false")
    return value


U32: Final = whole((1 << 32) - 1, code="I")
U64: Final = whole((1 << 64) - 1, code="Q")
KEY: Final = FieldSpec(lambda _, pair: pair, code="II")
"""Number of a run and an epoch, two u32."""
FLAG: Final = FieldSpec(_flag, code="?")
BYTES: Final = FieldSpec(lambda _, data: data, rest=True)


class _Described:
    """Packing of the messages of one class."""

    def __init__(self, cls: type, kind: IntEnum | None, *, json_body: bool) -> None:
        hints = get_type_hints(cls, include_extras=True)
        names = [field.name for field in fields(cls)]
        specs = [(name, spec) for name in names for spec in getattr(hints[name], "__metadata__", ())]
        self._cls, self.kind, self.json_body = cls, kind, json_body
        self._given = set(names) - {name for name, _ in specs}
        self._checks = hasattr(cls, "check")
        self._specs = [(name, spec) for name, spec in specs if not spec.rest]
        self._rest = next(((name, spec) for name, spec in specs if spec.rest), None)
        self.code = "".join(spec.code for _, spec in specs)
        self._head = struct.Struct("<" + self.code)

    def entries(self, message: Any) -> dict[str, Any]:
        """Return the JSON object of a message."""
        found: dict[str, Any] = {}
        for name, spec in self._specs:
            plain = spec.plain(getattr(message, name))
            found |= plain if spec.inner else {spec.key or name: plain}
        return found

    def from_entries(self, found: dict[str, Any], given: Mapping[str, Any]) -> Any:
        """Return the message of a JSON object. Raises `ProtocolError`."""
        values = {}
        for name, spec in self._specs:
            key = spec.key or name
            values[name] = spec.checked(given, found) if spec.inner else spec.checked(key, found.get(key))
        return self._made(values, given)

    def numbers(self, message: Any) -> list[Any]:
        found: list[Any] = []
        for name, spec in self._specs:
            plain = spec.plain(getattr(message, name))
            found += plain if len(spec.code) > 1 else [plain]
        return found

    def from_numbers(self, found: Sequence[Any], given: Mapping[str, Any], **values: Any) -> Any:
        """Return the message of packed numbers. Raises `ProtocolError`."""
        at = 0
        for name, spec in self._specs:
            count = len(spec.code)
            plain = found[at] if count == 1 else found[at : at + count]
            values[name] = spec.checked(given if spec.inner else name, plain)
            at += count
        return self._made(values, given)

    def pack(self, message: Any) -> list[Body]:
        if self.json_body:
            return [json.dumps(self.entries(message)).encode()]
        head = self._head.pack(*self.numbers(message))
        return [head] if self._rest is None else [head, self._rest[1].plain(getattr(message, self._rest[0]))]

    def unpack(self, body: Body | dict[str, Any], given: Mapping[str, Any]) -> Any:
        """Return the message of a body, or of its JSON object. Raises `ProtocolError`."""
        if self.json_body or isinstance(body, dict):
            try:
                return self.from_entries(body if isinstance(body, dict) else unpack_json(body), given)
            except RecursionError:  # printing a value needs more stack than parsing it
                raise ProtocolError(f"a {self._cls.__name__} is nested too deeply") from None
        size, values = self._head.size, {}
        if len(body) < size or (len(body) > size and self._rest is None):
            raise ProtocolError(f"a {self._cls.__name__} of {len(body)} bytes")
        if self._rest is not None:
            name, spec = self._rest
            values[name] = spec.checked(name, memoryview(body)[size:])
        return self.from_numbers(self._head.unpack_from(body), given, **values)

    def _made(self, values: dict[str, Any], given: Mapping[str, Any]) -> Any:
        for name in self._given:
            if name in given:
                values[name] = given[name]
        message = self._cls(**values)
        if self._checks:
            message.check()
        return message


DESCRIBED: Final[dict[type, _Described]] = {}
"""Descriptions by class."""


def described(kind: IntEnum | None = None, *, json_body: bool = False) -> Callable[[type[T]], type[T]]:
    """Mark a dataclass as the description of messages of a kind; None if other messages have it `inline`."""

    def mark(cls: type[T]) -> type[T]:
        DESCRIBED[cls] = _Described(cls, kind, json_body=json_body)
        return cls

    return mark


def pack_body(message: Any) -> tuple[IntEnum, list[Body]]:
    return kind_of(type(message)), DESCRIBED[type(message)].pack(message)


def unpack_body(cls: type[T], body: Body | dict[str, Any], **given: Any) -> T:
    """Return the message of a body, or of its JSON object. `given` has the values of fields that are not packed.

    Raises `ProtocolError`.
    """
    message: T = DESCRIBED[cls].unpack(body, given)
    return message


def kind_of(cls: type) -> IntEnum:
    kind = DESCRIBED[cls].kind
    assert kind is not None
    return kind
