"""A folder that holds nothing of the kind that is converted: the message says which verb is meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from brand.chunker import convert_audio, convert_images
from brand.errors import SourceError, UsageError
from tests.support import options


@pytest.mark.parametrize("how", [{}, {"skip_errors": True}, {"validate": True}], ids=["fail", "skip", "validate"])
def test_the_other_verb_is_named(photos: Path, clips: Path, tmp_path: Path, how: dict[str, bool]) -> None:
    """Sound files for pictures, and pictures for sound files; no word of leaving files out one by one."""
    with pytest.raises(SourceError, match=r"none of the 31 files is an audio file: `brand convert images`") as failed:
        convert_audio(photos, tmp_path / "set", options(**how))
    assert "--on-error" not in str(failed.value)
    with pytest.raises(SourceError, match=r"none of the \d+ files is an image: `brand convert audio`"):
        convert_images(clips, tmp_path / "set", options(labels=False, **how))
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("skip", [True, False])
def test_neither_pictures_nor_sound(tmp_path: Path, skip: bool) -> None:
    """More files than are looked at."""
    (tmp_path / "src").mkdir()
    for number in range(100):
        (tmp_path / "src" / f"{number}.txt").write_text("a text")
    with pytest.raises(SourceError, match=r"not an image file: .* none of 64 inspected files is an image: brand.pack"):
        convert_images(tmp_path / "src", tmp_path / "set", options(skip_errors=skip))


def test_one_picture_among_texts_is_a_folder_of_pictures(photos: Path, tmp_path: Path) -> None:
    """There leaving out is what helps."""
    (tmp_path / "src").mkdir()
    for number in range(9):
        (tmp_path / "src" / f"{number}.txt").write_text("a text")
    (tmp_path / "src" / "5.png").write_bytes((photos / "animals" / "armadillo.png").read_bytes())
    with pytest.raises(SourceError, match="--on-error skip leaves such files out"):
        convert_images(tmp_path / "src", tmp_path / "set", options())
    assert convert_images(tmp_path / "src", tmp_path / "set", options(skip_errors=True)).samples == 1


def test_a_converted_data_set_is_no_source(photos_set: Path, tmp_path: Path) -> None:
    """It is told apart from a folder with files in the wrong place."""
    with pytest.raises(UsageError, match="is a converted data set already: BrandDataset reads it"):
        convert_images(photos_set, tmp_path / "set")
