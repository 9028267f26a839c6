"""Which answer goes wrong, and how? Decisions by counting and by a seed, without a clock: a test is repeatable.

A `Fault` says what goes wrong (`Busy`, `Reset`, ...), and for which requests: all that match its operation and its key,
or of those the ones whose numbers it names (`only`), or a `share` of them by chance. Chance depends on the seed, the
request and how often it came before, never on which connection is first. So threads that ask in any order see the same
faults, and a request that is repeated may go well.
"""

from __future__ import annotations

import gzip
import threading
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from random import Random
from typing import Final, Literal, NamedTuple

from tests.tools.objects.answers import Answer, Pause, Repeated, answer, split
from tests.tools.objects.flavours import Flavour

Operation = Literal["GET", "HEAD", "LIST", "PUT", "START", "PART", "COMPLETE", "ABORT", "MAKE", "OTHER"]
"""START, PART, COMPLETE and ABORT belong to an upload in parts; MAKE makes a bucket; the store has no other."""

_ZEROS: Final = bytes(1 << 16)
_MEMBER_BYTES: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class Busy:
    """The store refuses for now: status 503 (S3: SlowDown), or 429, 500 and what else is tried again."""

    status: int = 503
    retry_after_s: int | None = None


@dataclass(frozen=True, slots=True)
class Denied:
    """The store refuses for good, with a status and S3's code."""

    status: int
    code: str


@dataclass(frozen=True, slots=True)
class Expired:
    """The token of the client has expired: 400 ExpiredToken from S3, else 401."""


@dataclass(frozen=True, slots=True)
class Reset:
    """The connection breaks after so many bytes of the body: of the answer's, or of what a client uploads."""

    after: int = 0


@dataclass(frozen=True, slots=True)
class Lost:
    """The store does what it was asked, but the connection breaks before the answer."""


@dataclass(frozen=True, slots=True)
class Short:
    """The body ends in order after so many bytes, fewer than Content-Length says."""

    after: int = 0


@dataclass(frozen=True, slots=True)
class Stall:
    """The body stops for so long after so many bytes; at 0, the whole answer starts late."""

    seconds: float
    after: int = 0


@dataclass(frozen=True, slots=True)
class WrongETag:
    """The answer has the ETag of another object."""


@dataclass(frozen=True, slots=True)
class WrongRange:
    """Content-Range names a range so many bytes further on; the body is the one that was asked for."""

    shift: int = 1


@dataclass(frozen=True, slots=True)
class Longer:
    """The body has so many zeros more than were asked for, and Content-Length counts them; `extra` may be huge."""

    extra: int = 1


@dataclass(frozen=True, slots=True)
class Endless:
    """The body has no Content-Length: the right bytes, and then zeros until the client hangs up."""


@dataclass(frozen=True, slots=True)
class Redirect:
    """The store sends the client elsewhere, to the URL `to`."""

    to: str
    status: int = 307


@dataclass(frozen=True, slots=True)
class Bomb:
    """In place of the body come some KB of gzip that unpack to so many zeros, in steps of 16 MiB."""

    size: int = 1 << 30


What = (
    Busy | Denied | Expired | Reset | Lost | Short | Stall | WrongETag | WrongRange | Longer | Endless | Redirect | Bomb
)


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong with which requests."""

    what: What
    operation: Operation | None = None
    """None: all."""
    key: str = "*"
    """`bucket/name`, as a shell pattern."""
    only: Container[int] | None = None
    """The numbers of those that match operation and key, from 1 on: `{3}`, `range(1, 9)`; None: all."""
    share: float = 1.0
    """How many of those that are left, by chance."""


class Asked(NamedTuple):
    """What makes two requests the same one."""

    operation: Operation
    key: str
    range: str | None


class Faults:
    """Decides for each request which of some faults it meets: the first one that fits. For any number of threads."""

    def __init__(self, *faults: Fault, seed: int = 0) -> None:
        self._faults, self._seed = faults, seed
        self._lock = threading.Lock()
        self._matching = [0] * len(faults)
        self._times: Counter[Asked] = Counter()

    def __repr__(self) -> str:
        return f"Faults({', '.join(map(repr, self._faults))}, seed={self._seed})"

    def meet(self, asked: Asked) -> What | None:
        """What goes wrong with this request, which counts as the next one of its kind."""
        with self._lock:
            self._times[asked] += 1
            met = [fault.what for number, fault in enumerate(self._faults) if self._hits(number, fault, asked)]
        return met[0] if met else None

    def _hits(self, number: int, fault: Fault, asked: Asked) -> bool:
        if fault.operation not in (None, asked.operation) or not fnmatchcase(asked.key, fault.key):
            return False
        self._matching[number] += 1
        if fault.only is not None and self._matching[number] not in fault.only:
            return False
        name = (self._seed, number, *asked, self._times[asked])
        return fault.share >= 1 or Random(repr(name)).random() < fault.share


def refusal(what: What | None, flavour: Flavour, key: str) -> Answer | None:
    """What the store answers in place of doing what it was asked; None: it does it."""
    match what:
        case Busy(status, retry_after_s):
            wait = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
            error = flavour.error(status, {503: "SlowDown", 429: "TooManyRequests"}.get(status, "InternalError"), key)
            return replace(error, headers={**error.headers, **wait})
        case Denied(status, code):
            return flavour.error(status, code, key)
        case Expired():
            return flavour.error(*flavour.expired(), key)
        case Redirect(to, status):
            return answer(status, {"Location": to})
        case _:
            return None


def spoil(right: Answer, what: What | None) -> Answer:
    """What the store sends in place of the right answer."""
    headers = dict(right.headers)
    match what:
        case Reset(after):
            return replace(right, pieces=split(right.pieces, after)[0], end="reset")
        case Lost():
            return Answer(0, {}, end="reset")
        case Short(after):
            return replace(right, pieces=split(right.pieces, after)[0], end="close")
        case Stall(seconds, after):
            before, rest = split(right.pieces, after)
            return replace(right, pieces=(*before, Pause(seconds), *rest))
        case WrongETag() if "ETag" in headers:
            return replace(right, headers={**headers, "ETag": '"00000000000000000000000000000000"'})
        case WrongRange(shift) if "Content-Range" in headers:
            return replace(right, headers={**headers, "Content-Range": _shifted(headers["Content-Range"], shift)})
        case Longer(extra) if right.pieces:
            headers["Content-Length"] = str(right.size + extra)
            zeros = Repeated(_ZEROS, extra // len(_ZEROS)), bytes(extra % len(_ZEROS))
            return replace(right, headers=headers, pieces=(*right.pieces, *zeros))
        case Endless() if right.pieces:
            del headers["Content-Length"]
            return replace(right, headers=headers, pieces=(*right.pieces, Repeated(_ZEROS, None)), end="close")
        case Bomb(size) if right.pieces:
            member = Repeated(gzip.compress(bytes(_MEMBER_BYTES), mtime=0), -(-size // _MEMBER_BYTES))
            headers |= {"Content-Encoding": "gzip", "Content-Length": str(len(member.data) * (member.times or 0))}
            return replace(right, headers=headers, pieces=(member,))
        case _:
            return right


def _shifted(content_range: str, shift: int) -> str:
    first, _, rest = content_range.removeprefix("bytes ").partition("-")
    last, _, size = rest.partition("/")
    return f"bytes {int(first) + shift}-{int(last) + shift}/{size}"
