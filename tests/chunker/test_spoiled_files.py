"""Files of many kinds that are damaged by chance end as a sample, as a skip with its name, or as the error of their
seam to a library. `python -m bench.damaged_files` takes many more of each kind."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from brand.formats.audio import decode_audio, duration
from brand.formats.media import misfit
from brand.formats.pixels import decode_image
from brand.formats.preparation import DecodeAudio, DecodeImage
from tests.chunker.test_importers import SOURCES
from tests.tools import spoiled

KINDS = spoiled.media_kinds()
CONTAINERS = spoiled.container_kinds(SOURCES)
COUNT = 8


@pytest.mark.parametrize("name", KINDS)
def test_every_error_of_a_decoder_is_a_value_error(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever the library raises for it; and Python prints nothing about errors in callbacks."""
    field, whole = KINDS[name]
    of_field: dict[str, tuple[Callable[[bytes], object], ...]] = {
        "image": (decode_image, DecodeImage(shorter=16), DecodeImage(size=(4, 4), mode="L")),
        "audio": (decode_audio, DecodeAudio(rate=16000), duration),
    }
    said = []
    for decode in of_field[field]:
        decode(whole)
        for data in spoiled.files_of(name, 25).values():
            misfit(field, data)
            try:
                decode(data)
            except ValueError as error:
                said.append(str(error))
    assert [text for text in said if text.endswith(".") or " object at 0x" in text] == []
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("way", spoiled.WAYS)
@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_file_is_a_sample_a_skip_or_a_named_error(name: str, way: str, tmp_path: Path) -> None:
    """As a folder, in a tar file, in a Parquet file, and in training."""
    ended = spoiled.WAYS[way](name, spoiled.files_of(name, COUNT), tmp_path)
    assert ended.keys() <= {"sample", "skip", "error"}, ended
    assert ended.total() == COUNT


@pytest.mark.parametrize("way", ["folder", "tar", "parquet", "training"])
def test_a_damaged_avif_does_not_end_conversion_or_epoch(way: str, tmp_path: Path) -> None:
    """Its decoder raises RuntimeError."""
    files = spoiled.files_of("avif", 12)
    said = []
    for data in files.values():
        with suppress(ValueError):
            decode_image(data)
            continue
        with pytest.raises(ValueError, match="Pillow cannot decode it") as failed:
            decode_image(data)
        said.append(type(failed.value.__cause__))
    assert RuntimeError in said
    assert spoiled.WAYS[way]("avif", files, tmp_path).total() == 12


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTAINERS)
def test_a_damaged_source_leaves_samples_or_is_named(name: str, tmp_path: Path) -> None:
    """Its shards, and the index that lists them."""
    ended = spoiled.container(CONTAINERS[name], COUNT, tmp_path)
    assert ended.keys() <= {"sample", "skip", "error"}, ended


def test_damage_is_equal_in_every_run() -> None:
    """So that a failure can be looked at again."""
    assert spoiled.files_of("png", 3) == spoiled.files_of("png", 3)
    assert spoiled.spoiled(bytes(100), random.Random(1)) == spoiled.spoiled(bytes(100), random.Random(1))
