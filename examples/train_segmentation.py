"""Train a small network on Pascal VOC: one random window and one mirror for an image and its mask.

    python examples/data/published.py data voc
    python examples/train_segmentation.py data/VOCdevkit/VOC2012 voc.brand

The mask keeps its numbers: 0 is background, 1 to 20 are classes, 255 counts in no loss.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad

import brand

CLASSES, IGNORED, SIDE = 21, 255, 128


class Voc:
    """The images and masks of one split, as the files that they are."""

    def __init__(self, root: Path, split: str) -> None:
        self.root, self.names = root, (root / f"ImageSets/Segmentation/{split}.txt").read_text().split()

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: int) -> dict[str, Any]:
        image, mask = f"JPEGImages/{self.names[i]}.jpg", f"SegmentationClass/{self.names[i]}.png"
        return {
            "key": self.names[i],
            "image": (self.root / image).read_bytes(),
            "mask": (self.root / mask).read_bytes(),
        }


def augment(sample: Any) -> tuple[str, torch.Tensor, torch.Tensor]:
    """Crop image and mask with one window, and mirror both or none. Padding of small images is ignored."""
    key, image, mask = sample[0], torch.from_numpy(sample[1]).permute(2, 0, 1), torch.from_numpy(sample[2]).long()
    missing = (0, max(0, SIDE - mask.shape[1]), 0, max(0, SIDE - mask.shape[0]))
    image, mask = pad(image, missing), pad(mask, missing, value=IGNORED)
    top, left = (int(torch.randint(side - SIDE + 1, ())) for side in mask.shape)
    image, mask = (pixels[..., top : top + SIDE, left : left + SIDE] for pixels in (image, mask))
    return (key, image.flip(-1), mask.flip(-1)) if torch.rand(()) < 0.5 else (key, image, mask)


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    schema = {"key": "str", "image": "image", "mask": "image"}
    brand.pack(Voc(source, "train"), target, schema, decode={"mask": brand.DecodeMask()})
    decode = {"image": brand.DecodeImage(), "mask": brand.DecodeMask()}
    ds = brand.BrandDataset(target, fields=("key", "image", "mask"), decode=decode, transform=augment, memory="1GB")
    loader = brand.BrandLoader(ds, batch_size=4)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 32, 5, padding=2), nn.ReLU(), nn.Conv2d(32, CLASSES, 5, padding=2))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(2):
        loader.set_epoch(epoch)
        seen: list[str] = []
        total = 0.0
        for keys, images, masks in loader:
            loss = cross_entropy(model(images / 255), masks, ignore_index=IGNORED)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen, total = [*seen, *keys], total + loss.item()
        print(f"epoch {epoch}: {len(seen)} samples, {len(set(seen))} different, loss {total / len(loader):.1f}")
