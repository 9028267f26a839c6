"""The present version is the highest one, whatever the note says: it is missing, old, damaged, or of another folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random

import pytest

from brand.errors import NotADataSetError, UnreadableError
from brand.formats.version import version_name
from brand.storage.io.location import present_version
from brand.storage.io.present import NOTE_NAME, last_number, note_present, numbers
from tests.rounds import Chance, rounds


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three versions, without contents."""
    (tmp_path / "all" / "versions").mkdir(parents=True)
    for number in (1, 2, 3):
        (tmp_path / "all" / version_name(number)).touch()
    return tmp_path / "all"


@rounds(10)
def test_any_history_has_the_highest_number(folder: Path, chance: Chance) -> None:
    """Versions are added and removed, with a note or without it, also several within one tick of the clock."""
    rng, time_ns = chance.rng, 10**18
    for _ in range(200):
        before = (folder / "versions").stat().st_mtime_ns
        known = numbers(folder)
        match rng.randrange(7):
            case 0 | 1:
                (folder / version_name(known[-1] + 1)).touch()
                if rng.random() < 0.5:  # within one tick
                    os.utime(folder / "versions", ns=(before, before))
            case 2:
                note_present(folder, known[-1])
            case 3 if len(known) > 2:  # as `forget`, `redact` and people do
                for number in rng.sample(known[:-1] if rng.random() < 0.8 else known, rng.randint(1, len(known) - 1)):
                    (folder / version_name(number)).unlink()
                time_ns += rng.randrange(1, 10**9)
                os.utime(folder / "versions", ns=(time_ns, time_ns))
            case 4:
                spoil(folder / NOTE_NAME, rng)
            case 5:
                (folder / NOTE_NAME).unlink(missing_ok=True)
            case _:
                (folder / "versions" / f".{rng.random()}.tmp").touch()
        assert last_number(folder) == numbers(folder)[-1]


def spoil(path: Path, rng: Random) -> None:
    """Cut it, or write something else, also very long."""
    old = path.read_bytes() if path.exists() else b""
    texts = b"", b"7", b"x y", b"-1 5", b"1 2 3", b"\xff" * 9, b"9" * 10**5, old[: rng.randint(0, 30)], b"99 " + old[2:]
    path.write_bytes(rng.choice(texts))


def test_a_copy_has_the_highest_number(folder: Path, tmp_path: Path) -> None:
    """A whole one, with its times or without them, and one to which a version was added before the times were set."""
    note_present(folder, 3)
    kept = Path(shutil.copytree(folder, tmp_path / "kept"))
    other = Path(shutil.copytree(folder, tmp_path / "other", copy_function=shutil.copyfile))
    assert last_number(kept) == last_number(other) == 3
    time_ns = (kept / "versions").stat().st_mtime_ns
    (kept / version_name(4)).touch()
    os.utime(kept / "versions", ns=(time_ns, time_ns))
    assert last_number(kept) == 4


def test_a_note_that_cannot_be_written_is_no_error(folder: Path) -> None:
    """The version is published: readers list the names."""
    (folder / NOTE_NAME).mkdir()
    note_present(folder, 3)
    assert last_number(folder) == 3
    assert sorted(path.name for path in folder.iterdir()) == [NOTE_NAME, "versions"]


def test_no_version_is_said(folder: Path) -> None:
    """With a note of an earlier one, too; and a missing folder."""
    note_present(folder, 3)
    for number in (1, 2, 3):
        (folder / version_name(number)).unlink()
    assert last_number(folder) is None
    with pytest.raises(NotADataSetError, match="without a version"):
        present_version(folder)
    (folder / "versions").rmdir()
    with pytest.raises(UnreadableError, match="cannot be read"):
        last_number(folder)
