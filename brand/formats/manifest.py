"""brand.json: the facts about a data set, written last (docs/format.md, section 5)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from brand.errors import LayoutError, NotADataSetError, OversizedError
from brand.formats.constants import (
    CHUNKS_NAME,
    COPY_WORK_NAME,
    MANIFEST_NAME,
    MAX_DICTIONARY,
    MAX_MANIFEST,
    MAX_SAMPLE,
    MAX_SAMPLES,
    PLACE_NAME,
    SAMPLES_NAME,
    SHARE_NAME,
    SHARED_PLAN_NAME,
    VERSIONS_NAME,
    WORK_NAME,
    column_name,
)
from brand.formats.header import Header
from brand.formats.signed import identity, natural, pack_signed, parse_signed

_MARKER: Final = "brand"

# A newer minor version may add files, so unknown names are accepted; paths outside the data set are not.
_FILE: Final = re.compile(r"(index|columns)/[A-Za-z0-9_]+\.npy")
_COMPANION: Final = re.compile(r"[a-z]+\.(zip|tsv)")

Files = Mapping[str, tuple[int, str]]
"""Path below the data set -> (size, XXH3-128)."""


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

    @property
    def mean_bytes(self) -> float:
        """Mean size of a stored sample in bytes; at least 1, because callers divide by it."""
        return max(1.0, self.stored_bytes / max(1, self.header.samples))


def pack_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of `brand.json`."""
    facts = {
        "id": manifest.data_set_id.hex(),
        "header": manifest.header.to_json(),
        "chunks": manifest.header.chunks,
        "dictionary_size": manifest.dictionary_size,
        "stored_bytes": manifest.stored_bytes,
        "raw_bytes": manifest.raw_bytes,
        "largest_sample": manifest.largest_sample,
        "files": {name: list(facts) for name, facts in manifest.files.items()},
        "companions": {name: list(facts) for name, facts in manifest.companions.items()},
    }
    return pack_signed(_MARKER, facts)


def read_manifest(folder: Path) -> Manifest:
    """Read and check the manifest of a data set. Raises a `FormatError` that says what to do."""
    path = folder / MANIFEST_NAME
    try:
        with path.open("rb") as file:
            data = file.read(MAX_MANIFEST + 1)
    except FileNotFoundError:
        raise NotADataSetError(_why_not(folder), path=folder) from None
    except (NotADirectoryError, IsADirectoryError):
        raise NotADataSetError("not a data set: a data set is a folder with a file brand.json", path=folder) from None
    if len(data) > MAX_MANIFEST:
        raise OversizedError(
            "the manifest is too large", path=path, expected=f"<= {MAX_MANIFEST} bytes", found=f"> {MAX_MANIFEST}"
        )
    return parse_manifest(data, path)


def parse_manifest(data: bytes, path: str | Path) -> Manifest:
    """Check and parse the bytes of a manifest."""
    hint = "`brand reindex` rebuilds it from the chunks"
    value = parse_signed(data, path, marker=_MARKER, name="manifest", hint=hint)
    try:
        manifest = Manifest(
            data_set_id=identity(value["id"]),
            header=Header.from_json(value["header"], path),
            dictionary_size=natural(value["dictionary_size"], "dictionary_size"),
            stored_bytes=natural(value["stored_bytes"], "stored_bytes"),
            raw_bytes=natural(value["raw_bytes"], "raw_bytes"),
            largest_sample=natural(value["largest_sample"], "largest_sample"),
            files=_files(value["files"]),
            companions=_files(value["companions"]),
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
    return (SAMPLES_NAME, PLACE_NAME, CHUNKS_NAME, *(column_name(name) for name, _ in header.schema.fixed))


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
    return "not a data set: there is no brand.json in it. Make one with `brand convert images` or `brand convert audio`"


def _files(value: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
    return {str(name): (natural(size, f"size of {name}"), str(digest)) for name, (size, digest) in value.items()}
