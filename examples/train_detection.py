"""Train a small detector on COCO: boxes move with their image when it is mirrored and resized.

    python examples/data/published.py data coco
    python examples/train_detection.py data/coco coco.brand

An image without objects is a sample, too. A crowd is no object.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import brand

SIDE, CELL = 128, 16


class Coco:
    """The images of one split with their boxes (x1, y1, x2, y2, in pixels) and labels (0, 1, ... in their order)."""

    def __init__(self, root: Path, split: str) -> None:
        table = json.loads((root / f"annotations/instances_{split}.json").read_text("utf-8"))
        self.folder, self.images, self.names = root / split, table["images"], [c["name"] for c in table["categories"]]
        labels = {category["id"]: label for label, category in enumerate(table["categories"])}
        self.found: dict[int, list[list[float]]] = {image["id"]: [] for image in self.images}
        for one in table["annotations"]:
            x, y, w, h = one["bbox"]
            if not one["iscrowd"]:
                self.found[one["image_id"]].append([x, y, x + w, y + h, labels[one["category_id"]]])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, i: int) -> dict[str, Any]:
        name = self.images[i]["file_name"]
        found = np.array(self.found[self.images[i]["id"]], np.float32).reshape(-1, 5)  # (0, 5) without objects
        boxes, labels = found[:, :4], found[:, 4].astype(np.int64)
        return {"key": name, "image": (self.folder / name).read_bytes(), "boxes": boxes, "labels": labels}


def augment(sample: Any) -> tuple[Any, ...]:
    """Mirror an image at random, and resize it; the boxes stay on their objects."""
    key, (image, boxes, labels) = sample[0], map(torch.from_numpy, sample[1:])
    height, width, _ = image.shape
    image = image.permute(2, 0, 1)
    if torch.rand(()) < 0.5:
        image, boxes = (
            image.flip(-1),
            torch.stack([width - boxes[:, 2], boxes[:, 1], width - boxes[:, 0], boxes[:, 3]], 1),
        )
    pixels = functional.interpolate(image[None] / 255, (SIDE, SIDE), mode="bilinear", antialias=True)[0]
    return key, pixels, boxes * torch.tensor([SIDE / width, SIDE / height] * 2), labels


def collate(samples: list[Any]) -> tuple[Any, ...]:
    """Stack images; lists hold the boxes and labels, as many as each image has."""
    keys, images, boxes, labels = zip(*samples, strict=True)
    return keys, torch.stack(images), boxes, labels


def loss_of(out: torch.Tensor, boxes: Any, labels: Any) -> torch.Tensor:
    """Return the loss of scores (each class and cell) and of boxes in the cells of their centers."""
    scores, places, target = out[:, :-4], out[:, -4:], torch.zeros_like(out[:, :-4])
    losses = []
    for n, (found, kinds) in enumerate(zip(boxes, labels, strict=True)):
        x, y = (((found[:, :2] + found[:, 2:]) / 2).clamp(max=SIDE - 1) // CELL).long().T
        target[n, kinds, y, x] = 1
        losses.append(functional.l1_loss(places[n, :, y, x].T, found / SIDE, reduction="sum"))
    return functional.binary_cross_entropy_with_logits(scores, target) + torch.stack(losses).mean()


if __name__ == "__main__":
    coco = Coco(Path(sys.argv[1]), "train2017")
    brand.pack(coco, sys.argv[2], {"key": "str", "image": "image", "boxes": "ndarray", "labels": "ndarray"})
    fields, decode = ("key", "image", "boxes", "labels"), {"image": brand.DecodeImage()}
    ds = brand.BrandDataset(sys.argv[2], fields=fields, decode=decode, transform=augment, memory="1GB")
    loader = brand.BrandLoader(ds, batch_size=4, collate_fn=collate)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 32, CELL, CELL), nn.ReLU(), nn.Conv2d(32, len(coco.names) + 4, 3, padding=1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(2):
        loader.set_epoch(epoch)
        seen: list[str] = []
        total = 0.0
        for keys, images, boxes, labels in loader:
            loss = loss_of(model(images), boxes, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen, total = [*seen, *keys], total + loss.item()
        print(f"epoch {epoch}: {len(seen)} samples, {len(set(seen))} different, loss {total / len(loader):.1f}")
