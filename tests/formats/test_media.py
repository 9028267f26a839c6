"""What kind of file some bytes are, and that hostile images and clips are a ValueError."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from brand.formats.audio import decode_audio
from brand.formats.media import HEAD_BYTES, kind_of
from brand.formats.pixels import decode_image
from tests.golden.inputs import png, wav

KINDS = {"PNG": "image/png", "JPEG": "image/jpeg", "WEBP": "image/webp", "GIF": "image/gif", "BMP": "image/bmp",
         "TIFF": "image/tiff", "PPM": "image/pnm"}  # fmt: skip


def encoded(name: str) -> bytes:
    """A small image file."""
    file = io.BytesIO()
    Image.new("RGB", (5, 3), (200, 100, 50)).save(file, name)
    return file.getvalue()


@pytest.mark.parametrize("name", KINDS)
def test_an_image_is_known_by_its_first_bytes(name: str) -> None:
    """As Pillow writes it; it decodes to RGB of its size."""
    data = encoded(name)
    assert kind_of(data) == KINDS[name]
    assert kind_of(memoryview(data)[:HEAD_BYTES]) == KINDS[name]
    image = decode_image(data)
    assert (image.mode, image.size) == ("RGB", (5, 3))


def test_real_files_are_known(photos: Path, clips: Path) -> None:
    """The sets that ship with the repository, whatever the files are called."""
    for folder, family in ((photos, "image/"), (clips, "audio/")):
        for path in (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".tsv"):
            assert (kind_of(path.read_bytes()) or "").startswith(family), path.name


@pytest.mark.parametrize(
    "data", [b"", b"\0", b"PK\x03\x04", b"%PDF-1.5", b"RIFF0000AVI ", b"0000WAVE", b"text", bytes(64)]
)
def test_other_files_are_of_no_kind(data: bytes) -> None:
    """Neither image nor audio."""
    assert kind_of(data) is None


@given(st.binary(max_size=100))
def test_any_bytes_have_a_kind_or_none(data: bytes) -> None:
    """Nothing is raised."""
    assert kind_of(data) is None or "/" in str(kind_of(data))


@given(name=st.sampled_from(["PNG", "GIF", "BMP", "WEBP"]), at=st.integers(0, 400), byte=st.integers(0, 255))
def test_a_damaged_image_is_an_image_or_a_value_error(name: str, at: int, byte: int) -> None:
    """Whatever Pillow raises over bad input comes out as one class."""
    data = bytearray(encoded(name))
    data[at % len(data)] = byte
    try:
        assert decode_image(bytes(data)).mode == "RGB"
    except ValueError:
        return


def test_a_clip_decodes_to_channels_and_frames() -> None:
    """float32, -1 to 1, with its rate."""
    waveform = decode_audio(wav(6))
    assert waveform.rate == 8000
    assert waveform.samples.shape == (1, 6)
    assert waveform.samples[0].tolist() == [1000 * k / 32768 for k in range(6)]


@pytest.mark.parametrize("data", [b"", b"RIFF", png(3, 0), wav(6)[:20], bytes(100)])
def test_a_clip_that_is_none_is_a_value_error(data: bytes) -> None:
    """Cut short, or something else."""
    with pytest.raises(ValueError, match="libsndfile"):
        decode_audio(data)
