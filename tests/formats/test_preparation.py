"""Preparations: the size that was asked for, the same pixels whoever decodes, and a ValueError for what is no file."""

from __future__ import annotations

import io
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from brand import DecodeAudio, DecodeImage
from brand.errors import MissingExtraError, UsageError
from brand.formats.audio import decode_audio
from brand.formats.pixels import decode_image
from brand.formats.preparation import MOST_IN_ALL, from_json, to_json


def encoded(image: Image.Image, kind: str, **more: Any) -> bytes:
    """A file of an image."""
    file = io.BytesIO()
    image.save(file, kind, **more)
    return file.getvalue()


def image_of(width: int, height: int, mode: str = "RGB") -> Image.Image:
    """A smooth picture, as far as its size allows."""
    y, x = np.mgrid[:height, :width] / max(width, height)
    pixels = np.stack([x, y, (x + y) / 2], axis=-1) * 255
    return Image.fromarray(pixels.astype(np.uint8)).convert(mode)


@pytest.fixture(scope="module")
def files(photos: Path) -> list[bytes]:
    """All pictures that ship with the repository."""
    return [path.read_bytes() for path in sorted(photos.rglob("*.*"))]


def likeness(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    """Peak signal to noise in decibels: 20 is similar, 40 hardly to be told apart."""
    error = float(np.mean((one.astype(np.float64) - other) ** 2))
    return float(10 * np.log10(255**2 / max(error, 1e-9)))


def test_without_a_size_pixels_are_those_of_the_file(files: list[bytes]) -> None:
    """Whatever kind of file it is."""
    for data in files:
        image = decode_image(data)
        assert np.array_equal(DecodeImage()(data), np.asarray(image))
        assert np.array_equal(DecodeImage(mode="L")(data), np.asarray(image.convert("L"))[:, :, None])


@pytest.mark.parametrize(
    "how",
    [
        DecodeImage(shorter=64),
        DecodeImage(shorter=300, filter="lanczos"),
        DecodeImage(size=(40, 60)),
        DecodeImage(size=(900, 70)),
    ],
)
def test_real_pictures_have_the_size_that_was_asked_for(files: list[bytes], how: DecodeImage) -> None:
    """Larger or smaller than the file; it is the picture that Pillow makes of the whole file, or one much like it."""
    for data in files:
        whole = decode_image(data)
        pixels = how(data)
        if how.size is None:
            assert how.shorter == min(pixels.shape[:2])
            assert abs(pixels.shape[1] / pixels.shape[0] - whole.width / whole.height) < 0.1
        else:
            assert pixels.shape == (*how.size, 3)
        height, width = pixels.shape[:2]
        expected = np.asarray(whole.resize((width, height), Image.Resampling[how.filter.upper()]))
        if Image.open(io.BytesIO(data)).format != "JPEG":
            assert np.array_equal(pixels, expected)
        assert likeness(pixels, expected) > 25
        assert pixels.dtype == np.uint8
        assert pixels.flags.writeable
        assert pixels.flags.c_contiguous


@pytest.mark.parametrize(("width", "height"), [(1, 1), (17, 31), (640, 481), (333, 250)])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_the_longer_side_keeps_the_proportion(width: int, height: int, kind: str) -> None:
    """Rounded down, as torchvision's Resize does."""
    data = encoded(image_of(width, height), kind)
    for shorter in (1, 16, 100, 250, 500):
        found = DecodeImage(shorter=shorter)(data).shape
        least = min(width, height)
        assert found == (height * shorter // least, width * shorter // least, 3)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("shorter", [16, 37, 120, 150, 400, None])
def test_simplejpeg_and_pillow_give_the_same_pixels(
    mode: str, shorter: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each scale, so a machine without simplejpeg trains on the same pictures."""
    data = encoded(image_of(483, 301, mode), "JPEG", quality=95)
    for result in ("RGB", "L"):
        how = DecodeImage(shorter=shorter, mode=result)
        fast = how(data)
        with monkeypatch.context() as without:
            without.setitem(sys.modules, "simplejpeg", None)
            slow = how(data)
        assert fast.shape == slow.shape
        assert np.abs(fast.astype(int) - slow).max() <= 2  # two libraries may round in two ways


def test_a_small_result_is_decoded_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is what it is for: an eighth of the sides is a sixty-fourth of the pixels."""
    import simplejpeg

    asked: list[tuple[int, int]] = []
    decode = simplejpeg.decode_jpeg

    def noted(data: bytes, *args: Any, **more: Any) -> NDArray[np.uint8]:
        pixels: NDArray[np.uint8] = decode(data, *args, **more)
        asked.append((pixels.shape[1], pixels.shape[0]))
        return pixels

    monkeypatch.setattr(simplejpeg, "decode_jpeg", noted)
    data = encoded(image_of(804, 603), "JPEG")
    for shorter in (75, 76, 150, 151, 301, 302, 603, 700):
        DecodeImage(shorter=shorter)(data)
    whole, half, quarter = (804, 603), (402, 302), (201, 151)
    assert asked == [(101, 76), quarter, quarter, half, half, whole, whole, whole]


def test_what_cannot_be_decoded_is_a_value_error(files: list[bytes]) -> None:
    """Cut, empty, of another kind, and with a result of more pixels than memory has."""
    for how in (DecodeImage(), DecodeImage(shorter=32), DecodeImage(size=(8, 8), mode="L")):
        for data in [*(data[: len(data) // 3] for data in files), b"", b"\xff\xd8\xff", b"RIFF", bytes(99)]:
            with pytest.raises(ValueError, match=r"Pillow (cannot decode|refuses) it"):
                how(data)
    line = encoded(Image.new("RGB", (60_000, 1)), "PNG")
    with pytest.raises(ValueError, match=f"Pillow cannot decode it: .* pixels are more than {MOST_IN_ALL:,}"):
        DecodeImage(shorter=100)(line)


@given(st.binary(max_size=300), st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF0000WAVE", b"fLaC"]))
def test_hostile_bytes(data: bytes, head: bytes) -> None:
    """Nothing but a ValueError."""
    for how in (DecodeImage(shorter=8), DecodeAudio(rate=8000)):
        with pytest.raises(ValueError, match="decode"):
            how(head + data)


def test_memory_of_any_kind_is_taken(files: list[bytes]) -> None:
    """Views of a draw's buffer as well as bytes."""
    how = DecodeImage(shorter=32)
    for data in files:
        expected = how(data)
        for view in (memoryview(data), bytearray(data)):
            assert np.array_equal(how(view), expected)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"shorter": shorter} for shorter in (0, 1 << 17, 2.0, True)),
        *({"size": size} for size in (8, (8,), (8, 0), [8, 8])),
        {"shorter": 8, "size": (8, 8)},
        {"mode": "CMYK"},
        {"filter": "best"},
    ],
)
def test_what_is_no_picture_is_refused(wrong: dict[str, Any]) -> None:
    """When it is made."""
    with pytest.raises(UsageError, match="DecodeImage"):
        DecodeImage(**wrong)


def clip_of(channels: NDArray[np.float64], rate: int) -> bytes:
    """A file of a clip, shape (channels, frames)."""
    file = io.BytesIO()
    soundfile.write(file, channels.T, rate, format="WAV", subtype="FLOAT")
    return file.getvalue()


def test_sound() -> None:
    """The mean of the channels, or all of them; the file's rate, or another one, at which a tone is the same tone."""
    seconds = np.arange(44_100) / 44_100
    both = np.stack([np.sin(2 * np.pi * 440 * seconds), np.sin(2 * np.pi * 1000 * seconds)]) * 0.4
    data = clip_of(both, 44_100)
    assert np.allclose(DecodeAudio()(data), both.mean(axis=0), atol=1e-6)
    assert np.allclose(DecodeAudio(mono=False)(data), both, atol=1e-6)
    for mono in (True, False):
        slower = DecodeAudio(rate=16_000, mono=mono)(data)
        assert slower.dtype == np.float32
        assert slower.shape[-1] == 16_000
        strength = np.abs(np.fft.rfft(np.atleast_2d(slower)[0]))
        assert int(strength.argmax()) in (440, 1000)
    assert np.array_equal(DecodeAudio(rate=44_100)(data), DecodeAudio()(data))


def test_real_clips(clips: Path) -> None:
    """All that ship with the repository, at one rate."""
    for path in sorted(clips.rglob("*.*")):
        if path.suffix != ".tsv":
            clip = decode_audio(path.read_bytes())
            frames = len(DecodeAudio(rate=16_000)(path.read_bytes()))
            assert abs(frames - clip.samples.shape[1] * 16_000 / clip.rate) <= 1


def test_another_rate_without_soxr(monkeypatch: pytest.MonkeyPatch) -> None:
    """Says what to install; the file's own rate needs nothing."""
    data = clip_of(np.zeros((1, 100)), 8000)
    monkeypatch.setitem(sys.modules, "soxr", None)
    assert DecodeAudio(rate=8000)(data).shape == (100,)
    with pytest.raises(MissingExtraError, match=r"pip install 'brand-data\[audio\]'"):
        DecodeAudio(rate=16_000)(data)
    for rate in (0, 1.5, 1 << 21, True):
        with pytest.raises(UsageError, match="a rate is 1 to"):
            DecodeAudio(rate=rate)  # type: ignore[arg-type]


def test_a_stretch_of_audio() -> None:
    """From `offset` on, `seconds` long, at the rate that was asked for; shorter at the end of the file."""
    tones = np.concatenate([np.full(8000, level) for level in (0.1, 0.2, 0.3)])
    data = clip_of(np.stack([tones, -tones / 2]), 8000)
    assert np.allclose(DecodeAudio(offset=1, seconds=0.5)(data), np.full(4000, 0.05), atol=1e-6)
    assert np.allclose(DecodeAudio(offset=2.5, seconds=5, mono=False)(data)[1], np.full(4000, -0.15), atol=1e-6)
    assert DecodeAudio(seconds=1.5, rate=16_000)(data).shape == (24_000,)
    assert DecodeAudio(offset=2)(data).shape == (8000,)
    with pytest.raises(ValueError, match=r"it has no frames from 3\.5 s on"):
        DecodeAudio(offset=3.5)(data)
    wrong: list[dict[str, Any]] = [{"seconds": 0}, {"seconds": -1}, {"offset": -0.1}, {"offset": float("nan")}]
    wrong += [{"seconds": float("inf")}, {"seconds": "1"}, {"offset": None}, {"offset": True}]
    for how in wrong:
        with pytest.raises(UsageError, match="seconds are"):
            DecodeAudio(**how)


def test_a_stretch_is_part_of_the_message_to_a_server() -> None:
    """As each other option."""
    how = DecodeAudio(rate=16_000, seconds=2.5, offset=10)
    assert from_json(json.loads(json.dumps(to_json(how)))) == how
    malformed: list[dict[str, Any]] = [{"seconds": "2"}, {"offset": []}, {"offset": None}]
    for wrong in malformed:
        with pytest.raises(UsageError):
            from_json({"codec": "audio", **wrong})


def test_they_are_plain_data() -> None:
    """Compared, hashed and pickled by what they say."""
    for how in (DecodeImage(shorter=256), DecodeImage(size=(8, 9), mode="L"), DecodeAudio(rate=16_000)):
        assert pickle.loads(pickle.dumps(how)) == how
        assert len({how, pickle.loads(pickle.dumps(how))}) == 1
