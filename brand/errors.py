"""Every error that Brand raises on purpose, and whose fault each one is.

    BrandError
    ├── UsageError                 the call is wrong: correct it and call again      (also ValueError)
    │   ├── SchemaError            a sample does not fit its schema
    │   │   └── NoLabelsError      the data set has no labels, or no names for them  (also AttributeError)
    │   └── TargetExistsError      the target is taken                               (also FileExistsError)
    ├── MissingExtraError          an optional library is not installed              (also ImportError)
    ├── SourceError                a file of the source cannot be used
    ├── StorageError               the storage said no: full, read-only, I/O error   (also OSError)
    ├── CacheError                 the cache folder cannot be made, or is not safe to use
    ├── InterruptedConversionError stopped half-way; the same command continues
    │   └── MissingChunksError     parts of a conversion are still to be done, or again
    ├── ElsewhereError             the sample is in the share of another node
    ├── DeletedError               the sample was deleted from its collection         (also LookupError)
    ├── ServerError                a node server cannot be started or reached, or refuses
    │   ├── ServerDiedError        it ended while it started, without a reason           (also ConnectionError)
    │   └── UnreachableError       that of another node, which alone has the sample, does not answer
    ├── EndedError                 the server has said why it ends, and hung up          (also ConnectionResetError)
    ├── ProtocolError              the other side said what no client or server says
    └── FormatError                a stored file is not what it should be
        ├── NotADataSetError       no manifest: not a data set, or a conversion that never finished
        ├── VersionError           written by a newer, incompatible version
        ├── MissingFileError       a chunk or an index file is not there             (also FileNotFoundError)
        ├── UnreadableError        the storage cannot read it                        (also OSError)
        ├── TruncatedError         shorter than recorded
        ├── OversizedError         longer than recorded, or a number above its limit
        ├── LayoutError            offsets, sizes or counts that contradict each other
        ├── ForeignFileError       a file of another data set, or of another place in this one
        ├── ChecksumError          the bytes changed
        └── DecodeError            the bytes are right and still do not decode

A `FormatError` always names the file, and the chunk and the sample where they are known, and says what was expected,
what was found and what to do next. Names in a message are `printable`, whatever they hold; attributes have them as they
are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from brand.printable import printable, printable_lines


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number and its noun for a message: `1 chunk`, `1,200 classes`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def size(count: float) -> str:
    """Bytes for people: 1.5 GB (powers of 1,000)."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


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
    """The target of a conversion is taken by something else."""


class MissingExtraError(BrandError, ImportError):
    """An optional library is needed; the message says how to install it."""


class SourceError(BrandError):
    """A file of the source cannot be used. `path` names it, `reason` says why."""

    def __init__(self, path: str, reason: str, *, hint: str = "") -> None:
        self.path, self.reason, self.hint = path, reason, hint
        super().__init__(printable(f"{path}: {reason}" + (f". {hint}" if hint else "")))

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_source_error, (self.path, self.reason, self.hint)


def _rebuild_source_error(path: str, reason: str, hint: str) -> SourceError:
    return SourceError(path, reason, hint=hint)


class StorageError(BrandError, OSError):
    """The storage refused: no space left, read-only, or an I/O error."""


class CacheError(BrandError):
    """A cache folder cannot be made, or other users could change what is in it. The message says what to do."""


class InterruptedConversionError(BrandError):
    """A conversion stopped half-way. What is finished is kept; the same command continues."""


class MissingChunksError(InterruptedConversionError):
    """A conversion in parts cannot be finished: chunks are missing, damaged, or of another data set.

    Attributes: `chunks` (their numbers), and `parts`: part, as `3/8`, -> the numbers that it makes; empty where the
        conversion was not divided into parts.
    """

    def __init__(self, message: str, chunks: Sequence[int] = (), parts: Mapping[str, Sequence[int]] | None = None):
        self.chunks, self.parts = tuple(chunks), dict(parts or {})
        super().__init__(message)


class ElsewhereError(BrandError):
    """A sample is in the share of another node. Nothing is damaged, so it is no `FormatError`.

    Attributes: `path` (this share), `chunk` (its number), `sample` (public index), `node` (who has it): each None where
        unknown. A DataLoader makes an error that a worker raised anew, from its text alone.
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
    """A sample was deleted from its collection. It is no IndexError, which would end a loop over a data set in silence.

    Attributes: `name` (the collection, with its version), `sample` (public index).
    """

    def __init__(self, name: str, sample: int) -> None:
        self.name, self.sample = name, sample
        super().__init__(
            printable(
                f"{name}: sample {sample} was deleted. `BrandSampler` leaves deleted samples out; "
                "`data_set.present()` has the indices of the others"
            )
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.name, self.sample)


class ServerError(BrandError):
    """The node server cannot be started or reached, or it refuses; the message says why."""


class ServerDiedError(ServerError, ConnectionError):
    """A node server ended while it started, without a reason: another attempt may succeed, as where it was killed."""


class UnreachableError(ServerError):
    """The server of another node, which alone has a sample, does not answer."""


class EndedError(BrandError, ConnectionResetError):
    """The server has said why it ends, and hung up."""


class ProtocolError(BrandError):
    """The other side said what no client or server says."""


class FormatError(BrandError):
    """A stored file is not what it should be.

    Attributes: `path` (the file, or its URL as a str), `chunk` (its number), `sample` (public index), `expected`,
        `found`: each None where unknown. A DataLoader makes an error that a worker raised anew, from its text alone.
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
        super().__init__(text + (f". {hint}" if hint else ""))

    def __reduce__(self) -> tuple[object, ...]:
        names = ("path", "chunk", "sample", "expected", "found", "hint")
        return _rebuild_placed_error, (type(self), self.what, {name: getattr(self, name) for name in names})

    def of_sample(self, sample: int) -> FormatError:
        """The same error, met by reading this sample."""
        return type(self)(
            self.what,
            path=self.path,
            chunk=self.chunk,
            sample=sample,
            expected=self.expected,
            found=self.found,
            hint=self.hint,
        )


def _as_path(path: str | Path | None) -> str | Path | None:
    """A path of a file; a URL stays a text, as a `Path` would lose one of its slashes."""
    return path if path is None or (isinstance(path, str) and "://" in path) else Path(path)


def _placed(what: str, path: str | Path | None, chunk: int | None, sample: int | None) -> str:
    """What is wrong, behind where it is, as far as that is known."""
    where = [] if path is None else [printable(_shown(path))]
    where += [f"chunk {chunk}"] if chunk is not None else []
    where += [f"sample {sample}"] if sample is not None else []
    return f"{', '.join(where)}: {what}" if where else what


def _shown(path: str | Path) -> str:
    """A path as people would write it here: relative where it lies below the working folder. A URL as it is."""
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
    """A chunk or an index file is not there."""


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
    """The bytes are as they were written, and still do not decode."""


def pack_error(error: BrandError) -> dict[str, object]:
    """An error as plain values, so that another process can raise it."""
    if not isinstance(error, FormatError):
        return {"type": type(error).__name__, "message": str(error)}
    facts = {name: getattr(error, name) for name in _FACTS}
    plain = {name: value if isinstance(value, int | None) else str(value) for name, value in facts.items()}
    return {"type": type(error).__name__, "message": error.what, **plain}


def unpack_error(value: Mapping[str, object]) -> BrandError | None:
    """Inverse of `pack_error`; None where the values are those of no error that another process may raise here."""
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
    cls.__name__: cls for root in (UsageError, StorageError, ServerError, FormatError) for cls in _with_subclasses(root)
}
"""Errors that a process may raise because another process tells it so, by name."""
