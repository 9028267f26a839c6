"""Make crops.npz and crop-targets.npz with torchvision: the crops that `brand.DecodeImage(crop=...)` must give, to the
last bit, and the boxes and masks that move with them.

    python -m tests.golden.make_crops

needs torchvision, which the development environment does not have. For each image and crop, Brand decides the part
(`brand.formats.crops`), and torchvision cuts, resizes, pads and flips it, as a uint8 tensor with antialias=True.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from brand.formats.crops import CenterCrop, Crop, Pad, RandomResizedCrop, Resize, random_numbers
from brand.formats.targets import Coordinates

ROOT: Final = Path(__file__).parents[2]
PHOTOS: Final = tuple(
    ROOT / "examples/data/photos" / name
    for name in ("outdoors/rocket.jpg", "documents/text_motion.jpg", "markers/left01.jpg", "animals/moose.webp")
)
CROPS: Final[tuple[tuple[Crop, str], ...]] = (
    (RandomResizedCrop(48), "bilinear"),
    (RandomResizedCrop((40, 56), scale=(0.5, 0.9), ratio=(0.5, 2.0)), "bicubic"),
    (CenterCrop(40, resize=52), "bilinear"),
    (CenterCrop((700, 33)), "bilinear"),
    (Resize((45, 31)), "bilinear"),
    (Resize(37), "bicubic"),
    (Pad((50, 60), fill=9), "bilinear"),
)
SEEDS: Final = (0, 5)
FLIP: Final = 0.5
BOXES: Final = ((0, 0, 1, 1), (0.2, 0.3, 0.6, 0.9), (0.45, 0.4, 0.5, 0.5), (0.9, 0, 1, 0.2), (0, 0.97, 0.03, 1))
"""Boxes as fractions of the image: left, top, right, bottom."""
FORMATS: Final[tuple[Coordinates, ...]] = ("xyxy", "xywh", "cxcywh")


def boxes_of(height: int, width: int, kind: str) -> NDArray[np.float32]:
    """Boxes in pixels of an image, shape (boxes, 4)."""
    boxes = np.array(BOXES) * [width, height, width, height]
    low, high = boxes[:, :2], boxes[:, 2:]
    parts = {"xyxy": (low, high), "xywh": (low, high - low), "cxcywh": ((low + high) / 2, high - low)}[kind]
    return np.concatenate(parts, axis=1).astype(np.float32)


def mask_in(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A mask of the size of an image, shape (height, width): classes of its brightness."""
    classes: NDArray[np.uint8] = pixels.max(axis=2) // 32
    return classes


def main() -> None:
    """Write the files."""
    import torch
    from PIL import Image
    from torchvision import tv_tensors
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional as F

    made: dict[str, Any] = {}
    targets: dict[str, Any] = {}
    for photo in PHOTOS:
        pixels = np.array(Image.open(photo).convert("RGB"))
        height, width = pixels.shape[:2]
        inputs: dict[str, Any] = {"image": torch.from_numpy(pixels).permute(2, 0, 1)}
        inputs["mask"] = tv_tensors.Mask(mask_in(pixels))
        for kind in FORMATS:
            boxes = boxes_of(height, width, kind)
            inputs[kind] = tv_tensors.BoundingBoxes(boxes, format=kind.upper(), canvas_size=(height, width))
        for (number, (crop, name)), (what, image) in product(enumerate(CROPS), inputs.items()):
            mode = InterpolationMode("nearest" if what == "mask" else name)
            for seed in SEEDS if isinstance(crop, RandomResizedCrop) else SEEDS[:1]:
                numbers = random_numbers(seed)
                flipped = next(numbers) < FLIP
                at = crop.place(height, width, numbers)
                size = crop.size if isinstance(crop.size, int) else list(crop.size)
                if isinstance(crop, RandomResizedCrop):
                    part = (at.top, at.left, at.height, at.width)
                    result = F.resized_crop(image, *part, list(crop.shape), mode, antialias=True)
                elif isinstance(crop, CenterCrop):
                    whole = image if crop.resize is None else F.resize(image, crop.resize, mode, antialias=True)
                    result = F.center_crop(whole, list(crop.shape))
                elif isinstance(crop, Resize):
                    result = F.resize(image, [size] if isinstance(size, int) else size, mode, antialias=True)
                else:
                    rest = crop.shape[0] - at.rows, crop.shape[1] - at.columns
                    border = [rest[1] // 2, rest[0] // 2, rest[1] - rest[1] // 2, rest[0] - rest[0] // 2]
                    whole = F.resize(image, [at.rows, at.columns], mode, antialias=True)
                    result = F.pad(whole, border, fill=0 if what == "mask" else crop.fill)
                result = F.horizontal_flip(result) if flipped else result
                if what == "image":
                    made[f"{photo.stem}-{number}-{seed}"] = result.permute(1, 2, 0).numpy()
                else:
                    targets[f"{photo.stem}-{number}-{seed}-{what}"] = result.numpy()
    np.savez_compressed(Path(__file__).with_name("crops.npz"), **made)
    np.savez_compressed(Path(__file__).with_name("crop-targets.npz"), **targets)


if __name__ == "__main__":
    main()
