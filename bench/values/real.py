"""Real images, recordings and texts, as `bench.public_data` and the like lay them out: a sample of each.

images/<class>/*    every 40th file, with torchvision and datasets
fashion-mnist/train every 100th file, with torchvision
audio/<speaker>/*   every 100th file, with soundfile
text/*.jsonl        the first 2,000 lines of each file, with pandas and datasets
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import pandas
import soundfile

from bench.values import folders, huggingface
from bench.values.compare import Case, Sample, Sound

IMAGES_APART: Final = 40
OTHERS_APART: Final = 100
LINES: Final = 2000
_AUDIO: Final = {".wav", ".ogg"}


def cases(root: Path, data: Path) -> Iterator[Case]:
    """Yield the cases; their sources are copied below `root`."""
    images = _some(data / "images", root / "images", IMAGES_APART)
    said = {"image": huggingface.IMAGE_SAID}
    yield Case("torchvision", "real images", folders.read_folder(images), ["images", str(images)])
    yield Case("datasets", "real images", huggingface.read_folder(images), ["images", str(images)], said=said, by="key")
    mnist = _some(data / "fashion-mnist/train", root / "mnist", OTHERS_APART)
    yield Case("torchvision", "Fashion-MNIST", folders.read_folder(mnist), ["images", str(mnist)])
    audio = _some(data / "audio", root / "audio", OTHERS_APART, _AUDIO)
    yield Case("soundfile", "real recordings", lambda: _sounds(audio), ["audio", str(audio)], by="key")
    for file in sorted((data / "text").glob("*.jsonl")):
        with file.open(encoding="utf-8") as lines:
            some = root / "text" / file.stem / file.name
            some.parent.mkdir(parents=True, exist_ok=True)
            some.write_text("".join(islice(lines, LINES)), encoding="utf-8")
        rows = lambda src=some: pandas.read_json(src, lines=True, dtype=False).to_dict("records")  # noqa: E731
        yield Case("pandas", f"real texts, {file.name}", rows, ["jsonl", str(some)])
        loaded = huggingface.read_loaded("json", some.parent)
        yield Case("datasets", f"real texts, {file.name}", loaded, ["jsonl", str(some)])


def _some(source: Path, target: Path, apart: int, endings: set[str] | None = None) -> Path:
    found = sorted(path for path in source.rglob("*") if path.is_file() and (not endings or path.suffix in endings))
    for path in found[::apart]:
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    return target


def _sounds(folder: Path) -> list[Sample]:
    read: list[Sample] = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
        sound, key = Sound(samples.T, rate), str(path.relative_to(folder))
        read.append({"audio": sound, "duration": len(samples) / rate, "key": key})
    return read
