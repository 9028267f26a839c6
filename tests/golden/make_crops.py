"""Make crops.npz with torchvision: the crops that `brand.DecodeImage(crop=...)` must give, to the last bit.

    python -m tests.golden.make_crops

needs torchvision, which the development environment does not have. For each image and crop, Brand decides the part
(`brand.formats.crops`), and torchvision cuts, resizes, pads and flips it, as a uint8 tensor with antialias=True.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from brand.formats.crops import CenterCrop, Crop, Pad, RandomResizedCrop, Resize, random_numbers

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


def main() -> None:
    """Write the file."""
    import torch
    from PIL import Image
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional as F

    made: dict[str, Any] = {}
    for photo in PHOTOS:
        image = torch.from_numpy(np.array(Image.open(photo).convert("RGB"))).permute(2, 0, 1)
        height, width = image.shape[1:]
        for number, (crop, name) in enumerate(CROPS):
            mode = InterpolationMode(name)
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
                    result = F.pad(F.resize(image, [at.rows, at.columns], mode, antialias=True), border, fill=crop.fill)
                result = F.horizontal_flip(result) if flipped else result
                made[f"{photo.stem}-{number}-{seed}"] = result.permute(1, 2, 0).numpy()
    np.savez_compressed(Path(__file__).with_name("crops.npz"), **made)


if __name__ == "__main__":
    main()
