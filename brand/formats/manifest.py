"""brand.json and share.json: facts about a data set and one partition (docs/reference/format.md, sections 5 and 10).

Both, and the versions of a collection, are small JSON documents with a version and a checksum. People can read them,
and the checksum reveals an edit by hand. A reader refuses a newer major version before it reads any other field.

If a data set is divided over the disks of several nodes, each node has one folder: its partition. A partition holds
the whole index and one run of consecutive chunks. `cuts` gives the start of each node's run, so a reader does not
depend on how they were chosen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from brand.errors import (
    BrandError,
    ChecksumError,
    ForeignFileError,
    LayoutError,
    NotADataSetError,
    OversizedError,
    UnreadableError,
    counted,
)
from brand.formats.constants import (
    CHUNKS_NAME,
    COPY_WORK_NAME,
    MANIFEST_NAME,
    MAX_CHUNKS,
    MAX_DICTIONARY,
    MAX_MANIFEST,
    MAX_NODES,
    MAX_SAMPLE,
    MAX_SAMPLES,
    MAX_SHARE,
    PLACE_NAME,
    SAMPLES_NAME,
    SHARE_NAME,
    SHARED_PLAN_NAME,
    VERSION_MAJOR,
    VERSION_MINOR,
    VERSION_OF_FACTS,
    VERSIONS_NAME,
    WORK_NAME,
    column_name,
)
from brand.formats.endings import command_for
from brand.formats.header import Header, canonical_json, check_major, natural
from brand.formats.noticed import Noticed
from brand.formats.noticed import from_json as noticed_from_json
from brand.formats.noticed import to_json as noticed_to_json
from brand.formats.publish import remedy_for

_MARKER: Final = "brand"
# A newer minor version may add files, so unknown names are accepted; paths outside the data set are not.
_FILE: Final = re.compile(r"(index|columns)/[A-Za-z0-9_]+\.npy")
_COMPANION: Final = re.compile(r"[a-z]+\.(zip|tsv)")
_COUNTS: Final = ("dictionary_size", "stored_bytes", "raw_bytes", "largest_sample")
Files = Mapping[str, tuple[int, str]]
"""Path below the data set -> (size, XXH3-128)."""
_SHARE_MARKER: Final = "brand-share"
_SHARE_HINT: Final = "Make the partition again with `brand partition`"


def pack_signed(marker: str, facts: Mapping[str, Any], minor: int = VERSION_MINOR) -> bytes:
    """Return the document's bytes, indented for people. `marker` is its kind; the checksum is over the compact form."""
    value = {"format": marker, "version": [VERSION_MAJOR, minor], **facts}
    value["checksum"] = xxhash.xxh3_64_hexdigest(canonical_json(value))
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def parse_signed(data: bytes, path: str | Path, *, marker: str, name: str, hint: str) -> dict[str, Any]:
    """Return the document. Only its kind, version and checksum are checked.

    Messages call the document `name`, and advise with `hint`. Raises `LayoutError`, `VersionError`, `ChecksumError`.
    """
    try:
        value: dict[str, Any] = json.loads(data, parse_constant=_refuse)
        version = value["version"]
        if value["format"] != marker or type(version[0]) is not int:
            raise ValueError(f"not a {name} of Brand")
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise LayoutError(f"the {name} is not readable: {error}", path=path, hint=hint) from error
    check_major(version[0], path)
    found = value.pop("checksum", None)
    try:
        expected = xxhash.xxh3_64_hexdigest(canonical_json(value))
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"the {name} is not readable: {error}", path=path, hint=hint) from error
    if found != expected:
        raise ChecksumError(f"checksum of the {name}", path=path, expected=expected, found=found, hint=hint)
    return value


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def read_limited(path: Path, limit: int, name: str) -> bytes:
    """Return the contents of a document, which messages call `name`. Raises `OversizedError`, OSError."""
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OversizedError(f"the {name} is too large", path=path, expected=f"<= {limit} bytes", found=f"> {limit}")
    return data


def identity(text: str) -> bytes:
    """Return the id of a data set from its 32 hexadecimal digits. Raises ValueError, TypeError."""
    found = bytes.fromhex(text)
    if len(found) != 16:
        raise ValueError(f"id {text!r} is not 32 hexadecimal digits")
    return found


@dataclass(frozen=True)
class Manifest:
    """The checked contents of `brand.json`."""

    data_set_id: bytes
    header: Header
    dictionary_size: int
    stored_bytes: int
    raw_bytes: int
    largest_sample: int
    files: Files
    """Index and columns."""
    companions: Files
    """`extras.zip` and `skipped.tsv`, if they exist."""
    noticed: tuple[Noticed, ...] = ()
    """What the conversion noticed about the source and the samples."""

    @property
    def mean_bytes(self) -> float:
        """Mean size of a stored sample in bytes; at least 1, because callers divide by it."""
        return max(1.0, self.stored_bytes / max(1, self.header.samples))


def pack_manifest(manifest: Manifest) -> bytes:
    facts = {
        "id": manifest.data_set_id.hex(),
        "header": manifest.header.to_json(),
        "chunks": manifest.header.chunks,
        **{name: getattr(manifest, name) for name in _COUNTS},
        "files": {name: list(facts) for name, facts in manifest.files.items()},
        "companions": {name: list(facts) for name, facts in manifest.companions.items()},
    }
    if manifest.noticed:  # without facts, the bytes are those of version 1.0
        facts["noticed"] = noticed_to_json(manifest.noticed)
    return pack_signed(_MARKER, facts, VERSION_OF_FACTS if manifest.noticed else manifest.header.minor)


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a data set. Raises a `FormatError` that says what to do."""
    path = folder / MANIFEST_NAME
    try:
        return parse_manifest(read_limited(path, MAX_MANIFEST, "manifest"), path)
    except FileNotFoundError:
        raise NotADataSetError(_why_not(folder), path=folder) from None
    except (NotADirectoryError, IsADirectoryError):
        raise NotADataSetError("not a data set: a data set is a folder with a file brand.json", path=folder) from None
    except BrandError:  # some of them are OSErrors, too
        raise
    except OSError as error:
        hint = remedy_for(error, "")
        raise UnreadableError(f"cannot be read: {error.strerror}", path=path, hint=hint) from error


def parse_manifest(data: bytes, path: str | Path) -> Manifest:
    """Check and parse the bytes of a manifest."""
    hint = "`brand reindex` rebuilds it from the chunks"
    value = parse_signed(data, path, marker=_MARKER, name="manifest", hint=hint)
    try:
        manifest = Manifest(
            data_set_id=identity(value["id"]),
            header=Header.from_json(value["header"], path),
            **{name: natural(value[name], name) for name in _COUNTS},
            files=_files(value["files"]),
            companions=_files(value["companions"]),
            noticed=noticed_from_json(value.get("noticed", [])),
        )
        if natural(value["chunks"], "chunks") != manifest.header.chunks:
            raise ValueError(f"{value['chunks']} chunks, and the header makes {manifest.header.chunks}")
        if not set(index_names(manifest.header)) <= set(manifest.files):
            raise ValueError("an index file that the header needs is not listed")
        strange = [n for n in manifest.files if not _FILE.fullmatch(n)]
        strange += [n for n in manifest.companions if not _COMPANION.fullmatch(n)]
        if strange:
            raise ValueError(f"{strange[0]!r} is not a file of a data set")
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise LayoutError(f"the manifest is malformed: {error!r}", path=path, hint=hint) from error
    most = MAX_SAMPLES * MAX_SAMPLE
    claims = (manifest.stored_bytes, most), (manifest.raw_bytes, most), (manifest.largest_sample, MAX_SAMPLE)
    if any(claim > limit for claim, limit in (*claims, (manifest.dictionary_size, MAX_DICTIONARY))):
        raise OversizedError("the manifest exceeds a limit of the format", path=path, hint=hint)
    return manifest


def index_names(header: Header) -> tuple[str, ...]:
    """Return the names of the index files and columns that belong to a data set."""
    return (SAMPLES_NAME, PLACE_NAME, CHUNKS_NAME, *(column_name(name) for name, _ in header.schema.columns))


def _why_not(folder: Path) -> str:
    if not folder.exists():
        return "there is no such folder"
    if (folder / VERSIONS_NAME).is_dir():
        return (
            f"a collection, but a single data set is required: name one of its segments, the folders in {folder}/parts"
        )
    if (folder / WORK_NAME / SHARED_PLAN_NAME).exists():
        return "this conversion in tasks is not finished: `brand seal` finishes it, or lists the missing tasks"
    if (folder / WORK_NAME).exists():
        return (
            "this conversion is not finished: run the same `brand convert` command again, it continues where it stopped"
        )
    if (folder / COPY_WORK_NAME).exists():
        return "this copy is not finished: run the same `brand copy` command again, it continues where it stopped"
    if (folder / SHARE_NAME).exists():
        return (
            "this partition is not finished: run the same `brand partition` command again,"
            " it continues where it stopped"
        )
    if (folder / "chunks").is_dir():
        return "the manifest brand.json is missing: `brand reindex` rebuilds it from the chunks"
    if inside := sorted(path.parent.name for path in folder.glob(f"*/{MANIFEST_NAME}")):
        return (
            f"not a data set, but a folder that holds {counted(len(inside), 'data set')}: name one, such as {inside[0]}"
        )
    return f"not a data set: there is no brand.json in it. {command_for(folder)}"


def _files(value: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
    return {str(name): (natural(size, f"size of {name}"), str(digest)) for name, (size, digest) in value.items()}


@dataclass(frozen=True)
class Share:
    """The checked contents of `share.json`: one node's partition of a data set. Nodes and chunks count from 0."""

    data_set_id: bytes
    node: int
    """The node that has this partition."""
    group_chunks: int
    """Chunks in a group. A run ends only between two groups."""
    cuts: tuple[int, ...]
    """Node `k` has chunks `cuts[k]` to `cuts[k + 1] - 1`. The cuts rise from 0 to the number of chunks."""

    @property
    def nodes(self) -> int:
        return len(self.cuts) - 1

    @property
    def chunks(self) -> range:
        return range(self.cuts[self.node], self.cuts[self.node + 1])

    def samples(self, header: Header) -> int:
        return min(header.samples, self.chunks.stop * header.chunk_size) - self.chunks.start * header.chunk_size

    def here(self, chunks: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Return which of these chunks are in this partition."""
        found: NDArray[np.bool_] = (chunks >= self.chunks.start) & (chunks < self.chunks.stop)
        return found

    def owners(self, chunks: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
        return np.searchsorted(self.cuts, chunks, side="right").astype(np.int64) - 1


def pack_share(share: Share) -> bytes:
    facts = {
        "id": share.data_set_id.hex(),
        "node": share.node,
        "group_chunks": share.group_chunks,
        "cuts": list(share.cuts),
    }
    return pack_signed(_SHARE_MARKER, facts)


def read_share(folder: Path, manifest: Manifest) -> Share | None:
    """Return the partition in a folder; None if the folder holds the whole data set. Raises a `FormatError`."""
    path = folder / SHARE_NAME
    try:
        share = parse_share(read_limited(path, MAX_SHARE, "partition file"), path)
    except FileNotFoundError:
        return None
    except OSError as error:
        hint = remedy_for(error, "")
        raise UnreadableError(f"cannot be read: {error.strerror}", path=path, hint=hint) from error
    for what, expected, found in (
        ("a partition of another data set", manifest.data_set_id.hex(), share.data_set_id.hex()),
        ("a partition of another number of chunks", manifest.header.chunks, share.cuts[-1]),
    ):
        if expected != found:
            raise ForeignFileError(what, path=path, expected=expected, found=found, hint=_SHARE_HINT)
    return share


def parse_share(data: bytes, path: Path) -> Share:
    """Parse and check a `share.json`. Raises `LayoutError`, `VersionError`, `ChecksumError`, `OversizedError`."""
    value = parse_signed(data, path, marker=_SHARE_MARKER, name="partition file", hint=_SHARE_HINT)
    try:
        share = Share(
            data_set_id=identity(value["id"]),
            node=natural(value["node"], "node"),
            group_chunks=natural(value["group_chunks"], "group_chunks"),
            cuts=tuple(natural(cut, "a cut") for cut in value["cuts"]),
        )
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise LayoutError(f"the partition file is malformed: {error!r}", path=path, hint=_SHARE_HINT) from error
    if share.nodes > MAX_NODES or max(share.group_chunks, *share.cuts, 0) > MAX_CHUNKS:
        raise OversizedError("the partition file exceeds a limit of the format", path=path, hint=_SHARE_HINT)
    if (fault := _fault(share)) is not None:
        raise LayoutError(f"the partition file is malformed: {fault}", path=path, hint=_SHARE_HINT)
    return share


def _fault(share: Share) -> str | None:
    """Return how a partition contradicts itself; None if it does not."""
    if share.node >= share.nodes:
        return f"node {share.node}, and there are {max(0, share.nodes)} nodes"
    if share.group_chunks < 1:
        return "groups of no chunk"
    cuts = np.array(share.cuts)
    if cuts[0] != 0 or (np.diff(cuts) < 1).any():
        return "the cuts do not rise from 0"
    if (cuts[:-1] % share.group_chunks).any():
        return f"a cut within a group of {share.group_chunks} chunks"
    return None
