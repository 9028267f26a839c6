"""Transcripts that are changed between a stopped run and its continuation are never mixed with those before."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from brand.chunker import convert_audio
from brand.chunker.plan.report import StageProgress
from brand.errors import TargetExistsError
from tests.support import options

CLIPS = 12


@pytest.fixture
def folder(clips: Path, tmp_path: Path) -> Path:
    """Twelve copies of a real clip."""
    source = tmp_path / "speech" / "a"
    source.mkdir(parents=True)
    for number in range(CLIPS):
        shutil.copy(clips / "it_IT_m_Carlo" / "digits__1.wav", source / f"{number:02}.wav")
    return tmp_path / "speech"


def write_texts(folder: Path, way: str, text: str) -> Path | None:
    """A text of the same length for each clip, in a table or beside the clips; returns the table."""
    clips = sorted((folder / "a").glob("*.wav"))
    if way == "sidecars":
        for clip in clips:
            clip.with_suffix(".txt").write_text(text)
        return None
    table = folder.parent / "t.tsv"
    table.write_text("path\ttext\n" + "".join(f"a/{clip.name}\t{text}\n" for clip in clips))
    return table


@pytest.mark.parametrize("way", ["table", "sidecars"])
def test_changed_texts_of_the_same_length_are_another_source(
    folder: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half the chunks hold old texts: continuing is refused, also where the probe sees none of them (a large set)."""
    monkeypatch.setattr("brand.chunker.work.chunks._PROBE_SAMPLES", 1)
    monkeypatch.setattr("brand.chunker.work.chunks._PROBE_BYTES", 1)
    target = folder.parent / "set"
    stopped = 0

    def stop(progress: StageProgress) -> None:
        nonlocal stopped
        stopped += progress.stage == "pack"
        if stopped == 3:
            raise KeyboardInterrupt

    table = write_texts(folder, way, "one")
    with pytest.raises(KeyboardInterrupt):
        convert_audio(folder, target, options(2, compression="none"), transcripts=table, on_progress=stop)
    order = (target / ".brand-work" / "order.bin").read_bytes()
    first = folder / "a" / f"{int.from_bytes(order[:8], 'little'):02}.wav"
    write_texts(folder, way, "two")
    if table is None:  # the sample that the probe sees stays as it was
        first.with_suffix(".txt").write_text("one")
    else:
        table.write_text(table.read_text().replace(f"{first.name}\ttwo", f"{first.name}\tone"))
    with pytest.raises(TargetExistsError, match="another source"):
        convert_audio(folder, target, options(2, compression="none"), transcripts=table)
