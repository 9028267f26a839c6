"""Which images do the benchmarks of decoding read? JPEG files of two sizes, made from the photos of this repository.

- `imagenet`: 500 x 375 pixels, about 105 KB, as an average image of ImageNet;
- `large`: 1,600 x 1,200 pixels, about 500 KB, as a photo of a phone that was scaled down.

Each is a random part of a photo, with noise, and no two are alike. Colours have half the resolution (4:2:0), as in most
photos. WORK/pictures/NAME/ has `files`, one folder of JPEG files, and `brand`, the same files as a data set.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import shutil
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

PHOTOS: Final = Path(__file__).parents[1] / "examples" / "data" / "photos"
_NAMES: Final = ("animals/moose.webp", "outdoors/rocket.jpg", "outdoors/solar2.webp", "outdoors/windmill.webp")
_LABELS: Final = 1000
_EACH: Final = 64
"""Files that a process makes at a time."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The size of the images, and how they are compressed."""

    width: int
    height: int
    quality: int
    noise: float


KINDS: Final = {"imagenet": Kind(500, 375, 94, 10.0), "large": Kind(1600, 1200, 90, 5.0)}


@dataclass(frozen=True, slots=True)
class Pictures:
    """The images of one kind."""

    work: Path
    kind: str
    count: int

    @property
    def folder(self) -> Path:
        """The folder of both forms."""
        return self.work / "pictures" / f"{self.kind}-{self.count}"

    @property
    def brand(self) -> str:
        """The data set, with the fields `image` and `label`."""
        return str(self.folder / "brand")

    def file(self, number: int) -> str:
        """Return one file."""
        return f"{self.folder}/files/{number:06d}.jpg"

    @property
    def files(self) -> list[str]:
        """All files, by number."""
        return [self.file(number) for number in range(self.count)]

    @staticmethod
    def label(number: int) -> int:
        """Return the label of a file."""
        return number % _LABELS

    @property
    def mean_bytes(self) -> float:
        """Mean size of a file."""
        return sum(map(os.path.getsize, self.files)) / self.count


def make(pictures: Pictures) -> None:
    """Make the files and the data set, unless they are there."""
    done = pictures.folder / "done"
    if done.exists():
        return
    import brand

    shutil.rmtree(pictures.folder, ignore_errors=True)
    (pictures.folder / "files").mkdir(parents=True)
    with multiprocessing.get_context("fork").Pool(len(os.sched_getaffinity(0))) as pool:
        pool.map(partial(_make_some, pictures), range(0, pictures.count, _EACH))

    def samples() -> Any:
        for number, file in enumerate(pictures.files):
            yield {"image": Path(file).read_bytes(), "label": pictures.label(number)}

    brand.pack(samples(), pictures.brand, {"image": "image", "label": "int"}, jobs=1)
    done.touch()


def _make_some(pictures: Pictures, first: int) -> None:
    for number in range(first, min(first + _EACH, pictures.count)):
        Path(pictures.file(number)).write_bytes(_made(KINDS[pictures.kind], number))


def _made(kind: Kind, number: int) -> bytes:
    from PIL import Image

    rng = np.random.default_rng([1, number])
    photo = _photos()[rng.integers(len(_NAMES))]
    share = rng.uniform(0.5, 0.95)
    width = int(min(photo.width, photo.height * kind.width / kind.height) * share)
    height = int(width * kind.height / kind.width)
    left, top = int(rng.integers(photo.width - width)), int(rng.integers(photo.height - height))
    part = photo.resize((kind.width, kind.height), box=(left, top, left + width, top + height))
    noisy = np.asarray(part) + rng.normal(0, kind.noise, (kind.height, kind.width, 1)).astype(np.float32)
    content = io.BytesIO()
    made = Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))
    made.save(content, "JPEG", quality=kind.quality, subsampling="4:2:0")
    return content.getvalue()


@cache
def _photos() -> list[Image]:
    from PIL import Image

    return [Image.open(PHOTOS / name).convert("RGB") for name in _NAMES]
