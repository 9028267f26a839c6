"""Manifest and index from the chunks alone: the same bytes as the conversion wrote, or nothing changed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import brand
from brand.errors import (
    ChecksumError,
    ForeignFileError,
    FormatError,
    MissingFileError,
    NotADataSetError,
    TruncatedError,
)
from brand.storage.maintenance.reindex import reindex
from tests.storage.support import SAMPLES, SCHEMA, chunk, read_each, told_by_verify
from tests.support import files_below
from tests.tools.damage import flip_bit, truncate


def strip(folder: Path) -> None:
    """Leave nothing but the chunks."""
    (folder / "brand.json").unlink()
    shutil.rmtree(folder / "index")
    shutil.rmtree(folder / "columns")


def test_everything_but_the_chunks_is_made_again(plain: Path, dense: Path) -> None:
    """Byte for byte, raw and compressed, from nothing and over what is there."""
    for folder in (plain, dense):
        before = files_below(folder)
        reindex(folder)
        assert files_below(folder) == before
        strip(folder)
        reindex(folder)
        assert files_below(folder) == before


def test_a_damaged_index_is_mended(plain: Path) -> None:
    """Whatever is in its files."""
    before = files_below(plain)
    for path in [plain / "brand.json", *(plain / "index").iterdir(), *(plain / "columns").iterdir()]:
        path.write_bytes(b"garbage")
    reindex(plain)
    assert files_below(plain) == before


def test_companions_are_kept(plain: Path) -> None:
    """They are in the new manifest."""
    (plain / "skipped.tsv").write_text("path\treason\n")
    manifest = reindex(plain)
    assert manifest.companions.keys() == {"skipped.tsv"}
    assert told_by_verify(plain) == []


def test_progress_is_told_after_each_chunk(plain: Path) -> None:
    """Chunks done, chunks in all, bytes of the chunk."""
    steps: list[tuple[int, int, int]] = []
    reindex(plain, lambda *step: steps.append(step))
    assert steps == [(n + 1, 3, chunk(plain, n).stat().st_size) for n in range(3)]


def foreign(folder: Path) -> None:
    """A chunk of another conversion."""
    brand.pack(SAMPLES, folder / "other", SCHEMA, chunk_size=4, compression="none", seed=9, jobs=1)
    shutil.copyfile(chunk(folder / "other", 1), chunk(folder, 1))
    shutil.rmtree(folder / "other")


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (lambda f: chunk(f, 1).unlink(), MissingFileError),
        (lambda f: truncate(chunk(f, 1), 300), TruncatedError),
        (lambda f: flip_bit(chunk(f, 1), 8 * (chunk(f, 1).stat().st_size - 1)), ChecksumError),
        (lambda f: flip_bit(chunk(f, 1), 8 * 100), ChecksumError),
        (lambda f: shutil.copyfile(chunk(f, 0), chunk(f, 1)), ForeignFileError),
        (foreign, ForeignFileError),
    ],
)
def test_a_damaged_chunk_is_named_and_nothing_is_changed(
    plain: Path, damage: Callable[[Path], object], kind: type[FormatError]
) -> None:
    """The old index stays, and there are no leavings."""
    damage(plain)
    before = files_below(plain)
    with pytest.raises(kind) as caught:
        reindex(plain)
    assert type(caught.value) is kind
    assert (caught.value.path, caught.value.chunk) == (chunk(plain, 1), 1)
    assert files_below(plain) == before


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda f: (f / ".brand-work").mkdir(), "not finished"),
        (lambda f: chunk(f, 0).unlink(), "no first chunk"),
        (lambda f: shutil.rmtree(f / "chunks"), "no folder `chunks`"),
        (lambda f: shutil.rmtree(f), "no such folder"),
    ],
)
def test_what_is_no_data_set_is_explained(plain: Path, prepare: Callable[[Path], object], message: str) -> None:
    """An unfinished conversion, no chunks, no folder."""
    prepare(plain)
    with pytest.raises(NotADataSetError, match=message):
        reindex(plain)


def test_the_leavings_of_a_reindex_that_was_killed_do_no_harm(plain: Path) -> None:
    """The next one removes them; readers ignore them."""
    (plain / ".brand-reindex" / "index").mkdir(parents=True)
    (plain / ".brand-reindex" / "index" / "samples.npy").write_bytes(b"half")
    assert read_each(plain, 10) == SAMPLES
    before = {name: data for name, data in files_below(plain).items() if not name.startswith(".")}
    reindex(plain)
    assert files_below(plain) == before
