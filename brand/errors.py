"""Every error that Brand raises on purpose, and the cause that it stands for.

    BrandError
    ├── UsageError                 the call is wrong: correct it and call again      (also ValueError)
    │   ├── SchemaError            a sample does not fit its schema
    │   │   └── NoLabelsError      the data set has no labels, or no names for them  (also AttributeError)
    │   └── TargetExistsError      the target exists and holds other data            (also FileExistsError)
    ├── MissingExtraError          an optional library is not installed              (also ImportError)
    ├── SourceError                a file of the source cannot be used
    ├── StorageError               the storage refused: full, read-only, I/O error   (also OSError)
    ├── MergeError                 an append is published, but segments were not merged afterwards
    ├── CacheError                 the cache folder cannot be made, or is not safe to use
    ├── InterruptedConversionError stopped half-way; the same command continues
    │   └── MissingChunksError     tasks of a conversion are not done, or must be repeated
    ├── ElsewhereError             the sample is in the partition of another node
    ├── DeletedError               the sample was deleted from its collection        (also LookupError)
    ├── ServerError                a data server cannot be started or reached, or refuses
    │   ├── ServerDiedError        it ended while it started, without a reason       (also ConnectionError)
    │   └── UnreachableError       the server of the only node with the sample does not answer
    ├── NoThreadError              no thread can be started: a limit of the container (also RuntimeError)
    ├── WorkerDiedError            a worker process of a loader was killed           (also RuntimeError)
    ├── EndedError                 the server has sent the reason why it ends        (also ConnectionResetError)
    ├── ProtocolError              a message of the other side is not valid
    └── FormatError                a stored file is damaged, or not the expected one
        ├── NotADataSetError       no manifest: not a data set, or a conversion that never finished
        ├── VersionError           written by a newer, incompatible version
        ├── MissingFileError       a chunk or an index file is missing               (also FileNotFoundError)
        ├── UnreadableError        the storage cannot read it                        (also OSError)
        ├── TruncatedError         shorter than recorded
        ├── OversizedError         longer than recorded, or a number above its limit
        ├── LayoutError            offsets, sizes or counts that contradict each other
        ├── ForeignFileError       a file of another data set, or of another place in this one
        ├── ChecksumError          the bytes changed
        └── DecodeError            the checksum is right, but the bytes cannot be decoded

A `FormatError` always names the file, and the chunk and the sample if they are known, the expected and the found value,
and the next step. Names in a message are always `printable`; attributes hold them unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from brand.printable import printable, printable_lines


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number and its noun for a message: `1 chunk`, `1,200 classes`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def cause_of(error: BaseException) -> str:
    """Return the text of a library's error as a clause: in one line, without its full stop and memory addresses."""
    text = _OBJECT.sub("", " ".join(str(error).split())).rstrip(" .:")
    kind = type(error).__name__
    if not text:
        return kind
    return text if isinstance(error, _PLAIN) else f"{text} ({kind})"


def with_hint(text: str, hint: str) -> str:
    """Return a message that ends with its hint, as a sentence of its own."""
    return f"{text.rstrip('.')}. {hint}" if hint else text


def size(count: float) -> str:
    """Return a number of bytes for people: 1.5 GB (powers of 1,000)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


_OBJECT: Final = re.compile(r" ?<[^<>]* object at 0x[0-9a-fA-F]+>")
_PLAIN: Final = (OSError, ValueError, RuntimeError, EOFError)
"""Errors whose text says enough; for any other, the name of its class is added."""


class BrandError(Exception):
    """Root of all errors that Brand raises on purpose."""

    def __str__(self) -> str:
        return printable_lines(super().__str__())  # a DataLoader puts a worker's traceback, of many lines, into one


class UsageError(BrandError, ValueError):
    """The call is wrong; correct it and call again."""


class SchemaError(UsageError):
    """A schema is malformed, or a sample does not fit it."""


class NoLabelsError(SchemaError, AttributeError):
    """The data set has no labels, or no names for them."""


class TargetExistsError(UsageError, FileExistsError):
    """The target exists already, and holds other data."""


class MissingExtraError(BrandError, ImportError):
    """An optional library is needed; the message says how to install it."""


def missing_extra(error: Exception, what: str, install: str) -> MissingExtraError:
    """Return the error for an optional library that does not load, with the command for that cause.

    `what` says which function needs which package; `install` is what pip installs.
    """
    if isinstance(error, ModuleNotFoundError):
        return MissingExtraError(f"{what}: pip install {install}")
    return MissingExtraError(
        f"{what}, and loading it fails ({cause_of(error)}): pip install --force-reinstall {install}"
    )


class SourceError(BrandError):
    """A file of the source cannot be used. `path` names it, `reason` says why."""

    def __init__(self, path: str, reason: str, *, hint: str = "") -> None:
        self.path, self.reason, self.hint = path, reason, hint
        super().__init__(printable(with_hint(f"{path}: {reason}", hint)))

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_source_error, (self.path, self.reason, self.hint)


def _rebuild_source_error(path: str, reason: str, hint: str) -> SourceError:
    return SourceError(path, reason, hint=hint)


class StorageError(BrandError, OSError):
    """The storage refused: no space left, read-only, or an I/O error."""


class MergeError(BrandError):
    """The samples of an append are in the collection, but its small segments could not be merged afterwards.

    Appending the samples again is wrong. The error of the merge is the `__cause__`. Attribute: `version`, the number of
    the version that has the samples.
    """

    def __init__(self, message: str, version: int) -> None:
        self.version = version
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0], self.version)


class CacheError(BrandError):
    """A cache folder cannot be made, or other users could change what is in it. The message says what to do."""


class InterruptedConversionError(BrandError):
    """A conversion stopped half-way. Finished files remain; the same command continues."""


class MissingChunksError(InterruptedConversionError):
    """A conversion in tasks cannot be finished: chunks are missing, damaged, or of another data set.

    Attributes: `chunks` (their numbers), and `tasks`: task, such as `3/8`, -> the numbers of its chunks; empty if the
        conversion was not divided into tasks.
    """

    def __init__(self, message: str, chunks: Sequence[int] = (), tasks: Mapping[str, Sequence[int]] | None = None):
        self.chunks, self.tasks = tuple(chunks), dict(tasks or {})
        super().__init__(message)


class ElsewhereError(BrandError):
    """A sample is in the partition of another node. Nothing is damaged, so it is not a `FormatError`.

    Attributes: `path` (this partition), `chunk` (its number), `sample` (public index), `node` (that has it): each None
        if unknown. If a worker of a DataLoader raises the error, the DataLoader raises a copy made from its text alone.
    """

    def __init__(
        self,
        what: str,
        *,
        path: str | Path | None = None,
        chunk: int | None = None,
        sample: int | None = None,
        node: int | None = None,
        hint: str = "",
    ) -> None:
        self.what, self.chunk, self.sample, self.node, self.hint = what, chunk, sample, node, hint
        self.path = _as_path(path)
        super().__init__(_placed(what, self.path, chunk, sample) + (f". {hint}" if hint else ""))

    def __reduce__(self) -> tuple[object, ...]:
        facts = {"path": self.path, "chunk": self.chunk, "sample": self.sample, "node": self.node, "hint": self.hint}
        return _rebuild_placed_error, (type(self), self.what, facts)


class DeletedError(BrandError, LookupError):
    """A sample was deleted from its collection. It is not an IndexError, which would silently end a loop over a data
    set.

    Attributes: `name` (the collection, with its version), `sample` (public index).
    """

    def __init__(self, name: str, sample: int) -> None:
        self.name, self.sample = name, sample
        super().__init__(
            printable(
                f"{name}: sample {sample} was deleted. `BrandSampler` skips deleted samples; "
                "`data_set.present()` has the indices of the others"
            )
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.name, self.sample)


class ServerError(BrandError):
    """The data server cannot be started or reached, or it refuses; the message gives the reason."""


class ServerDiedError(ServerError, ConnectionError):
    """A data server ended while it started, without a reason: it was killed, say. Another try may succeed."""


class UnreachableError(ServerError):
    """The server of another node, the only one that has a sample, does not answer."""


class NoThreadError(BrandError, RuntimeError):
    """A thread cannot be started: the limit of a container or of the user is reached, or a filter refuses the call."""


class WorkerDiedError(BrandError, RuntimeError):
    """A process of a `BrandLoader(worker_type="process")` was killed, or has ended; the message names its signal."""


class EndedError(BrandError, ConnectionResetError):
    """The server has sent the reason why it ends, and closed the connection."""


class ProtocolError(BrandError):
    """A message of the other side is not valid."""


class FormatError(BrandError):
    """A stored file is damaged, or not the expected one.

    Attributes: `path` (the file, or its URL as a str), `chunk` (its number), `sample` (public index), `expected`,
        `found`: each None if unknown. If a worker of a DataLoader raises the error, the DataLoader raises a copy made
        from its text alone.
    """

    def __init__(
        self,
        what: str,
        *,
        path: str | Path | None = None,
        chunk: int | None = None,
        sample: int | None = None,
        expected: object = None,
        found: object = None,
        hint: str = "",
    ) -> None:
        self.what, self.chunk, self.sample = what, chunk, sample
        self.path = _as_path(path)
        self.expected, self.found, self.hint = expected, found, hint
        text = _placed(what, self.path, chunk, sample)
        if expected is not None or found is not None:
            text += f" (expected {expected}, found {found})"
        super().__init__(with_hint(text, hint))

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_placed_error, (type(self), self.what, self._facts())

    def of_sample(self, sample: int) -> FormatError:
        """Return the same error, with the sample whose read has met it."""
        return type(self)(self.what, **(self._facts() | {"sample": sample}))

    def _facts(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _FACTS}


def _as_path(path: str | Path | None) -> str | Path | None:
    """Return the path of a file; a URL stays a text, because a `Path` would lose one of its slashes."""
    return path if path is None or (isinstance(path, str) and "://" in path) else Path(path)


def _placed(what: str, path: str | Path | None, chunk: int | None, sample: int | None) -> str:
    """Return a fault preceded by its place, as far as that is known."""
    where = [] if path is None else [printable(_shown(path))]
    where += [f"chunk {chunk}"] if chunk is not None else []
    where += [f"sample {sample}"] if sample is not None else []
    return f"{', '.join(where)}: {what}" if where else what


def _shown(path: str | Path) -> str:
    """Return a path as people would write it here: relative if it is below the working folder. A URL is not changed."""
    if isinstance(path, str):
        return path
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def _rebuild_placed_error(cls: type[BrandError], what: str, state: dict[str, object]) -> BrandError:
    return cls(what, **state)


class NotADataSetError(FormatError):
    """There is no manifest here: not a data set, or a conversion that never finished."""


class VersionError(FormatError):
    """The file was written by a newer, incompatible version of the format."""


class MissingFileError(FormatError, FileNotFoundError):
    """A chunk or an index file is missing."""


class UnreadableError(FormatError, OSError):
    """The storage cannot read the file: an I/O error, no permission, or a folder in its place."""


class TruncatedError(FormatError):
    """A file is shorter than recorded."""


class OversizedError(FormatError):
    """A file is longer than recorded, or a number in it is above its limit."""


class LayoutError(FormatError):
    """Offsets, sizes or counts in a file contradict each other."""


class ForeignFileError(FormatError):
    """The file belongs to another data set, or to another place in this one."""


class ChecksumError(FormatError):
    """The bytes changed since they were written."""


class DecodeError(FormatError):
    """The bytes are as they were written, but cannot be decoded."""


def pack_error(error: BrandError) -> dict[str, object]:
    """Return an error as plain values, so that another process can raise it."""
    if not isinstance(error, FormatError):
        return {"type": type(error).__name__, "message": str(error)}
    plain = {name: value if isinstance(value, int | None) else str(value) for name, value in error._facts().items()}
    return {"type": type(error).__name__, "message": error.what, **plain}


def unpack_error(value: Mapping[str, object]) -> BrandError | None:
    """Return the error that `pack_error` packed; None if another process may not raise such an error here."""
    kind, message = _SENT.get(str(value.get("type"))), str(value.get("message"))
    if kind is None or not issubclass(kind, FormatError):
        return None if kind is None else kind(message)
    path, chunk, sample, expected, found, hint = (value.get(name) for name in _FACTS)
    return kind(
        message,
        path=None if path is None else str(path),
        chunk=chunk if isinstance(chunk, int) else None,
        sample=sample if isinstance(sample, int) else None,
        expected=expected,
        found=found,
        hint=str(hint or ""),
    )


def _with_subclasses(cls: type[BrandError]) -> list[type[BrandError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in _with_subclasses(child))]


_FACTS = ("path", "chunk", "sample", "expected", "found", "hint")
_SENT = {
    cls.__name__: cls
    for root in (UsageError, StorageError, ServerError, CacheError, MissingExtraError, FormatError)
    for cls in _with_subclasses(root)
}
"""Errors that a process may raise if another process sends their name."""
